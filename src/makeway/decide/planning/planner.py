"""A plan for a workload on a device: candidates, score, best, explain, in this order.

Pure and deterministic: fixed costs (`makeway.decide.planning.thinning`) turn the budget into a number of scores, so
the same inputs give the same plan on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from makeway.decide.planning.candidates import Candidates, Tile, candidates
from makeway.decide.planning.explain import explain, model_error
from makeway.decide.planning.policies import as_isolated, policy_controls, policy_names
from makeway.decide.planning.score import Fidelity, Score, Scorer, dispatch_rules
from makeway.decide.planning.search import Controls, Found, best, chosen, fastest, removals
from makeway.decide.planning.thinning import block_cost_ms, class_cost_ms, settled, thinned
from makeway.model.simulate.policies import Dispatch
from makeway.values.control import Control
from makeway.values.device import Device
from makeway.values.errors import InputError, suggestion
from makeway.values.plan import Rejected
from makeway.values.workload import Workload

PLANNER = "makeway"
BUDGET_MS = 2_000.0
SEARCH_SHARE = 0.35  # of the budget, when the finalists are judged by the per-block engine
FINALISTS = 10
EXPLAIN_SHARE = 0.1  # of what the search may spend is kept for the reasons
WANTED_SCORES = 60  # fewer, and kernels of many waves are thinned
_WAVES = (None, 64, 32, 16, 8, 4)
_WAVES_CROWDED = (None, 8, 4)  # kernels on several streams mix: in pieces they are slow to simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a published rule would do, with what is forced, by the same score."""

    controls: tuple[Control, ...]
    t_ns: float
    share_of_ideal: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with its reasons, and what it was held against. All times are predicted, the worst of `dispatchers`."""

    controls: tuple[Control, ...]
    summary: tuple[str, ...]  # first whether anything needs doing
    reasons: tuple[str, ...]  # one for each control
    rejected: tuple[Rejected, ...]
    baselines: Mapping[str, Baseline]
    t_naive_ns: float
    t_plan_ns: float
    t_ideal_ns: float
    t_sequential_ns: float
    share_of_ideal_naive: float | None
    share_of_ideal_plan: float | None
    dispatchers: tuple[str, ...]
    evaluations: int
    leave_as_is: bool  # what could be gained is within the model's own error: only forced controls are in the plan
    best_controls: tuple[Control, ...]  # the best found, also where it is not worth doing
    t_best_ns: float
    fidelity: Fidelity  # how the times above were looked at
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Effort:
    """What the budget buys."""

    search: Fidelity
    search_ms: float
    final: Fidelity | None  # None: the search's own look decides


def make_plan(
    workload: Workload,
    device: Device,
    *,
    budget_ms: float = BUDGET_MS,
    dispatch: Dispatch | None = None,
    forced: Sequence[Control] = (),
    excluded: Sequence[Rejected] = (),
    policy: str = PLANNER,
    tiles: Sequence[Tile] | None = None,
) -> Planned:
    """The plan of the planner, or of one of the published policies, for the workload on the device."""
    if policy not in (known := (PLANNER, *policy_names())):
        raise InputError(f"no policy {policy!r}{suggestion(policy, known)}; known: {', '.join(known)}")
    if not budget_ms > 0:
        raise InputError(f"the budget must be above 0 ms, got {budget_ms!r}")
    rules = dispatch_rules(device, dispatch)
    offered = candidates(workload, device, forced=forced, excluded=excluded, tiles=tiles)
    known_work = settled(workload, device)
    effort = _effort(known_work, device, rules, budget_ms)
    scorer = Scorer(known_work, device, rules, effort.search)
    policies = _policies(scorer, offered, excluded)
    seeds = tuple(policies.values())
    search_ms = effort.search_ms * (1 - EXPLAIN_SHARE) if policy == PLANNER else 0.0  # a rule needs no search
    found = best(scorer, offered, seeds=seeds, budget_ms=search_ms)
    judge, scores = scorer, dict(found.scores)
    if effort.final is not None:
        judge = Scorer(known_work, device, rules, effort.final)
        scores = _judged(judge, found, [*policies.values()], offered)
    baselines = {name: score for name, seed in policies.items() if (score := scores.get(seed))}
    top = chosen(scores.values(), list(baselines.values()))
    return _planned(policy, top, found, offered, scorer, judge, baselines, effort)


def _policies(scorer: Scorer, offered: Candidates, excluded: Sequence[Rejected]) -> dict[str, Controls]:
    """The controls of each published rule; what is forced is added to them by the search, what is excluded is not."""
    isolated = as_isolated(scorer.baseline)
    settled = {type(control) for control in (*offered.forced, *(item.control for item in excluded))}
    found = {name: policy_controls(name, scorer.workload, scorer.device, isolated=isolated) for name in policy_names()}
    return {name: offered.point([c for c in controls if type(c) not in settled]) for name, controls in found.items()}


def _effort(workload: Workload, device: Device, rules: tuple[Dispatch, ...], budget_ms: float) -> _Effort:
    """How to spend a budget: partly on the per-block engine for the finalists where it is quick enough."""
    final = block_cost_ms(workload, device, len(rules)) * FINALISTS <= budget_ms * (1 - SEARCH_SHARE)
    search_ms = budget_ms * SEARCH_SHARE if final else budget_ms
    crowded = len({kernel.stream for kernel in workload.kernels}) > 1
    for waves in _WAVES_CROWDED if crowded else _WAVES:
        cost_ms = class_cost_ms(thinned(workload, device, waves), device, len(rules))
        if cost_ms * WANTED_SCORES <= search_ms:
            break
    return _Effort(
        search=Fidelity(waves=waves),
        search_ms=search_ms,
        final=Fidelity(engine="block") if final else None,
    )


def _judged(judge: Scorer, found: Found, seeds: Sequence[Controls], offered: Candidates) -> dict[Controls, Score]:
    """Scores of the finalists: no controls, the baselines, and the best of each combination of kinds; then pruned."""
    finalists = dict.fromkeys([offered.point(()), *seeds, found.best.controls])
    kinds = {frozenset(map(type, controls)) for controls in finalists}
    for score in sorted(found.scores.values(), key=fastest):
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


def _planned(
    policy: str,
    top: Score,
    found: Found,
    offered: Candidates,
    search: Scorer,
    judge: Scorer,
    baselines: Mapping[str, Score],
    effort: _Effort,
) -> Planned:
    naive, nothing, base = judge.score(()), judge.score(offered.point(())), judge.baseline
    if policy != PLANNER:
        if policy not in baselines:
            raise InputError(f"policy {policy} cannot be followed here; its controls cannot run on {judge.device.name}")
        top = baselines[policy]
    worth = (nothing.t_ns - top.t_ns) / base.t_sequential_ns > model_error(judge.device.arch)
    leave = policy == PLANNER and not worth
    plan = nothing if leave else top
    told = explain(
        plan,
        top,
        naive,
        leave=leave,
        judge=judge,
        search=search,
        offered=offered,
        budget_ms=effort.search_ms,
    )
    return Planned(
        controls=plan.controls,
        summary=told.summary,
        reasons=told.reasons,
        rejected=told.rejected,
        baselines={
            name: Baseline(controls=score.controls, t_ns=score.t_ns, share_of_ideal=judge.share_of_ideal(score.t_ns))
            for name, score in baselines.items()
        },
        t_naive_ns=naive.t_ns,
        t_plan_ns=plan.t_ns,
        t_ideal_ns=base.ideal_ns,
        t_sequential_ns=base.t_sequential_ns,
        share_of_ideal_naive=judge.share_of_ideal(naive.t_ns),
        share_of_ideal_plan=judge.share_of_ideal(plan.t_ns),
        dispatchers=tuple(rule.name for rule in judge.rules),
        evaluations=search.evaluations + (judge.evaluations if effort.final else 0),
        leave_as_is=leave,
        best_controls=top.controls,
        t_best_ns=top.t_ns,
        fidelity=judge.fidelity,
        notes=tuple(_notes(judge, found, effort, searched=policy == PLANNER)),
    )


def _notes(judge: Scorer, found: Found, effort: _Effort, *, searched: bool) -> list[str]:
    notes = []
    if found.stopped_early and searched:
        notes.append(f"stopped early: {found.evaluations} scores are what the budget buys; a larger one may find more")
    if judge.fidelity.waves is not None:
        notes.append(
            f"kernels of more than {judge.fidelity.waves} waves were thinned to that many: times are those of the "
            "thinned workload"
        )
    if effort.final is None and any(name != "strict" for name in (rule.name for rule in judge.rules)):
        notes.append(
            "back-filling dispatch was judged by a rule for who starves, not block by block; a larger budget does the "
            "latter"
        )
    if judge.own_risk is not None:
        notes.append(f"without any control the collectives are not proved safe: {judge.own_risk}")
    return notes
