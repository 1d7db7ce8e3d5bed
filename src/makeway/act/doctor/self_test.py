"""The self-test: tries every control that can be tried here, and says why the rest was not.

Child processes measure; makeway.act.doctor.verdicts judges.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from makeway.act.doctor.certificate import Step
from makeway.act.doctor.children import Output, run_children
from makeway.act.doctor.facts import Machine
from makeway.act.doctor.samples import Line, PaddedRun, sampled_device
from makeway.act.doctor.settled import (
    judge_beside,
    judge_cost,
    judge_occupancy,
    judge_overlap,
    judge_own_table,
    judge_rates,
    own_table,
    settled,
)
from makeway.act.doctor.verdicts import (
    Check,
    ShimCounts,
    Verdict,
    judge_copy,
    judge_direct,
    judge_partition,
    judge_priority,
    judge_residency,
    judge_shim,
    judge_threads,
)
from makeway.act.doctor.works import absent
from makeway.model.residency import pad_range
from makeway.model.validate.run import validate
from makeway.values.control import SmemPad
from makeway.values.device import load_device
from makeway.values.errors import MakewayError
from makeway.values.plan import Plan

KERNEL = "makeway_hold"  # makeway.act.doctor.kernels.NAME, without loading Triton
_PROBE = "makeway.act.doctor.gpu_probe"
RANKS = 2
TIMEOUT_S = 120.0
_COST_UNDER_SHIM = "launch cost under the shim"
SHIM_BLOCKS = 2  # per SM, under the shim

CPU_CHECKS = (
    Check(name="partition=1", platform="cpu", control="partition", route="python"),
    Check(name="own-cores", platform="cpu", control="own-cores", route="python"),
    Check(name="priority", platform="cpu", control="priority", route="python"),
    Check(name="direct copies", platform="cpu", control="copy-engine", route="python"),
)
GPU_CHECKS = (
    Check(name="residency", platform="cuda", control="pad", route="python"),
    Check(name="graph", platform="cuda", control="pad", route="graph"),
    Check(name="shim", platform="cuda", control="pad", route="run"),
    Check(name="priority", platform="cuda", control="priority", route="python"),
    Check(name="partition", platform="cuda", control="partition", route="python"),
    Check(name="copies", platform="cuda", control="copy-engine", route="python"),
)
HARDWARE_CHECKS = tuple(
    Check(name=name, platform="cuda", control="model", route="*")
    for name in ("occupancy", "beside", "launch cost", "rates", "overlap", "own table")
)
ROCM_CHECK = Check(name="all", platform="rocm", control="*", route="*")
_NVIDIA_ONLY = ("graph", "shim", "occupancy", "launch cost")
ROCM_CHECKS = tuple(
    replace(check, platform="rocm") for check in (*GPU_CHECKS, *HARDWARE_CHECKS) if check.name not in _NVIDIA_ONLY
)
BUDGET_S = 600.0  # of all checks on a GPU
_LIMITS_S = {"overlap": 240.0}  # a check has TIMEOUT_S otherwise
_MODULES = {
    "occupancy": "makeway.act.doctor.driver_probe",
    "launch cost": "makeway.act.doctor.driver_probe",
    "overlap": "makeway.act.doctor.overlap_probe",
}
_JUDGED_LATER = ("shim", "own table")  # from what other checks measured


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """What was proved, when and on what."""

    date: str  # UTC
    verdicts: tuple[Verdict, ...]
    versions: Mapping[str, str]  # of what was loaded on the GPU; empty where nothing was
    steps: tuple[Step, ...] = ()  # the raw data of the GPU's checks

    SHOWN: ClassVar[tuple[str, ...]] = ("settled",)

    @property
    def settled(self) -> dict[str, str]:
        """The open questions that this run answered, by case."""
        return settled([run for step in self.steps for line in step.lines for run in line.beside or ()])

    @property
    def tested(self) -> bool:
        return any(verdict.status != "not tested" for verdict in self.verdicts)

    @property
    def failed(self) -> bool:
        return any(verdict.status == "failed" for verdict in self.verdicts)


def run_self_test(machine: Machine, *, progress: Callable[[str], None] = lambda stage: None) -> SelfTest:
    """Try everything: some seconds on a CPU host, a few more on a GPU."""
    progress("CPU ranks")
    verdicts = list(cpu_verdicts(machine))
    outputs: dict[str, Output] = {}
    if absent(machine, "rocm") is None:
        outputs = _gpu_outputs(machine, ROCM_CHECKS, progress)
        verdicts += gpu_verdicts(machine, outputs, ROCM_CHECKS)
    else:
        outputs = _gpu_outputs(machine, (*GPU_CHECKS, *HARDWARE_CHECKS), progress)
        verdicts += gpu_verdicts(machine, outputs)
        verdicts.append(ROCM_CHECK.untested(absent(machine, "rocm") or ""))
    progress("")
    versions = next((line.versions for output in outputs.values() for line in output.lines if line.versions), {})
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    steps = tuple(Step(name=name, lines=output.lines, trouble=output.trouble) for name, output in outputs.items())
    return SelfTest(date=date, verdicts=tuple(verdicts), versions=versions, steps=steps)


def proof(tested: SelfTest | None, machine: Machine, platform: str, control: str, route: str) -> str:
    """The proof of a control on a platform: this run's, or that there is none."""
    gpu = platform != "cpu"
    where = (machine.nvidia.names[:1] or ("",))[0] if gpu else "this host"
    statuses = {
        verdict.status
        for verdict in (tested.verdicts if tested else ())
        if (verdict.platform, verdict.control, verdict.route) == (platform, control, route)
    } - {"not tested"}
    if tested and statuses:
        return f"{'FAILED' if 'failed' in statuses else 'proved'} here on {where}, {tested.date}"
    return "not yet run on hardware" if gpu else "not tested in this run"


# --- ranks of this host --------------------------------------------------------------------------


def cpu_verdicts(machine: Machine) -> tuple[Verdict, ...]:
    """Affinity, priority and direct copies on two real ranks."""
    if reason := absent(machine, "cpu"):
        return tuple(check.untested(reason) for check in CPU_CHECKS)
    with tempfile.TemporaryDirectory(prefix="makeway-") as place:
        meeting = str(Path(place) / "meeting")
        arguments = [(str(rank), str(RANKS), meeting) for rank in range(RANKS)]
        outputs = run_children(
            "makeway.act.doctor.cpu_rank", arguments, timeout_s=TIMEOUT_S, environ=_alone(os.environ)
        )
    if trouble := next((output.trouble for output in outputs if output.trouble), None):
        return tuple(check.broken(f"a rank failed: {trouble}") for check in CPU_CHECKS)
    ranks = [line.rank for output in outputs for line in output.lines if line.rank is not None]
    *of_threads, direct = CPU_CHECKS
    return (*(judge_threads(check, ranks) for check in of_threads), judge_direct(direct, ranks))


def _alone(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that tie a child to another job or apply a plan to it."""
    job = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LD_PRELOAD")
    return {name: value for name, value in environ.items() if name not in job and not name.startswith("MAKEWAY_")}


# --- the GPU -------------------------------------------------------------------------------------


def _gpu_outputs(
    machine: Machine, checks: Sequence[Check], progress: Callable[[str], None] = lambda stage: None
) -> dict[str, Output]:
    """The output of one measuring process per check, so that a driver error stays in its process.

    None is started where that is pointless, after the first one could not even report its versions, or when the time
    of all checks is over.
    """
    outputs: dict[str, Output] = {}
    if _no_gpu_test(machine, checks[0].platform):
        return outputs
    ends = time.monotonic() + BUDGET_S
    names = [check.name for check in checks if check.name not in _JUDGED_LATER]
    for name in ("versions", *names):
        left = ends - time.monotonic()
        if left < 1:
            outputs[name] = Output(lines=(), trouble=f"the {BUDGET_S:g} s of all checks are over")
            continue
        progress(f"GPU: {name}")
        arguments = (checks[0].platform,) if name == "overlap" else (name,)
        limit = min(_LIMITS_S.get(name, TIMEOUT_S), left)
        (outputs[name],) = run_children(
            _MODULES.get(name, _PROBE), (arguments,), timeout_s=limit, environ=_alone(os.environ)
        )
        if outputs["versions"].trouble:
            break
        if name == "launch cost" and outputs[name].outcome(name) is not None:
            outputs[_COST_UNDER_SHIM] = _cost_under_shim(min(TIMEOUT_S, left))
    return outputs


def gpu_verdicts(
    machine: Machine, outputs: Mapping[str, Output], checks: Sequence[Check] = (*GPU_CHECKS, *HARDWARE_CHECKS)
) -> tuple[Verdict, ...]:
    """The checks on the first GPU, by what was measured there."""
    reason = _no_gpu_test(machine, checks[0].platform)
    if reason is None and (trouble := outputs["versions"].trouble):
        reason = f"torch cannot use the GPU: {trouble}"
    if reason is not None:
        return tuple(check.untested(reason) for check in checks)
    return tuple(_gpu_verdict(check, machine, outputs) for check in checks)


def _gpu_verdict(check: Check, machine: Machine, outputs: Mapping[str, Output]) -> Verdict:
    match check.name:
        case "shim":
            return _shim_verdict(check, machine, outputs["residency"])
        case "launch cost":
            return _cost_verdict(check, outputs)
        case "own table":
            return _own_table_verdict(check, outputs)
        case _:
            return judged(check, outputs[check.name])


def _no_gpu_test(machine: Machine, platform: str = "cuda") -> str | None:
    if reason := absent(machine, "rocm" if platform == "rocm" else "cuda"):
        return reason
    if machine.torch is None:
        return "the self-test launches through torch, which is not installed: pip install 'makeway[torch]'"
    if (machine.torch.hip if platform == "rocm" else machine.torch.cuda) is None:
        return f"torch {machine.torch.version} was built without {'HIP' if platform == 'rocm' else 'CUDA'}"
    if machine.triton is None:
        return "the self-test's kernel needs Triton, which is not installed: pip install 'makeway[triton]'"
    return None


def judged(check: Check, output: Output) -> Verdict:
    """The verdict on what the measuring process printed for a check, or on its silence."""
    line = output.outcome(check.name)
    if line is None:
        ended = output.trouble or "it printed nothing"
        if output.began(check.name):
            return check.broken(f"the measuring process ended during this check: {ended}")
        return check.untested(f"the measuring process ended before this check: {ended}")
    return _judged_line(check, line)


def _judged_line(check: Check, line: Line) -> Verdict:
    if line.refused is not None:
        return check.untested(line.refused)
    if line.padded is not None:
        return judge_residency(check, line.padded)
    if line.priority is not None:
        return judge_priority(check, line.priority)
    if line.partition is not None:
        return judge_partition(check, line.partition)
    if line.driver is not None:
        return judge_occupancy(check, line.driver)
    if line.beside is not None:
        return judge_beside(check, line.beside)
    if line.rates is not None:
        return judge_rates(check, line.rates)
    if line.document is not None:
        return judge_overlap(check, line.document)
    assert line.copy is not None
    return judge_copy(check, line.copy)


def _cost_verdict(check: Check, outputs: Mapping[str, Output]) -> Verdict:
    bare = outputs[check.name].outcome(check.name)
    if bare is None or bare.cost is None:
        return judged(check, outputs[check.name])
    output = outputs[_COST_UNDER_SHIM]
    shim = output.outcome(check.name)
    if shim is None or shim.cost is None:
        return check.untested(f"not measured under the shim: {(shim and shim.refused) or output.trouble}")
    return judge_cost(check, bare.cost, shim.cost)


def _own_table_verdict(check: Check, outputs: Mapping[str, Output]) -> Verdict:
    """The model against the overlap that was just measured: an out-of-sample test of it."""
    line = outputs["overlap"].outcome("overlap")
    if line is None or not (line.document or {}).get("cells"):
        return check.untested("the overlap bench gave no table")
    versions = outputs["versions"].outcome("versions")
    assert line.document is not None
    try:
        device = load_device((versions.versions or {}).get("device", "") if versions else "").name
        with tempfile.TemporaryDirectory(prefix="makeway-") as place:
            table = Path(place) / "table.csv"
            table.write_text(own_table(device, line.document))
            validation = validate(data=table)
    except MakewayError as error:
        return check.untested(f"the model does not cover it: {' '.join(str(error).split())}")
    return judge_own_table(check, validation)


def _cost_under_shim(limit_s: float) -> Output:
    try:
        with _shim_environment(Plan(controls=(SmemPad(1024, KERNEL),))) as environ:
            arguments = (("launch cost",),)
            (output,) = run_children(_MODULES["launch cost"], arguments, timeout_s=limit_s, environ=environ)
            return output
    except MakewayError as error:
        return Output(lines=(), trouble=" ".join(str(error).split()))


@contextmanager
def _shim_environment(plan: Plan) -> Iterator[dict[str, str]]:
    """The environment of a child under the shim; its receipts are in MAKEWAY_RECEIPTS until the end."""
    from makeway.act.preload.build import library
    from makeway.act.preload.rules import encode_rules, rules_of

    with tempfile.TemporaryDirectory(prefix="makeway-") as place:
        rules, receipts = Path(place) / "rules", Path(place) / "receipts"
        receipts.mkdir()
        rules.write_bytes(encode_rules(rules_of(plan)))
        yield _alone(os.environ) | {
            "LD_PRELOAD": str(library()),
            "MAKEWAY_RULES": str(rules),
            "MAKEWAY_RECEIPTS": str(receipts),
        }


def _shim_verdict(check: Check, machine: Machine, output: Output) -> Verdict:
    """The unpadded kernel in a child under the shim, against the shim's receipts and the residency model."""
    line = output.outcome("residency")
    if line is None or not line.padded:
        return check.untested("the kernel could not be measured without the shim")
    if machine.compiler is None and not machine.shim_prebuilt:
        return check.untested("the launch shim is compiled on first use, and no C compiler was found")
    try:
        return _under_shim(check, line.padded[0])
    except MakewayError as error:
        return check.untested(" ".join(str(error).split()))


def _under_shim(check: Check, plain: PaddedRun) -> Verdict:
    from makeway.act.preload.receipts import read_receipts

    wanted = pad_range(sampled_device(plain.device, plain.limits), plain.block, SHIM_BLOCKS)
    if wanted is None:
        return check.untested(f"no pad brings the kernel to {SHIM_BLOCKS} blocks per SM of {plain.device}")
    pad = wanted.smallest_bytes
    with _shim_environment(Plan(controls=(SmemPad(pad, KERNEL),))) as environ:
        (output,) = run_children(_PROBE, (("as launched",),), timeout_s=TIMEOUT_S, environ=environ)
        counts = [
            ShimCounts(
                seen=kernel.seen,
                padded=kernel.padded,
                pad_bytes=kernel.given_bytes - kernel.asked_bytes,
                reason=kernel.reason,
            )
            for process in read_receipts(Path(environ["MAKEWAY_RECEIPTS"]))
            for kernel in process.kernels
            if kernel.kernel == KERNEL
        ]
    line = output.outcome("as launched")
    if line is None or not line.padded:
        return check.broken(f"the child under the shim failed: {output.trouble or (line and line.refused)}")
    return judge_shim(check, replace(line.padded[0], pad_bytes=pad), counts[0] if counts else None)
