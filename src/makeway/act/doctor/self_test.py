"""The self-test: every control that can be tried here is tried, and the rest says why it was not.

Measuring happens in processes of their own, judging here, by makeway.act.doctor.verdicts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from makeway import __version__
from makeway.act.doctor.children import Told, run_children
from makeway.act.doctor.facts import Machine
from makeway.act.doctor.samples import Line, PaddedRun
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
from makeway.values.control import Plan, SmemPad
from makeway.values.device import load_device
from makeway.values.errors import MakewayError

KERNEL = "makeway_hold"  # makeway.act.doctor.kernels.NAME, without loading Triton
_PROBE = "makeway.act.doctor.gpu_probe"
RANKS = 2
TIMEOUT_S = 120.0
SHIM_BLOCKS = 2  # per SM, under the shim

CPU_CHECKS = (
    Check(name="partition=1", platform="cpu", control="SmPartition", way="python"),
    Check(name="priority", platform="cpu", control="CommPriority", way="python"),
    Check(name="direct copies", platform="cpu", control="CopyEngine", way="python"),
)
GPU_CHECKS = (
    Check(name="residency", platform="cuda", control="SmemPad", way="python"),
    Check(name="graph", platform="cuda", control="SmemPad", way="graph"),
    Check(name="shim", platform="cuda", control="SmemPad", way="launcher"),
    Check(name="priority", platform="cuda", control="CommPriority", way="python"),
    Check(name="partition", platform="cuda", control="SmPartition", way="python"),
    Check(name="copies", platform="cuda", control="CopyEngine", way="python"),
)
ROCM_CHECK = Check(name="all", platform="rocm", control="*", way="*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """What was proved, when and on what."""

    date: str  # UTC
    verdicts: tuple[Verdict, ...]
    versions: Mapping[str, str]  # of what was loaded on the GPU; empty where nothing was

    @property
    def tested(self) -> bool:
        return any(verdict.status != "not tested" for verdict in self.verdicts)

    @property
    def failed(self) -> bool:
        return any(verdict.status == "failed" for verdict in self.verdicts)


def self_test(machine: Machine, *, progress: Callable[[str], None] = lambda stage: None) -> SelfTest:
    """Try everything; takes some seconds on a CPU host, and a few more on a GPU."""
    progress("CPU ranks")
    verdicts = list(cpu_verdicts(machine))
    progress("GPU")
    told = _gpu_told(machine)
    verdicts += gpu_verdicts(machine, told)
    rocm = absent(machine, "rocm") or "the self-test's kernel reads registers that only NVIDIA's GPUs have"
    verdicts.append(ROCM_CHECK.untested(rocm))
    versions = next((line.versions for one in told.values() for line in one.lines if line.versions), {})
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return SelfTest(date=date, verdicts=tuple(verdicts), versions=versions)


def certificate(machine: Machine, found: SelfTest) -> dict[str, Any]:
    """The proof as a document: what ran, on what, with which versions, when."""
    return {
        "makeway": __version__,
        "date": found.date,
        "device": (*machine.nvidia.names, *machine.amd.names) or ("CPU host",),
        "driver": machine.nvidia.driver or machine.amd.driver,
        "versions": dict(found.versions),
        "machine": asdict(machine),
        "results": [asdict(verdict) for verdict in found.verdicts],
    }


def proof(found: SelfTest | None, machine: Machine, platform: str, control: str, way: str) -> str:
    """What stands behind a control on a platform: this run's proof, or that there is none."""
    gpu = platform != "cpu"
    where = (machine.nvidia.names[:1] or ("",))[0] if gpu else "this host"
    mine = [
        verdict
        for verdict in (found.verdicts if found else ())
        if (verdict.platform, verdict.control, verdict.way) == (platform, control, way)
        and verdict.status != "not tested"
    ]
    if found and mine:
        if all(verdict.status == "proved" for verdict in mine):
            return f"proved here on {where}, {found.date}"
        return f"FAILED here on {where}, {found.date}"
    return "not yet run on hardware" if gpu else "not tested in this run"


# --- ranks of this host --------------------------------------------------------------------------


def cpu_verdicts(machine: Machine) -> tuple[Verdict, ...]:
    """Affinity, niceness and direct copies on two real ranks."""
    if reason := absent(machine, "cpu"):
        return tuple(check.untested(reason) for check in CPU_CHECKS)
    with tempfile.TemporaryDirectory(prefix="makeway-") as place:
        meeting = str(Path(place) / "meeting")
        words = [(str(rank), str(RANKS), meeting) for rank in range(RANKS)]
        told = run_children("makeway.act.doctor.cpu_rank", words, timeout_s=TIMEOUT_S, environ=_alone(os.environ))
    if trouble := next((one.trouble for one in told if one.trouble), None):
        return tuple(check.broken(f"a rank failed, {trouble}") for check in CPU_CHECKS)
    ranks = [line.rank for one in told for line in one.lines if line.rank is not None]
    partition, priority, direct = CPU_CHECKS
    return (
        judge_threads(partition, partition.name, ranks),
        judge_threads(priority, priority.name, ranks),
        judge_direct(direct, ranks),
    )


def _alone(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would make a child part of another job, or apply a plan to it."""
    job = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LD_PRELOAD")
    return {name: value for name, value in environ.items() if name not in job and not name.startswith("MAKEWAY_")}


# --- the GPU -------------------------------------------------------------------------------------


def _gpu_told(machine: Machine) -> dict[str, Told]:
    """What the measuring processes say, one for each check: an error of the driver stays with a process.

    None is started where there is no use in it, or after the first one could not even tell its versions.
    """
    found: dict[str, Told] = {}
    if _no_gpu_test(machine):
        return found
    for check in ("versions", *(check.name for check in GPU_CHECKS if check.name != "shim")):
        (found[check],) = run_children(_PROBE, ((check,),), timeout_s=TIMEOUT_S, environ=_alone(os.environ))
        if found["versions"].trouble:
            break
    return found


def gpu_verdicts(machine: Machine, told: Mapping[str, Told]) -> tuple[Verdict, ...]:
    """The checks on the first NVIDIA GPU, by what was measured there."""
    reason = _no_gpu_test(machine)
    if reason is None and (trouble := told["versions"].trouble):
        reason = f"torch cannot use the GPU: {trouble}"
    if reason is not None:
        return tuple(check.untested(reason) for check in GPU_CHECKS)
    return tuple(
        _shim_verdict(check, machine, told["residency"]) if check.name == "shim" else judged(check, told[check.name])
        for check in GPU_CHECKS
    )


def _no_gpu_test(machine: Machine) -> str | None:
    if reason := absent(machine, "cuda"):
        return reason
    if machine.torch is None:
        return "the self-test launches through torch, which is not installed: pip install 'makeway[torch]'"
    if machine.torch.cuda is None:
        return f"torch {machine.torch.version} was built without CUDA"
    if machine.triton is None:
        return "the self-test's kernel needs Triton, which is not installed: pip install 'makeway[triton]'"
    return None


def judged(check: Check, told: Told) -> Verdict:
    """The verdict on what the measuring process said of a check, or on its silence."""
    line = told.outcome(check.name)
    if line is None:
        ended = told.trouble or "it said nothing"
        if told.began(check.name):
            return check.broken(f"the measuring process ended in this check, {ended}")
        return check.untested(f"the measuring process ended before this check, {ended}")
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
    assert line.copy is not None
    return judge_copy(check, line.copy)


def _shim_verdict(check: Check, machine: Machine, told: Told) -> Verdict:
    """The unpadded kernel in a child under the shim, against the shim's receipts and the residency model."""
    line = told.outcome("residency")
    if line is None or not line.padded:
        return check.untested("the kernel could not be measured without the shim")
    if machine.compiler is None:
        return check.untested("the launch shim is compiled on first use, and no C compiler was found")
    try:
        return _under_shim(check, line.padded[0])
    except MakewayError as error:
        return check.untested(" ".join(str(error).split()))


def _under_shim(check: Check, plain: PaddedRun) -> Verdict:
    from makeway.act.preload.build import library
    from makeway.act.preload.receipts import read_receipts
    from makeway.act.preload.rules import encode_rules, rules_of

    wanted = pad_range(load_device(plain.device), plain.block, SHIM_BLOCKS)
    if wanted is None:
        return check.untested(f"no pad brings the kernel to {SHIM_BLOCKS} blocks per SM of {plain.device}")
    pad = wanted.smallest_bytes
    with tempfile.TemporaryDirectory(prefix="makeway-") as place:
        rules, receipts = Path(place) / "rules", Path(place) / "receipts"
        receipts.mkdir()
        rules.write_bytes(encode_rules(rules_of(Plan(controls=(SmemPad(pad, KERNEL),)))))
        environ = _alone(os.environ) | {
            "LD_PRELOAD": str(library()),
            "MAKEWAY_RULES": str(rules),
            "MAKEWAY_RECEIPTS": str(receipts),
        }
        (told,) = run_children(_PROBE, (("as launched",),), timeout_s=TIMEOUT_S, environ=environ)
        counts = [
            ShimCounts(
                seen=kernel.seen,
                padded=kernel.padded,
                pad_bytes=kernel.given_bytes - kernel.asked_bytes,
                reason=kernel.reason,
            )
            for one in read_receipts(receipts)
            for kernel in one.kernels
            if kernel.kernel == KERNEL
        ]
    line = told.outcome("as launched")
    if line is None or not line.padded:
        return check.broken(f"the child under the shim failed, {told.trouble or (line and line.refused)}")
    return judge_shim(check, replace(line.padded[0], pad_bytes=pad), counts[0] if counts else None)
