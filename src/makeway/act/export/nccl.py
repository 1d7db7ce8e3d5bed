"""Plans for NCCL and RCCL themselves: environment variables, and the CSV file of NCCL's example tuner plugin.

data/support/nccl-environment.toml and nccl-tuner-file.toml name the sources.
"""

from __future__ import annotations

import shlex

from makeway.act.export.values import Entry, Library, Request, Target, thread_choices
from makeway.act.tuner.channels import BYTES_PER_CHANNEL
from makeway.values.control import CommBlocks, CommPriority, CommThreads, Control, CopyEngine, LaunchOrder

MAX_CTAS = 64
MAX_CTAS_BEFORE_2_25 = 32
AMD_HAS_NO_CLUSTERS = "AMD's GPUs have none"


def too_many_blocks(blocks: int, library: Library) -> str | None:
    """Why NCCL would not take so many blocks; RCCL's limit depends on the device and is its own business."""
    most = MAX_CTAS_BEFORE_2_25 if library.before(2, 25) else MAX_CTAS
    if library.name == "nccl" and blocks > most:
        return f"this NCCL takes at most {most} blocks, the plan asks for {blocks}"
    return None


def no_clusters(control: Control, reason: str) -> str:
    """The end of a note where the target carries the blocks of a control and not their cluster."""
    return f"; the cluster is not carried: {reason}" if isinstance(control, CommBlocks) and control.cluster else ""


def zero_cta_note(control: CopyEngine, library: Library, limits: str) -> str:
    """What the zero-CTA policy needs; without it the library uses blocks and says nothing."""
    version = "ROCm 7.12 or later, one node" if library.name == "rccl" else "NCCL 2.28 or later"
    return f"needs {version} and {limits}{own_copies(control)}"


def own_copies(control: CopyEngine) -> str:
    """The end of a note for a plan that says how to copy, which no target takes."""
    plain = control == CopyEngine()
    return "" if plain else "; how it copies is the library's choice: variant and prelaunch are not carried"


# --- environment variables ---------------------------------------------------------------------


def _shell(carried: tuple[Entry, ...], _: Request) -> str:
    settings = dict(setting for entry in carried for setting in entry.settings)
    return "\n".join(f"export {name}={shlex.quote(str(value))}" for name, value in settings.items())


def _variables(control: Control, request: Request, limits: str) -> Entry:
    library = request.library
    match control:
        case CommBlocks():
            return _block_variables(control, library, limits)
        case CommThreads(threads):
            return _thread_variable(control, threads, library, limits)
        case CommPriority():
            return Entry(control=control, settings=(("TORCH_NCCL_HIGH_PRIORITY", 1),), note=limits)
        case LaunchOrder():
            return Entry(control=control, settings=(("CUDA_DEVICE_MAX_CONNECTIONS", 1),), note=limits)
        case CopyEngine():
            by_name = library.name == "nccl" and library.version is not None and not library.before(2, 29)
            policy = ("NCCL_CTA_POLICY", "ZERO" if by_name else 2)
            return Entry(control=control, settings=(policy,), note=zero_cta_note(control, library, limits))
        case _:
            raise AssertionError(f"the support table refuses {control}")


def _block_variables(control: CommBlocks, library: Library, limits: str) -> Entry:
    blocks, cluster = control.blocks, control.cluster
    if reason := too_many_blocks(blocks, library):
        return Entry(control=control, refusal=reason)
    if cluster and library.before(2, 16):
        return Entry(control=control, refusal="clusters need NCCL 2.16 or later")
    word = "NCHANNELS" if library.before(2, 17) else "CTAS"
    settings = [(f"NCCL_MIN_{word}", blocks), (f"NCCL_MAX_{word}", blocks)]
    note = limits
    if library.name == "rccl":
        note += no_clusters(control, AMD_HAS_NO_CLUSTERS)
    elif cluster:
        settings.append(("NCCL_CGA_CLUSTER_SIZE", cluster))
        note += "; clusters exist from compute capability 9.0 on, and only where they divide the blocks of a launch"
    if library.path == "sendrecv":
        settings += [("NCCL_MIN_P2P_NCHANNELS", blocks), ("NCCL_MAX_P2P_NCHANNELS", blocks)]
        note += "; the two variables for send and receive are NCCL's own, but not in its guide"
    elif library.name == "nccl":
        note += "; all-to-all by send and receive is not bound by it (NVIDIA/nccl issue 1598)"
    else:
        note += "; RCCL releases before ROCm/rocm-systems pull request 7604 undo it"
    if library.name == "nccl" and library.version is None:
        note += "; needs NCCL 2.17 or later (older: --library nccl-VERSION)"
    return Entry(control=control, settings=tuple(settings), note=note)


def _thread_variable(control: Control, threads: int, library: Library, limits: str) -> Entry:
    choices, path = thread_choices(library)
    choice = next((choice for choice in choices if choice.threads == threads), None)
    if choice is None:
        offered = ", ".join(str(choice.threads) for choice in choices) or "none"
        return Entry(control=control, refusal=f"{path} has no blocks of {threads} threads; its block sizes: {offered}")
    if choice.setting is None:
        return Entry(control=control, note=f"{path} takes so many by itself on fast links")
    name, _, value = choice.setting.partition("=")
    return Entry(control=control, settings=((name, value),), note=f"needs collectives on {path}: {limits}")


ENV = Target(carrier="NCCL environment", entry=_variables, body=_shell)


# --- the CSV file of NCCL's example tuner plugin ------------------------------------------------

COLUMNS = ("collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels", "nNodes", "nRanks")
TUNED = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
LARGEST = 2**64 - 1  # the plugin reads sizes with strtoull
_ANY = -1
NO_TUNED_CLUSTERS = "a tuner has no say in it"
_ALGORITHMS = ("ring", "tree", "nvls", "pat")


def _rows(carried: tuple[Entry, ...], request: Request) -> str:
    """Rows for every collective, from the size at which all its channels have work.

    Smaller calls keep NCCL's algorithm and protocol (LL, LL128). A ring row follows a row whose algorithm may be
    unavailable.
    """
    if not carried:
        return ""
    channels = int(dict(setting for entry in carried for setting in entry.settings)["channels"])
    smallest = channels * BYTES_PER_CHANNEL
    paths = list(dict.fromkeys((_tuned_path(request.library), ("ring", "simple"))))
    rows = [
        ",".join(str(part) for part in (collective, smallest, LARGEST, algorithm, protocol, channels, _ANY, _ANY))
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


def _channels(control: Control, request: Request, limits: str) -> Entry:
    assert isinstance(control, CommBlocks)
    reason = too_many_blocks(control.blocks, request.library)
    if _tuned_path(request.library) is None:
        reason = f"the plugin does not decide about {request.library.path}; try makeway export --to env"
    if reason:
        return Entry(control=control, refusal=reason)
    smallest = control.blocks * BYTES_PER_CHANNEL // 1024
    note = (
        f"{_plugin_place(request.library)}; {limits}; calls below {smallest} KiB keep NCCL's algorithm and protocol, "
        f"but this plugin leaves them one channel{no_clusters(control, NO_TUNED_CLUSTERS)}"
    )
    return Entry(control=control, settings=(("channels", control.blocks),), note=note)


def _plugin_place(library: Library) -> str:
    """Where NCCL's sources keep the plugin."""
    old, new = "ext-tuner/example", "plugins/tuner/example"
    if library.version is None or library.version[:2] == (2, 28):
        return f"needs NCCL 2.27.5 or later and its example plugin ({old} before 2.29, then {new})"
    return f"needs NCCL's example plugin ({old if library.before(2, 28) else new})"


NCCL_TUNER = Target(carrier="NCCL tuner file", entry=_channels, body=_rows)
