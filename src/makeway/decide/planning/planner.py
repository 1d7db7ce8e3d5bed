"""`plan`: the controls for a workload on a device. Candidates, score, best, explain, in this order.

Pure and deterministic: fixed costs (`makeway.decide.planning.thinning`) turn the budget into a number of scores, so
the same inputs give the same plan on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from makeway.decide.planning.candidates import Candidates, Tile, candidates
from makeway.decide.planning.explain import model_error, reason, rejections, summary
from makeway.decide.planning.heuristics import as_isolated, heuristic_controls, heuristic_names
from makeway.decide.planning.score import Fidelity, Score, Scorer, dispatch_policies
from makeway.decide.planning.search import Controls, SearchResult, best, chosen, fastest, removals
from makeway.decide.planning.thinning import block_cost_ms, class_cost_ms, settled, thinned
from makeway.model.simulate.policies import Dispatch
from makeway.model.simulate.predict import simulate
from makeway.values.control import Control
from makeway.values.device import Device
from makeway.values.errors import InputError, suggestion
from makeway.values.plan import Baseline, Forecast, MadeFor, Plan, Rejected, Search
from makeway.values.support import PLATFORMS, carriers_of
from makeway.values.timeline import Timeline
from makeway.values.workload import Workload

PLANNER = "makeway"
BUDGET_MS = 2_000.0
SEARCH_SHARE = 0.35  # of the budget, when the per-block engine judges the finalists
FINALISTS = 10
EXPLAIN_SHARE = 0.1  # of the search's budget is kept for the reasons
WANTED_SCORES = 60  # fewer, and kernels of many waves are thinned
_WAVES = (None, 64, 32, 16, 8, 4)
_WAVES_CROWDED = (None, 8, 4)  # kernels on several streams mix: in pieces they are slow to simulate
_SHARE_DIGITS = 6  # on which every machine agrees


def plan(
    workload: Workload,
    device: Device,
    *,
    controls: Sequence[Control] = (),
    heuristic: str = PLANNER,
    dispatch: Dispatch | None = None,
    excluded: Sequence[Rejected] = (),
    tiles: Sequence[Tile] | None = None,
    budget_ms: float = BUDGET_MS,
    timelines: bool = False,
) -> Plan:
    """The best controls for the workload on the device, with reasons; `Plan.search` records what was tried.

    `controls` must be in the plan; the kinds in `excluded` are not tried. `heuristic` follows a published one
    instead of searching. A plan is good under every dispatch policy that the device may follow, unless `dispatch`
    names one. `budget_ms` is effort, not a clock. `timelines` adds simulated runs without and with the plan.
    """
    if heuristic not in (known := (PLANNER, *heuristic_names())):
        raise InputError(f"no heuristic {heuristic!r}{suggestion(heuristic, known)}; known: {', '.join(known)}")
    if not budget_ms > 0:
        raise InputError(f"the budget must be above 0 ms, got {budget_ms!r}")
    offered = candidates(workload, device, forced=controls, excluded=excluded, tiles=tiles)
    contest = _contest(workload, device, offered, excluded, dispatch, budget_ms, search=heuristic == PLANNER)
    judge, top = contest.judge, contest.top
    if heuristic != PLANNER:
        if heuristic not in contest.baselines:
            raise InputError(f"the controls of heuristic {heuristic} cannot run on {device.name}")
        top = contest.baselines[heuristic]
    nothing = judge.score(offered.point(()))
    worth = (nothing.t_ns - top.t_ns) / judge.baseline.t_sequential_ns > model_error(device.arch)
    leave = heuristic == PLANNER and not worth
    selected = nothing if leave else top
    verdict = tuple(summary(selected, top, judge, leave=leave))
    return Plan(
        controls=selected.controls,
        reasons=tuple(reason(control, selected, judge, offered) for control in selected.controls),
        made_for=_made_for(workload, device),
        predicted=_forecast(judge, selected),
        rejected=tuple(rejections(selected.controls, offered, contest.scorer, contest.effort.search_ms)),
        search=Search(
            workload=workload,
            device=device,
            heuristic=heuristic,
            summary=verdict,
            leave_as_is=leave,
            best_controls=top.controls,
            t_best_ns=round(top.t_ns),
            baselines=_baselines(judge, contest.baselines),
            evaluations=contest.evaluations,
            engine=judge.fidelity.engine,
            waves=judge.fidelity.waves,
            carriers=tuple(carriers_of(control, PLATFORMS[device.vendor]) for control in selected.controls),
            notes=tuple(_notes(contest, searched=heuristic == PLANNER)),
            timelines=_timelines(workload, device, selected.controls) if timelines else (),
        ),
    )


# --- effort ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Effort:
    """What the budget buys."""

    search: Fidelity
    search_ms: float
    final: Fidelity | None  # None: the search's own scores decide


def _effort(workload: Workload, device: Device, policies: tuple[Dispatch, ...], budget_ms: float) -> _Effort:
    """How to spend a budget: partly on the per-block engine for the finalists where it is quick enough."""
    final = block_cost_ms(workload, device, len(policies)) * FINALISTS <= budget_ms * (1 - SEARCH_SHARE)
    search_ms = budget_ms * SEARCH_SHARE if final else budget_ms
    crowded = len({kernel.stream for kernel in workload.kernels}) > 1
    for waves in _WAVES_CROWDED if crowded else _WAVES:
        cost_ms = class_cost_ms(thinned(workload, device, waves), device, len(policies))
        if cost_ms * WANTED_SCORES <= search_ms:
            break
    return _Effort(
        search=Fidelity(waves=waves),
        search_ms=search_ms,
        final=Fidelity(engine="block") if final else None,
    )


# --- scores ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contest:
    """All scores on the way to a plan: `scorer` searched, `judge` decided (the same unless the finalists got more)."""

    effort: _Effort
    scorer: Scorer
    judge: Scorer
    result: SearchResult
    baselines: Mapping[str, Score]
    top: Score

    @property
    def evaluations(self) -> int:
        return self.scorer.evaluations + (self.judge.evaluations if self.judge is not self.scorer else 0)


def _contest(
    workload: Workload,
    device: Device,
    offered: Candidates,
    excluded: Sequence[Rejected],
    dispatch: Dispatch | None,
    budget_ms: float,
    *,
    search: bool,
) -> _Contest:
    policies, known_work = dispatch_policies(device, dispatch), settled(workload, device)
    effort = _effort(known_work, device, policies, budget_ms)
    scorer = Scorer(known_work, device, policies, effort.search)
    seeds = _heuristics(scorer, offered, excluded)
    search_ms = effort.search_ms * (1 - EXPLAIN_SHARE) if search else 0.0
    result = best(scorer, offered, seeds=tuple(seeds.values()), budget_ms=search_ms)
    judge, scores = scorer, dict(result.scores)
    if effort.final is not None:
        judge = Scorer(known_work, device, policies, effort.final)
        scores = _judged(judge, result, [*seeds.values()], offered)
    baselines = {name: score for name, seed in seeds.items() if (score := scores.get(seed))}
    top = chosen(scores.values(), list(baselines.values()))
    return _Contest(effort=effort, scorer=scorer, judge=judge, result=result, baselines=baselines, top=top)


def _heuristics(scorer: Scorer, offered: Candidates, excluded: Sequence[Rejected]) -> dict[str, Controls]:
    """The controls of each published heuristic, with those that are required and without excluded kinds."""
    isolated = as_isolated(scorer.baseline)
    fixed = {type(control) for control in (*offered.forced, *(item.control for item in excluded))}
    seeds = {}
    for name in heuristic_names():
        controls = heuristic_controls(name, scorer.workload, scorer.device, isolated=isolated)
        seeds[name] = offered.point([control for control in controls if type(control) not in fixed])
    return seeds


def _judged(
    judge: Scorer, result: SearchResult, seeds: Sequence[Controls], offered: Candidates
) -> dict[Controls, Score]:
    """Scores of the finalists: no controls, the baselines, and the best of each combination of kinds; then pruned."""
    finalists = dict.fromkeys([offered.point(()), *seeds, result.best.controls])
    kinds = {frozenset(map(type, controls)) for controls in finalists}
    for score in sorted(result.scores.values(), key=fastest):
        kind = frozenset(map(type, score.controls))
        if len(finalists) < FINALISTS and kind not in kinds:
            kinds.add(kind)
            finalists[score.controls] = None
    scores: dict[Controls, Score] = {}

    def add(controls: Controls) -> None:
        if controls not in scores and isinstance(score := judge.attempt(controls), Score):
            scores[controls] = score

    for controls in finalists:
        add(controls)
    floor = [scores[seed] for seed in seeds if seed in scores]
    while True:
        top = chosen(scores.values(), floor)
        for _, rest in removals(top.controls, offered.forced):
            add(offered.point(rest))
        if chosen(scores.values(), floor).controls == top.controls:
            return scores


# --- the answer --------------------------------------------------------------------------------


def _made_for(workload: Workload, device: Device) -> MadeFor:
    libraries = {op.library for op in workload.collectives}
    library = libraries.pop() if len(libraries) == 1 else None
    return MadeFor(workload=workload.name, device=device.name, ranks=workload.ranks, library=library)


def _forecast(judge: Scorer, selected: Score) -> Forecast:
    naive, base = judge.score(()), judge.baseline
    return Forecast(
        t_naive_ns=round(naive.t_ns),
        t_plan_ns=round(selected.t_ns),
        t_ideal_ns=round(base.ideal_ns),
        t_sequential_ns=round(base.t_sequential_ns),
        share_of_ideal_naive=_share(judge, naive),
        share_of_ideal_plan=_share(judge, selected),
        dispatchers=tuple(policy.name for policy in judge.policies),
    )


def _baselines(judge: Scorer, scores: Mapping[str, Score]) -> dict[str, Baseline]:
    return {
        name: Baseline(controls=score.controls, t_ns=round(score.t_ns), share_of_ideal=_share(judge, score))
        for name, score in scores.items()
    }


def _share(judge: Scorer, score: Score) -> float | None:
    share = judge.share_of_ideal(score.t_ns)
    return None if share is None else round(share, _SHARE_DIGITS)


def _timelines(workload: Workload, device: Device, controls: Controls) -> tuple[tuple[str, Timeline], ...]:
    naive = ("without controls", simulate(workload, device).timeline)
    return (naive, ("with the plan", simulate(workload, device, controls).timeline)) if controls else (naive,)


def _notes(contest: _Contest, *, searched: bool) -> list[str]:
    judge, result, notes = contest.judge, contest.result, []
    if result.stopped_early and searched:
        notes.append(f"stopped early: the budget buys {result.evaluations} scores; a larger one may find more")
    if judge.fidelity.waves is not None:
        notes.append(
            f"kernels of more than {judge.fidelity.waves} waves were thinned to that many: times are those of the "
            "thinned workload"
        )
    if contest.effort.final is None and any(policy.name != "strict" for policy in judge.policies):
        notes.append(
            "back-filling dispatch was approximated by who starves, not simulated block by block; a larger budget "
            "does the latter"
        )
    if judge.own_risk is not None:
        notes.append(f"without any control the collectives are not proved safe: {judge.own_risk}")
    return notes
