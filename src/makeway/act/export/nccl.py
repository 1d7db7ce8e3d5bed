"""Plans for NCCL and RCCL themselves: environment variables, and the CSV file of NCCL's example tuner plugin.

Sources: NCCL user guide, "Environment Variables" (which version brought which variable); RCCL, "RCCL environment
variables"; PyTorch, "ProcessGroupNCCL Environment Variables"; NVIDIA/nccl, plugins/tuner/example.
"""

from __future__ import annotations

import shlex
from typing import assert_never

from makeway.act.export.values import Answer, Carried, Exported, Library, NotCarried, exported, thread_choices
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Control,
    CopyEngine,
    LaunchOrder,
    SmemPad,
    SmPartition,
    TileChoice,
)
from makeway.values.plan import Plan

MAX_CTAS = 64
MAX_CTAS_BEFORE_2_25 = 32

AT_LAUNCH = "a pad belongs to the launch of a compute kernel, and this target only reaches communication"
IN_KERNEL = "a tile is compiled into the compute kernel that offers it"
IN_PROGRAM = "the program splits its collectives itself; no setting here does"
BY_ENV = "try makeway export --to env"


# --- environment variables ---------------------------------------------------------------------


def env(plan: Plan, library: Library) -> Exported:
    """A file for `.` in a POSIX shell: variables that must be there before the program starts."""
    return exported(plan, "env", (_by_variable(control, library) for control in plan.controls), _shell)


def _shell(carried: tuple[Carried, ...]) -> str:
    settings = dict(setting for answer in carried for setting in answer.settings)
    return "\n".join(f"export {name}={shlex.quote(str(value))}" for name, value in settings.items())


def _by_variable(control: Control, library: Library) -> Answer:
    match control:
        case CommBlocks(blocks):
            return _blocks_by_variable(control, blocks, library)
        case CommThreads(threads):
            return _threads_by_variable(control, threads, library)
        case CommPriority():
            return Carried(
                control=control,
                settings=(("TORCH_NCCL_HIGH_PRIORITY", 1),),
                note="needs PyTorch's process groups; a program with streams of its own must ask for priority itself",
            )
        case CopyEngine():
            return _copies_by_variable(control, library)
        case LaunchOrder() if library.name == "rccl":
            return NotCarried(control=control, reason="no variable of ROCm is known to keep launch order")
        case LaunchOrder():
            return Carried(
                control=control,
                settings=(("CUDA_DEVICE_MAX_CONNECTIONS", 1),),
                note="needs a program that launches the collective first: the variable only keeps the program's own "
                "order; not with FSDP, which wants several connections",
            )
        case SmPartition():
            return NotCarried(
                control=control,
                reason="no variable sets SMs apart inside one process; MPS percentages and CU masks of a whole process "
                "hold compute and communication alike",
            )
        case SmemPad():
            return NotCarried(control=control, reason=AT_LAUNCH)
        case TileChoice():
            return NotCarried(control=control, reason=IN_KERNEL)
        case Chunks():
            return NotCarried(control=control, reason=IN_PROGRAM)
        case _:
            assert_never(control)


def too_many_blocks(blocks: int, library: Library) -> str | None:
    """Why NCCL would not take so many blocks; RCCL's limit depends on the device and is its own business."""
    most = MAX_CTAS_BEFORE_2_25 if library.before(2, 25) else MAX_CTAS
    if library.name == "nccl" and blocks > most:
        return f"this NCCL takes at most {most} blocks, the plan asks for {blocks}"
    return None


def _blocks_by_variable(control: Control, blocks: int, library: Library) -> Answer:
    if reason := too_many_blocks(blocks, library):
        return NotCarried(control=control, reason=reason)
    least, most = "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"
    if library.before(2, 17):
        least, most = "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"
    settings = [(least, blocks), (most, blocks)]
    note = "small messages may still use fewer"
    if library.path == "sendrecv":
        settings += [("NCCL_MIN_P2P_NCHANNELS", blocks), ("NCCL_MAX_P2P_NCHANNELS", blocks)]
        note += "; the two variables for send and receive are NCCL's own, but not in its guide"
    elif library.name == "nccl":
        note += "; all-to-all by send and receive is not bound by it (NVIDIA/nccl issue 1598)"
    else:
        note += "; RCCL releases before ROCm/rocm-systems pull request 7604 undo it"
    if library.name == "nccl" and library.version is None:
        note += "; needs NCCL 2.17 or later (older: --nccl VERSION)"
    return Carried(control=control, settings=tuple(settings), note=note)


def _threads_by_variable(control: Control, threads: int, library: Library) -> Answer:
    if library.name == "rccl":
        return NotCarried(control=control, reason="RCCL's blocks have one size on a device; no setting is known")
    choices, path = thread_choices(library)
    choice = next((choice for choice in choices if choice.threads == threads), None)
    if choice is None:
        offered = ", ".join(str(choice.threads) for choice in choices) or "none"
        return NotCarried(
            control=control, reason=f"{path} cannot be given {threads} threads; its block sizes: {offered}"
        )
    if choice.setting is None:
        return Carried(control=control, note=f"{path} takes so many by itself on fast links")
    name, _, value = choice.setting.partition("=")
    return Carried(
        control=control,
        settings=((name, value),),
        note=f"needs collectives on {path}: NCCL adds threads of its own, and other paths keep their block size",
    )


def _copies_by_variable(control: CopyEngine, library: Library) -> Answer:
    if reason := no_zero_cta(library):
        return NotCarried(control=control, reason=reason)
    by_name = library.name == "nccl" and library.version is not None and not library.before(2, 29)
    return Carried(
        control=control,
        settings=(("NCCL_CTA_POLICY", "ZERO" if by_name else 2),),
        note=zero_cta_note(control, library),
    )


def no_zero_cta(library: Library) -> str | None:
    """Why the library has no collectives on copy engines, if it is known to have none."""
    return "NCCL has no zero-CTA policy before 2.28" if library.before(2, 28) else None


def zero_cta_note(control: CopyEngine, library: Library) -> str:
    """What the zero-CTA policy asks for; without it the library uses blocks and says nothing."""
    where = "ROCm 7.12 or later, one node" if library.name == "rccl" else "NCCL 2.28 or later"
    note = f"needs {where} and buffers registered as symmetric windows; all-gather, all-to-all, gather and scatter only"
    return note + own_copies(control)


def own_copies(control: CopyEngine) -> str:
    """The end of a note where the plan says how to copy, which no target can be told."""
    plain = control == CopyEngine()
    return "" if plain else "; how it copies is the library's choice: variant and prelaunch are not carried"


# --- the CSV file of NCCL's example tuner plugin ------------------------------------------------

COLUMNS = ("collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels", "nNodes", "nRanks")
TUNED = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
LARGEST = 2**64 - 1  # the plugin reads sizes with strtoull
_ANY = -1
_ALGORITHMS = ("ring", "tree", "nvls", "pat")


def nccl_tuner(plan: Plan, library: Library) -> Exported:
    """The file that NCCL_TUNER_CONFIG_FILE names.

    The plugin starts each call from one channel and keeps that where no row applies, so every collective it is
    asked about gets a row for all sizes, and a ring row behind one whose algorithm may not be there.
    """
    answers = [_by_tuner(control, library) for control in plan.controls]
    return exported(plan, "nccl-tuner", answers, lambda carried: _rows(carried, library))


def _rows(carried: tuple[Carried, ...], library: Library) -> str:
    if not carried:
        return ""
    channels = dict(setting for answer in carried for setting in answer.settings)["channels"]
    paths = list(dict.fromkeys((_tuned_path(library), ("ring", "simple"))))
    rows = [
        ",".join(str(part) for part in (collective, 0, LARGEST, algorithm, protocol, channels, _ANY, _ANY))
        for collective in TUNED
        for algorithm, protocol in filter(None, paths)
    ]
    return "\n".join([f"# {','.join(COLUMNS)}", *rows])


def _tuned_path(library: Library) -> tuple[str, str] | None:
    """Algorithm and protocol in the plugin's words; ring and simple where the plan names none."""
    if library.path is None:
        return ("ring", "simple")
    algorithm, _, protocol = library.path.partition("-")
    return (algorithm, protocol) if algorithm in _ALGORITHMS and protocol in ("simple", "ll", "ll128") else None


def _by_tuner(control: Control, library: Library) -> Answer:
    match control:
        case CommBlocks(blocks):
            reason = too_many_blocks(blocks, library)
            if library.name == "rccl":
                reason = f"checked against NCCL's plugin only; {BY_ENV}"
            elif _tuned_path(library) is None:
                reason = f"the plugin does not decide about {library.path}; {BY_ENV}"
            if reason:
                return NotCarried(control=control, reason=reason)
            return Carried(
                control=control,
                settings=(("channels", blocks),),
                note="needs NCCL_TUNER_PLUGIN set to NCCL's example plugin (plugins/tuner/example) and "
                "NCCL_TUNER_CONFIG_FILE to this file; its rows also choose the algorithm and the protocol",
            )
        case CommThreads() | CommPriority() | CopyEngine() | LaunchOrder():
            return NotCarried(
                control=control, reason=f"a tuner chooses algorithm, protocol and channels only; {BY_ENV}"
            )
        case SmPartition():
            return NotCarried(control=control, reason="a tuner chooses channels, not the SMs they run on")
        case SmemPad():
            return NotCarried(control=control, reason=AT_LAUNCH)
        case TileChoice():
            return NotCarried(control=control, reason=IN_KERNEL)
        case Chunks():
            return NotCarried(control=control, reason=IN_PROGRAM)
        case _:
            assert_never(control)
