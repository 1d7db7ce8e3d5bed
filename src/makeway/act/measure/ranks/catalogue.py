"""The workload of a job, built on this rank."""

from __future__ import annotations

from dataclasses import replace

from makeway.act.measure.job import Job
from makeway.act.measure.names import family
from makeway.act.measure.ranks.balance import pairs
from makeway.act.measure.ranks.pairs import Blocks
from makeway.act.measure.ranks.workload import RankWorkload
from makeway.act.measure.ranks.world import World
from makeway.act.triton.config import OPT1


def rank_workload(job: Job, world: World) -> RankWorkload:
    match family(job.workload):
        case "pair" | "published":
            pair = pairs(job, world)
            return pair if job.grid is None else replace(pair, blocks=Blocks(grid=job.grid, tile=job.tile or OPT1))
        case "training":
            from makeway.act.measure.ranks.training import training

            return training(job, world)
        case "parallel":
            from makeway.act.measure.ranks.parallel import parallel

            return parallel(job, world)
