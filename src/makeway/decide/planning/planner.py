"""`plan`: the controls for a workload on a device. Candidates, search, judge, explain, in this order.

Pure and deterministic: nothing depends on a clock, so the same inputs give the same plan on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from makeway.decide.planning.candidates import Tile, candidates
from makeway.decide.planning.carried import routes, unusable
from makeway.decide.planning.control_sets import Candidates
from makeway.decide.planning.error import error_of_difference
from makeway.decide.planning.explain import not_carried, reason, rejections, summary
from makeway.decide.planning.heuristics import as_isolated, heuristic_controls, heuristic_names
from makeway.decide.planning.memo import SearchMemo
from makeway.decide.planning.score import Controls, Judge, Progress, QuickScorer, Score, judged
from makeway.decide.planning.search import TIE, Breadth, best_by_kinds, breadth, chosen, search, simplifications
from makeway.model.simulate.policies import Dispatch
from makeway.model.simulate.rewrite import rewritten
from makeway.values.control import CommBlocks, Compress, Control, CopyEngine, SmPartition, TileChoice, lossy
from makeway.values.device import Device
from makeway.values.errors import InputError, suggestion
from makeway.values.plan import Baseline, Forecast, MadeFor, Plan, PolicyTimes, Rejected, Search
from makeway.values.support import PLATFORMS
from makeway.values.timeline import Timeline
from makeway.values.workload import Workload

PLANNER = "makeway"
_SHARE_DIGITS = 6  # on which every machine agrees


def plan(
    workload: Workload,
    device: Device,
    *,
    controls: Sequence[Control] = (),
    heuristic: str = PLANNER,
    dispatch: Dispatch | None = None,
    excluded: Sequence[Rejected] = (),
    destination: str | None = None,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
    allow_lossy: bool = False,
    tiles: Sequence[Tile] | None = None,
    timelines: bool = False,
    progress: Progress | None = None,
    effort: int = 1,
) -> Plan:
    """The best controls for the workload on the device, with reasons; `Plan.search` records what was tried.

    `controls` must be in the plan; the kinds in `excluded` are not tried. `destination` ("run", or an export target)
    leaves only controls that it can apply on the device's platform, `only` and `exclude` name kinds; `allow_lossy`
    adds those that change the program's results. `heuristic` follows a published one instead of searching. Times are
    those of `simulate`. A plan is made for the vendor's dispatch policy and is not slower than nothing under any other
    that the device may follow, unless `dispatch` names one. `timelines` adds simulated runs without and with the plan.
    `effort` widens the search, for tests.
    """
    if heuristic not in (known := (PLANNER, *heuristic_names())):
        raise InputError(f"no heuristic {heuristic!r}{suggestion(heuristic, known)}; known: {', '.join(known)}")
    platform, libraries = PLATFORMS[device.vendor], sorted({op.library for op in workload.collectives})
    withheld = unusable(
        platform,
        destination=destination,
        only=only,
        exclude=exclude,
        libraries=libraries,
        required=controls,
        allow_lossy=allow_lossy,
    )
    excluded = [item for item in excluded if type(item.control) not in {type(other.control) for other in withheld}]
    offered = candidates(
        workload,
        device,
        forced=controls,
        excluded=excluded,
        withheld=withheld,
        plain_copies=destination is not None,
        allow_lossy=allow_lossy,
        tiles=tiles,
    )
    judge = Judge(workload, device, dispatch, progress)
    contest = _contest(judge, offered, (*excluded, *withheld), heuristic, effort)
    error, top, base = error_of_difference(device), contest.top, judge.baseline
    nothing = judge.score(offered.point(()))
    least_ns = error.value * base.t_sequential_ns
    leave = heuristic == PLANNER and nothing.t_ns - top.t_ns <= least_ns
    selected = nothing if leave else contest.plan
    policies = tuple(_times_under(judge, policy, selected) for policy in judge.policies)
    return Plan(
        controls=selected.controls,
        reasons=tuple(reason(control, selected, judge, offered) for control in selected.controls),
        made_for=_made_for(workload, device),
        predicted=_forecast(judge, selected),
        rejected=tuple(rejections(selected.controls, offered, judge, contest.quick, error)),
        search=Search(
            workload=workload,
            device=device,
            heuristic=heuristic,
            summary=tuple(summary(selected, top, judge, error, policies, leave=leave)),
            leave_as_is=leave,
            best_controls=top.controls,
            t_best_ns=round(top.t_ns),
            baselines=_baselines(judge, contest.baselines),
            policies=policies,
            error_of_difference=error.value,
            error_basis=error.basis,
            evaluations=len(contest.quick),
            judged=judge.evaluations,
            engine=base.engine,
            destination=destination,
            routes=tuple(tuple(routes(item, platform, destination, libraries)) for item in selected.controls),
            notes=tuple(_notes(judge, selected)),
            timelines=_timelines(judge, selected.controls) if timelines else (),
        ),
    )


# --- search and judge --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contest:
    """What the search scored, and what the judge made of the best of it."""

    quick: Mapping[Controls, Score]
    baselines: Mapping[str, Score]  # by heuristic
    top: Score  # the fastest set that is not slower than nothing under any dispatch policy
    plan: Score  # the same without controls that are worth too little


def _contest(judge: Judge, offered: Candidates, excluded: Sequence[Rejected], heuristic: str, effort: int) -> _Contest:
    seeds = _heuristics(judge, offered, excluded)
    baselines = {name: score for name, seed in seeds.items() if isinstance(score := judge.attempt(seed), Score)}
    if heuristic != PLANNER:
        if heuristic not in baselines:
            raise InputError(f"the controls of heuristic {heuristic} cannot run on {judge.device.name}")
        top = baselines[heuristic]
        return _Contest(quick={}, baselines=baselines, top=top, plan=top)
    quick, width = _searched(judge, offered, tuple(seeds.values()), effort)
    scores = {score.controls: score for score in baselines.values()}
    nothing = scores[offered.point(())] = judge.score(offered.point(()))
    for finalist in best_by_kinds(quick.values())[: width.finalists]:
        if isinstance(score := judge.attempt(finalist.controls), Score):
            scores[finalist.controls] = score
    while True:
        top = chosen(scores.values())
        pruned = _pruned(top, nothing, judge, offered)
        if top == nothing or _safe(pruned, judge, offered):
            return _Contest(quick=quick, baselines=baselines, top=top, plan=pruned)
        del scores[top.controls]


def _searched(
    judge: Judge, offered: Candidates, seeds: tuple[Controls, ...], effort: int
) -> tuple[dict[Controls, Score], Breadth]:
    """All scores of the search under the vendor's dispatch policy; from the disk if it was made before."""
    scorer = QuickScorer(judge.workload, judge.device, judge.policies[0], judge.own_risk)
    settled = most_gain_ns(judge, offered) <= error_of_difference(judge.device).value * judge.baseline.t_sequential_ns
    width = breadth(len(judge.workload.operations), crowded=scorer.crowded, settled=settled, effort=effort)
    memo = SearchMemo((judge.workload, judge.device, judge.policies[0], offered, seeds, width))
    scores = search(memo.replayed(scorer.time_ns), offered, seeds, width)
    memo.keep()
    return scores, width


def most_gain_ns(judge: Judge, offered: Candidates) -> float:
    """What the best plan could gain at most: no set ends before its compute alone, or its communication alone.

    Without limit where copy engines or compression could shorten communication that outlasts compute.
    """
    base, kinds = judge.baseline, {type(option[0]) for axis in offered.axes for option in axis}
    if base.t_comm_ns > base.t_compute_ns and not kinds.isdisjoint((CopyEngine, CommBlocks, SmPartition, Compress)):
        return math.inf  # other channels, or none, may move the same bytes faster; compression moves fewer
    compute = [base.t_compute_ns]
    tiles = [control for axis in offered.axes for (control, *_) in axis if isinstance(control, TileChoice)]
    compute += [judged(rewritten(judge.workload, (tile,)), judge.device).t_compute_ns for tile in tiles]
    return base.t_ns - max(min(compute), base.t_comm_ns)


def _heuristics(judge: Judge, offered: Candidates, excluded: Sequence[Rejected]) -> dict[str, Controls]:
    """The controls of each published heuristic, with those that are required and without excluded kinds."""
    isolated = as_isolated(judge.baseline)
    fixed = {type(control) for control in (*offered.forced, *(item.control for item in excluded))}
    seeds = {}
    for name in heuristic_names():
        controls = heuristic_controls(name, judge.workload, judge.device, isolated=isolated)
        seeds[name] = offered.point([control for control in controls if type(control) not in fixed])
    return seeds


def _pruned(top: Score, nothing: Score, judge: Judge, offered: Candidates) -> Score:
    """The set without each control whose removal costs less than the error, as long as the rest gains more than it."""
    least_ns = error_of_difference(judge.device).value * judge.baseline.t_sequential_ns
    current = top
    while True:
        simpler = [
            score
            for _, rest in simplifications(current.controls, offered.forced)
            if isinstance(score := judge.attempt(offered.point(rest)), Score)
            and score.t_ns - current.t_ns < least_ns
            and nothing.t_ns - score.t_ns > least_ns
        ]
        if not simpler:
            return current
        current = min(simpler, key=lambda score: (score.t_ns, repr(score.controls)))


def _safe(score: Score, judge: Judge, offered: Candidates) -> bool:
    """Whether a set is no slower than nothing under the other dispatch policies."""
    nothing = offered.point(())
    return all(
        judge.score(score.controls, policy).t_ns <= judge.score(nothing, policy).t_ns * (1 + TIE)
        for policy in judge.policies[1:]
    )


# --- the answer --------------------------------------------------------------------------------


def _made_for(workload: Workload, device: Device) -> MadeFor:
    libraries = {op.library for op in workload.collectives}
    library = libraries.pop() if len(libraries) == 1 else None
    return MadeFor(workload=workload.name, device=device.name, ranks=workload.ranks, library=library)


def _times_under(judge: Judge, policy: Dispatch, selected: Score) -> PolicyTimes:
    return PolicyTimes(
        dispatch=policy.name,
        t_naive_ns=round(judge.score((), policy).t_ns),
        t_plan_ns=round(judge.score(selected.controls, policy).t_ns),
    )


def _forecast(judge: Judge, selected: Score) -> Forecast:
    base = judge.baseline
    return Forecast(
        t_naive_ns=round(base.t_ns),
        t_plan_ns=round(selected.t_ns),
        t_ideal_ns=round(base.ideal_ns),
        t_sequential_ns=round(base.t_sequential_ns),
        share_of_ideal_naive=_share(judge, base.t_ns),
        share_of_ideal_plan=None if any(map(lossy, selected.controls)) else _share(judge, selected.t_ns),
        dispatchers=tuple(policy.name for policy in judge.policies),
    )


def _baselines(judge: Judge, scores: Mapping[str, Score]) -> dict[str, Baseline]:
    return {
        name: Baseline(controls=score.controls, t_ns=round(score.t_ns), share_of_ideal=_share(judge, score.t_ns))
        for name, score in scores.items()
    }


def _share(judge: Judge, t_ns: float) -> float | None:
    share = judge.share_of_ideal(t_ns)
    return None if share is None else round(share, _SHARE_DIGITS)


def _timelines(judge: Judge, controls: Controls) -> tuple[tuple[str, Timeline], ...]:
    naive = ("without controls", judge.baseline.timeline)
    return (naive, ("with the plan", judge.prediction(controls).timeline)) if controls else (naive,)


def _notes(judge: Judge, selected: Score) -> list[str]:
    notes = list(not_carried(selected.controls))
    if judge.own_risk is not None:
        notes.append(f"without any control the collectives are not proved safe: {judge.own_risk}")
    return notes
