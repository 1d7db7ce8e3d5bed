"""The workload of a name, built on this rank."""

from __future__ import annotations

from makeway.measure.job import Job
from makeway.measure.names import family
from makeway.measure.ranks.balance import pairs
from makeway.measure.ranks.workload import RankWorkload
from makeway.measure.ranks.world import World


def rank_workload(job: Job, world: World) -> RankWorkload:
    match family(job.workload):
        case "pair" | "published":
            return pairs(job, world)
        case "training":
            from makeway.measure.ranks.training import training

            return training(job, world)
        case "parallel":
            from makeway.measure.ranks.parallel import parallel

            return parallel(job, world)
