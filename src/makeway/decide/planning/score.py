"""The time of a workload under controls, for every dispatch policy that the device may follow.

What nobody knows about the hardware must not decide a plan: the score is the slowest time under any of the policies.
Back-fill with equal block times looks like the strict queue (docs/model.md, section 4). So the per-block engine scores
it with spread block times or, where that is too slow, the class engine does with an estimate of who starves
(`SpreadOut`).
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
    """Predicted times under each dispatch policy; the slowest counts."""

    controls: tuple[Control, ...]
    by_dispatch: tuple[tuple[str, float], ...]
    without_effect: tuple[str, ...] = ()

    @property
    def t_ns(self) -> float:
        return max(time_ns for _, time_ns in self.by_dispatch)


def dispatch_policies(device: Device, only: Dispatch | None = None) -> tuple[Dispatch, ...]:
    """The dispatch policies a plan must be good under: all that the device may follow, or `only` that one.

    NVIDIA: strict or back-fill; Hopper and later are unconfirmed. AMD, and devices with a fitted policy: one.
    """
    if only is not None:
        return (only,)
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
    """The score of one set of controls. A search keeps a `Scorer`, which caches."""
    scorer = Scorer(workload, device, dispatch_policies(device, dispatch), fidelity or Fidelity())
    return scorer.score(tuple(controls))


class Scorer:
    """Scores of one workload on one device, each computed once."""

    def __init__(
        self, workload: Workload, device: Device, policies: tuple[Dispatch, ...], fidelity: Fidelity | None = None
    ) -> None:
        self.device = device
        self.policies = policies
        self.fidelity = fidelity or Fidelity()
        self.workload = thinned(settled(workload, device), device, self.fidelity.waves)
        self.evaluations = 0
        self.spent_ms = 0.0  # by fixed costs, not by a clock
        self._known: dict[tuple[Control, ...], Score | str] = {}
        self._runs: dict[object, float] = {}

    def score(self, controls: tuple[Control, ...]) -> Score:
        """The score, or the error that says why these controls cannot run."""
        known = self._known.get(controls)
        if isinstance(known, Score):
            return known
        return self._scored(controls, self._compiled(controls, self.policies[0]))

    def attempt(self, controls: tuple[Control, ...]) -> Score | str:
        """The score, or why there is none: the controls cannot run here, or the collectives could deadlock."""
        if controls not in self._known:
            try:
                compiled = self._compiled(controls, self.policies[0])
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
        for policy in self.policies:
            same = policy.gpcs == self.policies[0].gpcs
            program = compiled.program if same else self._compiled(controls, policy).program
            times.append((policy.name, self._time_ns(program, policy)))
        self.evaluations += 1
        scored = Score(controls=controls, by_dispatch=tuple(times), without_effect=compiled.without_effect)
        self._known[controls] = scored
        return scored

    def known(self, controls: tuple[Control, ...]) -> bool:
        """Whether `attempt` has the answer already."""
        return controls in self._known

    @cached_property
    def own_risk(self) -> str | None:
        """The deadlock risk of the workload without any control."""
        return program_risk(self._compiled((), self.policies[0]).program)

    @cached_property
    def baseline(self) -> Prediction:
        """The workload without controls and its isolated times, under the first policy."""
        fidelity = self.fidelity
        settings = Settings(engine=fidelity.engine, jitter=fidelity.jitter, dispatch=self.policies[0])
        cost_ms = class_cost_ms if fidelity.engine == "class" else block_cost_ms
        self.spent_ms += cost_ms(self.workload, self.device, 2)  # together and apart
        return simulate(self.workload, self.device, (), settings)

    def share_of_ideal(self, t_ns: float) -> float | None:
        """The share of ideal; None, too, where recorded launches make the whole longer than its parts (host-bound)."""
        base = self.baseline
        if base.t_ns > base.t_sequential_ns and any(op.launched_ns for op in self.workload.operations):
            return None
        return share_of_ideal(
            t_sequential=base.t_sequential_ns, t=t_ns, t_compute=base.t_compute_ns, t_comm=base.t_comm_ns
        )

    def _compiled(self, controls: tuple[Control, ...], policy: Dispatch) -> Compiled:
        compiled = compile_program(self.workload, self.device, controls, dispatch=policy, jitter=self.fidelity.jitter)
        self.spent_ms += len(compiled.program.ops) * COMPILE_MS
        return compiled

    def _time_ns(self, program: Program, policy: Dispatch) -> float:
        key = (program.ops, program.sites, policy.name if _contested(program) else "")
        if key not in self._runs:
            engine = self.fidelity.engine
            exact = engine == "block" or isinstance(policy, StrictHeadOfLine)
            result = run(program, engine=engine, dispatch=policy if exact else SpreadOut(policy, program))
            self.spent_ms += run_cost_ms(program, result.events, engine)
            self._runs[key] = result.end_ns
        return self._runs[key]


def _contested(program: Program) -> bool:
    """Whether two operations can ever wait for the same SMs: if not, the dispatch policy decides nothing."""
    streams: dict[str | None, set[str]] = {}
    for op in program.ops:
        if op.kind != "copy":
            streams.setdefault(op.part, set()).add(op.stream)
    return any(len(waiting) > 1 for waiting in streams.values())
