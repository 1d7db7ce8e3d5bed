"""Two ways to score a set of controls: quickly, to search; and by the judge, whose figures are printed.

The judge is `simulate` with its default settings: the answer that every other command gives. The search uses the fluid
engine with equal block times, which only ranks candidates; none of its times is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from makeway.decide.planning.deadlock import program_risk
from makeway.model.residency import capacity, room_left
from makeway.model.simulate.compile import compile_program
from makeway.model.simulate.fluid import fluid_run
from makeway.model.simulate.policies import DISPATCHES, HBM_POLICIES, Dispatch
from makeway.model.simulate.predict import Prediction, Settings, simulate, vendor_dispatch
from makeway.model.simulate.program import EngineOp, Program
from makeway.values.control import Control
from makeway.values.device import Device
from makeway.values.errors import MakewayError
from makeway.values.timeline import share_of_ideal
from makeway.values.workload import Workload

Controls = tuple[Control, ...]
Progress = Callable[[str], None]
# Where the fluid engine leaves a program to a slower one, its kernels are thinned to so many waves:
SEARCH_WAVES, KERNEL_WAVES = 60, 6  # of all kernels, and of one


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A set of controls and its predicted time."""

    controls: Controls
    t_ns: float


def dispatch_policies(device: Device, only: Dispatch | None = None) -> tuple[Dispatch, ...]:
    """The vendor's dispatch policy, then the others that the device may follow; or `only` that one.

    NVIDIA: strict or back-fill; Hopper and later are unconfirmed. AMD, and devices with a fitted policy: one.
    """
    if only is not None:
        return (only,)
    vendor = vendor_dispatch(device)
    return (vendor, DISPATCHES["backfill"]) if vendor.name == "strict" else (vendor,)


def judged(
    workload: Workload, device: Device, controls: Iterable[Control] = (), dispatch: Dispatch | None = None
) -> Prediction:
    """What `makeway simulate` says; None: under the vendor's dispatch policy."""
    return simulate(workload, device, tuple(controls), None if dispatch is None else Settings(dispatch=dispatch))


class Judge:
    """Predictions of one workload on one device, each made once, under the policies that the device may follow."""

    def __init__(
        self, workload: Workload, device: Device, only: Dispatch | None = None, progress: Progress | None = None
    ) -> None:
        self.workload = workload
        self.device = device
        self.policies = dispatch_policies(device, only)
        self._only = only
        self._progress = progress
        self._known: dict[tuple[Controls, str], Prediction | str] = {}

    @property
    def evaluations(self) -> int:
        return len(self._known)

    def attempt(self, controls: Controls, policy: Dispatch | None = None) -> Score | str:
        """The score, or why there is none: the controls cannot run here, or the collectives could deadlock."""
        prediction = self._attempt(controls, policy or self.policies[0])
        return prediction if isinstance(prediction, str) else Score(controls=controls, t_ns=prediction.t_ns)

    def score(self, controls: Controls, policy: Dispatch | None = None) -> Score:
        """The score of controls that are known to run."""
        return Score(controls=controls, t_ns=self.prediction(controls, policy).t_ns)

    def prediction(self, controls: Controls, policy: Dispatch | None = None) -> Prediction:
        policy = policy or self.policies[0]
        known = self._known.get((controls, policy.name))
        if not isinstance(known, Prediction):
            known = self._known[controls, policy.name] = self._simulated(controls, policy)
        return known

    def knows(self, controls: Controls) -> bool:
        """Whether the answer under the vendor's policy is there already."""
        return (controls, self.policies[0].name) in self._known

    @cached_property
    def baseline(self) -> Prediction:
        """The workload without controls, and its isolated times."""
        return self.prediction(())

    @cached_property
    def own_risk(self) -> str | None:
        """The deadlock risk of the workload without any control."""
        return program_risk(self._program(()))

    def share_of_ideal(self, t_ns: float) -> float | None:
        """The share of ideal; None, too, where recorded launches make the whole longer than its parts (host-bound)."""
        base = self.baseline
        if base.t_ns > base.t_sequential_ns and any(op.launched_ns for op in self.workload.operations):
            return None
        return share_of_ideal(
            t_sequential=base.t_sequential_ns, t=t_ns, t_compute=base.t_compute_ns, t_comm=base.t_comm_ns
        )

    def _attempt(self, controls: Controls, policy: Dispatch) -> Prediction | str:
        key = (controls, policy.name)
        if key not in self._known:
            try:
                risk = program_risk(self._program(controls)) if controls else None
                unsafe = risk is not None and risk != self.own_risk
                self._known[key] = str(risk) if unsafe else self._simulated(controls, policy)
            except MakewayError as error:
                self._known[key] = str(error)
        return self._known[key]

    def _program(self, controls: Controls) -> Program:
        return compile_program(self.workload, self.device, controls, dispatch=self.policies[0]).program

    def _simulated(self, controls: Controls, policy: Dispatch) -> Prediction:
        if self._progress:
            self._progress(f"simulating candidate {len(self._known) + 1} under {policy.name} dispatch")
        vendors = policy == self.policies[0] and self._only is None
        return judged(self.workload, self.device, controls, None if vendors else policy)


class QuickScorer:
    """Times for the search: the fluid engine with equal block times, under one dispatch policy."""

    def __init__(self, workload: Workload, device: Device, policy: Dispatch, own_risk: str | None = None) -> None:
        self.workload, self.device, self.policy = workload, device, policy
        self._own_risk = own_risk
        self._times: dict[object, float] = {}

    def time_ns(self, controls: Controls) -> float | None:
        """The time of a set of controls; None where it cannot run, or could deadlock."""
        try:
            program = compile_program(self.workload, self.device, controls, dispatch=self.policy).program
            risk = program_risk(program)
            if risk is not None and risk != self._own_risk:
                return None
            key = (program.ops, program.sites)
            if key not in self._times:
                self._times[key] = self._run(program)
            return self._times[key]
        except MakewayError:
            return None

    @cached_property
    def crowded(self) -> bool:
        """Whether kernels, or collectives, run at once: the fluid engine leaves such programs to the class engine."""
        program = compile_program(self.workload, self.device, (), dispatch=self.policy).program
        return self._fluid(program) is not None

    def _run(self, program: Program) -> float:
        if self.crowded:
            program = _few_waves(program)
        return fluid_run(program, full="class", dispatch=self.policy, hbm=HBM_POLICIES["proportional"]).end_ns

    def _fluid(self, program: Program) -> str | None:
        return fluid_run(
            _few_waves(program), full="class", dispatch=self.policy, hbm=HBM_POLICIES["proportional"]
        ).fallback


def _few_waves(program: Program) -> Program:
    """The program with few waves in all, so that its score costs the same however finely a control cuts it."""
    kernels = sum(op.kind == "kernel" for op in program.ops)
    waves = max(1, min(KERNEL_WAVES, SEARCH_WAVES // max(kernels, 1)))
    return replace(program, ops=tuple(_thinned(program, op, waves) for op in program.ops))


def _thinned(program: Program, op: EngineOp, waves: int) -> EngineOp:
    """A kernel with about so many waves: fewer blocks, each with more work."""
    if op.kind != "kernel" or op.block is None:
        return op
    slots = sum(site.sms for site in program.sites if site.part == op.part) * capacity(
        op.block, room_left(program.sm, ())
    )
    times = op.blocks // (max(slots, 1) * waves)
    if times < 2:
        return op
    blocks = -(-op.blocks // times)
    return replace(op, blocks=blocks, work_ns=op.work_ns * op.blocks / blocks)
