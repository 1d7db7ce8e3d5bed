"""What NCCL itself says that it read and set up: its log lines, as evidence in receipts.

NCCL writes one file per process (NCCL, src/debug.cc: `%h` is the host, `%p` the process). Its lines:

- "NAME set by environment to VALUE" (src/misc/param.cc); "Comm config maxCTAs reset to NCCL_MAX_CTAS=16" (src/init.cc)
- "16 coll channels, ..." (src/init.cc; before 2.19 src/graph/paths.cc)
- "TUNER/Plugin: Using makeway (v5)" (src/plugin/tuner; before 2.27 "Using tuner plugin makeway")
- one per collective (TUNING): "... channel{Lo..Hi}={0..15}" (src/enqueue.cc), "AllGather [Copy Engine]: ..."

RCCL keeps these words. What cannot be read is left out, and a line that is missing proves nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from makeway.act.doctor.gpus import text
from makeway.values.control import CommBlocks, CommThreads, Control, CopyEngine
from makeway.values.errors import printable
from makeway.values.receipt import Receipt, Status

CARRIER = "NCCL environment"
LEVEL, FILE, SUBSYSTEMS = "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"
_PREFIX = "nccl-"
_LINE_BYTES = 1_100  # NCCL cuts its lines at 1,024
_MOST_BYTES = 64 << 20  # of one file; a log of TUNING grows with every collective
_MOST_COMPLAINTS = 8
_MOST_FORMS = 4  # "ZERO", then 2
# A process on another host that lacks the directory would write its log to the program's standard output.
_TO_OTHER_HOSTS = ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "pdsh", "ssh", "deepspeed")

_MESSAGE = re.compile(rb"NCCL (?:INFO|WARN) (.*)")
_SET = re.compile(rb"(NCCL_[A-Z0-9_]{1,60}) set by environment to ([^\s]{1,200})")
_RESET = re.compile(rb"Comm config \w{1,60} reset to (NCCL_[A-Z0-9_]{1,60})=([^\s]{1,200})")
_PARSED = re.compile(rb"Parsed environment variable (NCCL_[A-Z0-9_]{1,60})=([^\s]{1,200}) to ")
_CHANNELS = re.compile(rb"(\d{1,4}) coll channels,")
_TUNER = re.compile(rb"TUNER/Plugin: Using (?:tuner plugin )?(\S{1,100})")
_TUNED = re.compile(rb"channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\}")
_COPIED = b"[Copy Engine]"
_IGNORED = re.compile(
    rb"is too low, leaving it|is too big\. Limiting|is ignored because|cap it to|Invalid config|Unknown CTA"
)
# In complaints NCCL writes some settings by the name of the field.
_FIELDS = {"NCCL_MIN_CTAS": "minCTAs", "NCCL_MAX_CTAS": "maxCTAs", "NCCL_CGA_CLUSTER_SIZE": "cgaClusterSize"}


@dataclass(kw_only=True)
class NcclLog:
    """What the log of one process says."""

    pid: int
    rank: int | None = None
    variables: dict[str, list[str]] = field(default_factory=dict)  # that NCCL read, in every form that it prints
    channels: list[int] = field(default_factory=list)  # of each communicator
    tuner: str | None = None
    collectives: int = 0  # named in the log, which needs subsystem TUNING
    most_channels: int = 0  # of these
    copied: int = 0  # of these, by copy engines
    complaints: list[str] = field(default_factory=list)


# --- asking for a log ---------------------------------------------------------------------------


def log_variables(directory: Path, environ: Mapping[str, str], program: str, *, temporary: bool) -> dict[str, str]:
    """The variables for a log per process in a directory; none where the user has a log, or it could go astray."""
    if any(name in environ for name in (LEVEL, FILE)) or _configured(environ):
        return {}
    if temporary and os.path.basename(program) in _TO_OTHER_HOSTS:
        return {}
    place = str(directory).replace("%", "%%")
    asked = {LEVEL: "INFO", FILE: f"{place}/{_PREFIX}%h-%p"}
    return asked if SUBSYSTEMS in environ else asked | {SUBSYSTEMS: "INIT,ENV"}


def _configured(environ: Mapping[str, str]) -> bool:
    home = environ.get("NCCL_CONF_FILE") or os.path.join(environ.get("HOME", "/"), ".nccl.conf")
    return any(re.search(r"^\s*NCCL_DEBUG", text(Path(path)), re.MULTILINE) for path in (home, "/etc/nccl.conf"))


# --- reading ------------------------------------------------------------------------------------


def read_nccl_logs(directory: Path) -> tuple[NcclLog, ...]:
    """The logs of all processes that left one, by process; other files are left out."""
    logs = (_read(path) for path in sorted(directory.glob(f"{_PREFIX}*")))
    return tuple(log for log in logs if log is not None)


def _read(path: Path) -> NcclLog | None:
    pid = path.name.rpartition("-")[2]
    if not re.fullmatch(r"\d{1,10}", pid):
        return None
    log = NcclLog(pid=int(pid))
    for message in _messages(path):
        _take(log, message)
    return log if log.variables or log.channels or log.collectives else None


def _messages(path: Path) -> Iterator[bytes]:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return
            while file.tell() < _MOST_BYTES and (line := file.readline(_LINE_BYTES)):
                if message := _MESSAGE.search(line):
                    yield message[1]
    except OSError:
        return


def _take(log: NcclLog, message: bytes) -> None:
    if read := _SET.search(message) or _RESET.search(message) or _PARSED.search(message):
        forms = log.variables.setdefault(read[1].decode(), [])
        value = printable(read[2].rstrip(b".").decode(errors="replace"))
        if value not in forms and len(forms) < _MOST_FORMS:
            forms.append(value)
    elif channels := _CHANNELS.search(message):
        log.channels.append(int(channels[1]))
    elif tuner := _TUNER.search(message):
        log.tuner = printable(tuner[1].decode(errors="replace"))
    elif tuned := _TUNED.search(message):
        log.collectives += 1
        log.most_channels = max(log.most_channels, int(tuned[2]) - int(tuned[1]) + 1)
    elif _COPIED in message:
        log.collectives += 1
        log.copied += 1
    elif _IGNORED.search(message) and len(log.complaints) < _MOST_COMPLAINTS:
        log.complaints.append(printable(message.decode(errors="replace").strip()))


# --- receipts -----------------------------------------------------------------------------------

Wanted = Mapping[Control, Mapping[str, str]]  # the variables that a run set for each control


def log_receipts(wanted: Wanted, logs: Sequence[NcclLog]) -> tuple[Receipt, ...]:
    """A receipt for each control and rank whose variables NCCL says that it read, or complains about."""
    by_rank: dict[int | None, list[NcclLog]] = {}
    for log in logs:
        by_rank.setdefault(log.rank, []).append(log)
    return tuple(
        receipt
        for rank, mine in by_rank.items()
        for control, variables in wanted.items()
        if (receipt := _receipt(control, variables, rank, mine)) is not None
    )


def _receipt(
    control: Control, variables: Mapping[str, str], rank: int | None, logs: Sequence[NcclLog]
) -> Receipt | None:
    names = {*variables, *(_FIELDS[name] for name in variables if name in _FIELDS)}
    complaints = [line for log in logs for line in log.complaints if any(name in line for name in names)]
    read = {
        name: wanted if wanted in log.variables[name] else log.variables[name][0]
        for log in logs
        for name, wanted in variables.items()
        if name in log.variables
    }
    if not (read or complaints):
        return None
    said = "NCCL read " + " ".join(f"{name}={value}" for name, value in read.items()) if read else ""
    if complaints:
        status: Status = "no effect"
        detail = "; ".join(filter(None, (said, f"NCCL says: {complaints[0]}")))
    elif read != dict(variables):
        left_out = ", ".join(name for name, value in variables.items() if read.get(name) != value)
        status, detail = "not seen", f"{said}, and its log does not confirm {left_out}"
    else:
        status, detail = _verdict(control, logs)
        detail = f"{said}; {detail}" if detail else said
    numbers = [(f"{name} read", int(value)) for name, value in read.items() if value.isdigit()]
    return Receipt(
        control=control, status=status, detail=detail, carrier=CARRIER, rank=rank, evidence=(*numbers, *_counts(logs))
    )


def _counts(logs: Sequence[NcclLog]) -> Iterator[tuple[str, int]]:
    if channels := [count for log in logs for count in log.channels]:
        yield "communicators", len(channels)
        yield "channels", max(channels)
    if collectives := sum(log.collectives for log in logs):
        yield "collectives in the log", collectives
        yield "copied by engines", sum(log.copied for log in logs)


def _verdict(control: Control, logs: Sequence[NcclLog]) -> tuple[Status, str]:
    """What follows once NCCL has read every variable of the control."""
    channels = [count for log in logs for count in log.channels]
    match control:
        case CommBlocks(blocks) if not channels:
            return "not seen", f"its log names no communicator that would have {blocks} channels"
        case CommBlocks(blocks):
            most = max(channels)
            status: Status = "applied" if most == blocks else "no effect" if most > blocks else "not seen"
            each = f"{len(channels):,} communicators with up to" if len(channels) > 1 else "a communicator of"
            return status, f"it made {each} {most} channels{_largest(logs)}"
        case CommThreads():
            return "applied", ""
        case CopyEngine():
            copied = sum(log.copied for log in logs)
            if copied:
                return "applied", f"{copied:,} collectives went by copy engines"
            return "not seen", f"its log names copies only with {SUBSYSTEMS}=INIT,ENV,TUNING"
        case _:
            return "not seen", ""


def _largest(logs: Sequence[NcclLog]) -> str:
    most = max(log.most_channels for log in logs)
    return f", the largest collective used {most}" if most else ""
