"""The time of a workload under controls, for every dispatch rule that the device may follow.

What nobody knows of the hardware must not decide a plan: the score is the worst of the rules. Back-fill with equal
block times looks like the strict queue (docs/model.md, section 4), so it is judged either by the per-block engine with
spread block times, or, where that is too slow, by the class engine with a rule for who starves (`SpreadOut`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from makeway.decide.planning.deadlock import program_risk
from makeway.decide.planning.spread import SpreadOut
from makeway.decide.planning.thinning import COMPILE_MS, block_cost_ms, class_cost_ms, run_cost_ms, settled, thinned
from makeway.model.simulate.compile import Compiled, compile_program
from makeway.model.simulate.driver import Engine, run
from makeway.model.simulate.policies import DISPATCHES, Dispatch, StrictHeadOfLine
from makeway.model.simulate.predict import Prediction, Settings, simulate, vendor_dispatch
from makeway.model.simulate.program import Program
from makeway.model.simulate.sweep import HONEST_JITTER
from makeway.values.control import Control
from makeway.values.device import Device
from makeway.values.errors import MakewayError
from makeway.values.timeline import share_of_ideal
from makeway.values.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How closely a score looks: the engine, and the most waves of a kernel that are kept (None: all)."""

    engine: Engine = "class"
    waves: int | None = None

    @property
    def jitter(self) -> float:
        return HONEST_JITTER if self.engine == "block" else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Predicted times under each rule; the worst of them counts."""

    controls: tuple[Control, ...]
    by_dispatch: tuple[tuple[str, float], ...]
    without_effect: tuple[str, ...] = ()

    @property
    def t_ns(self) -> float:
        return max(time_ns for _, time_ns in self.by_dispatch)


def dispatch_rules(device: Device, asked: Dispatch | None = None) -> tuple[Dispatch, ...]:
    """The rules a plan must be good under: the one asked for, or all that the device may follow.

    NVIDIA: strict or back-fill; nobody has settled it for Hopper and later. AMD, and devices with a fitted rule: one.
    """
    if asked is not None:
        return (asked,)
    vendor = vendor_dispatch(device)
    return (vendor, DISPATCHES["backfill"]) if vendor.name == "strict" else (vendor,)


def score(
    workload: Workload,
    device: Device,
    controls: Sequence[Control] = (),
    *,
    dispatch: Dispatch | None = None,
    fidelity: Fidelity | None = None,
) -> Score:
    """The score of one set of controls. A search keeps a `Scorer`, which remembers."""
    scorer = Scorer(workload, device, dispatch_rules(device, dispatch), fidelity or Fidelity())
    return scorer.score(tuple(controls))


class Scorer:
    """Scores of one workload on one device, each computed once."""

    def __init__(
        self, workload: Workload, device: Device, rules: tuple[Dispatch, ...], fidelity: Fidelity | None = None
    ) -> None:
        self.device = device
        self.rules = rules
        self.fidelity = fidelity or Fidelity()
        self.workload = thinned(settled(workload, device), device, self.fidelity.waves)
        self.evaluations = 0
        self.spent_ms = 0.0  # by fixed costs of what was done, not by a clock
        self._known: dict[tuple[Control, ...], Score | str] = {}
        self._runs: dict[object, float] = {}

    def score(self, controls: tuple[Control, ...]) -> Score:
        """The score, or the error that says why these controls cannot run."""
        found = self._known.get(controls)
        if isinstance(found, Score):
            return found
        return self._scored(controls, self._compiled(controls, self.rules[0]))

    def attempt(self, controls: tuple[Control, ...]) -> Score | str:
        """The score, or why not: they cannot run here, or their collectives could wait for each other for ever."""
        if controls not in self._known:
            try:
                compiled = self._compiled(controls, self.rules[0])
                risk = program_risk(compiled.program)
                if risk is not None and controls and risk != self.own_risk:
                    self._known[controls] = risk
                else:
                    self._scored(controls, compiled)
            except MakewayError as error:
                self._known[controls] = str(error)
        return self._known[controls]

    def _scored(self, controls: tuple[Control, ...], compiled: Compiled) -> Score:
        times = []
        for rule in self.rules:
            same = rule.gpcs == self.rules[0].gpcs
            program = compiled.program if same else self._compiled(controls, rule).program
            times.append((rule.name, self._time_ns(program, rule)))
        self.evaluations += 1
        scored = Score(controls=controls, by_dispatch=tuple(times), without_effect=compiled.without_effect)
        self._known[controls] = scored
        return scored

    def known(self, controls: tuple[Control, ...]) -> bool:
        """Whether it has an answer at no cost."""
        return controls in self._known

    @cached_property
    def own_risk(self) -> str | None:
        """The risk that the program runs already, without any control."""
        return program_risk(self._compiled((), self.rules[0]).program)

    @cached_property
    def baseline(self) -> Prediction:
        """The workload without controls beside its isolated times, under the first of the rules."""
        fidelity = self.fidelity
        settings = Settings(engine=fidelity.engine, jitter=fidelity.jitter, dispatch=self.rules[0])
        cost_ms = class_cost_ms if fidelity.engine == "class" else block_cost_ms
        self.spent_ms += cost_ms(self.workload, self.device, 2)  # together and apart
        return simulate(self.workload, self.device, (), settings)

    def share_of_ideal(self, t_ns: float) -> float | None:
        """None also where recorded launches make the whole longer than its parts: the host decides there."""
        base = self.baseline
        if base.t_ns > base.t_sequential_ns and any(op.launched_ns for op in self.workload.operations):
            return None
        return share_of_ideal(
            t_sequential=base.t_sequential_ns, t=t_ns, t_compute=base.t_compute_ns, t_comm=base.t_comm_ns
        )

    def _compiled(self, controls: tuple[Control, ...], rule: Dispatch) -> Compiled:
        compiled = compile_program(self.workload, self.device, controls, dispatch=rule, jitter=self.fidelity.jitter)
        self.spent_ms += len(compiled.program.ops) * COMPILE_MS
        return compiled

    def _time_ns(self, program: Program, rule: Dispatch) -> float:
        key = (program.ops, program.sites, rule.name if _contested(program) else "")
        if key not in self._runs:
            engine = self.fidelity.engine
            judged = rule if engine == "block" or isinstance(rule, StrictHeadOfLine) else SpreadOut(rule, program)
            result = run(program, engine=engine, dispatch=judged)
            self.spent_ms += run_cost_ms(program, result.events, engine)
            self._runs[key] = result.end_ns
        return self._runs[key]


def _contested(program: Program) -> bool:
    """Whether two operations can ever wait for the same SMs: if not, the dispatch rule decides nothing."""
    streams: dict[str | None, set[str]] = {}
    for op in program.ops:
        if op.kind != "copy":
            streams.setdefault(op.part, set()).add(op.stream)
    return any(len(waiting) > 1 for waiting in streams.values())
