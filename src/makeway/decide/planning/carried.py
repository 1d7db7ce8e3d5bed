"""Which controls a carrier brings to a program: what `plan --for` may choose, how, and by what it is verified.

`--for` takes `run`, which joins all carriers that `makeway run` uses, or an export target. The support table answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Compress,
    Control,
    CopyEngine,
    LaunchOrder,
    OwnCores,
    SmemPad,
    SmPartition,
    TileChoice,
    control_word,
    lossy,
)
from makeway.values.errors import InputError, UnknownNameError, UnsupportedError, suggestion
from makeway.values.plan import Rejected
from makeway.values.support import CONTROL_NAMES, Carrier, Platform, Support, carriers_of, support, support_table

RUN = "run"
_NEEDS_CODE = "needs calls in the program itself (makeway.torch), which `makeway run` does not change"
# What stands for a kind in the list of rejected controls.
EXAMPLES: tuple[Control, ...] = (
    SmemPad(1024), TileChoice(64, 64, 64), CommPriority(), LaunchOrder(), CommBlocks(8), CommThreads(256),
    SmPartition(8), OwnCores(), CopyEngine(), Chunks(2), Compress("fp16"),
)  # fmt: skip
_NCCL = re.compile(r"nccl-(\d+(?:\.\d+)+)")


def destinations() -> tuple[str, ...]:
    """The words of `--for`: `run` and every export target."""
    return (RUN, *sorted(carrier.target for carrier in support_table().values() if carrier.target))


def routes(control: Control, platform: Platform, destination: str | None, libraries: Iterable[str]) -> list[Support]:
    """The rows of the carriers that apply a control there; `destination` None: of any carrier."""
    if destination is None:
        return [support(control, name) for name in carriers_of(control, platform)]
    rows = _rows(control.name, platform, destination)
    return [row for row in rows if row.refusal(platform, _nccl(libraries)) is None]


def unusable(
    platform: Platform,
    *,
    destination: str | None = None,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
    libraries: Iterable[str] = (),
    required: Sequence[Control] = (),
    allow_lossy: bool = False,
) -> tuple[Rejected, ...]:
    """The kinds of control that a plan must not hold, each with the reason; a required one among them is an error.

    Lossy kinds appear only where they are allowed: otherwise nobody considers them.
    """
    for kind in (*only, *exclude):
        if kind not in CONTROL_NAMES:
            raise InputError(f"no control {kind!r}{suggestion(kind, CONTROL_NAMES)}; known: {', '.join(CONTROL_NAMES)}")
    if destination is not None:
        _check(destination, platform)
    version, rejected = _nccl(libraries), []
    for example in EXAMPLES:
        if lossy(example) and not allow_lossy:
            continue
        if example.name in exclude:
            rejected.append(Rejected(control=example, reason="excluded by --exclude"))
        elif only and example.name not in only:
            rejected.append(Rejected(control=example, reason=f"not among --only {', '.join(only)}"))
        elif destination is not None and (reason := _refusal(example, platform, destination, version)):
            rejected.append(Rejected(control=example, reason=f"--for {destination}: {reason}"))
    for control in required:
        for item in rejected:
            if type(item.control) is type(control):
                raise InputError(f"{control_word(control)} is required by --control, but {item.reason}")
    return tuple(rejected)


def _check(destination: str, platform: Platform) -> None:
    if destination not in destinations():
        near = suggestion(destination, destinations())
        raise UnknownNameError(f"no carrier {destination!r} for --for{near}\nKnown: {', '.join(destinations())}")
    if not any(platform in carrier.platforms for carrier in _carriers(destination)):
        others = [word for word in destinations() if any(platform in item.platforms for item in _carriers(word))]
        raise UnsupportedError(f"--for {destination} applies nothing on {platform}; there: {', '.join(others)}")


def _carriers(destination: str) -> Iterator[Carrier]:
    for carrier in support_table().values():
        if carrier.run if destination == RUN else carrier.target == destination:
            yield carrier


def _rows(control: str, platform: Platform, destination: str) -> list[Support]:
    return [
        carrier.rows[control]
        for carrier in _carriers(destination)
        if platform in carrier.platforms and (destination != RUN or control in carrier.run)
    ]


def _refusal(control: Control, platform: Platform, destination: str, version: tuple[int, ...] | None) -> str | None:
    """Why nothing there applies a kind of control; None when something does."""
    reasons = [row.refusal(platform, version) for row in _rows(control.name, platform, destination)]
    if None in reasons:
        return None
    if reasons:
        return reasons[0]
    others = [carrier.rows[control.name] for carrier in _carriers(destination) if platform in carrier.platforms]
    if any(row.refusal(platform, version) is None for row in others):
        return _NEEDS_CODE
    return next(filter(None, (row.refusal(platform, version) for row in others)), None)


def _nccl(libraries: Iterable[str]) -> tuple[int, ...] | None:
    """The oldest NCCL among the libraries of a workload; None where none is NCCL."""
    names = (_NCCL.match(library) for library in libraries)
    return min((tuple(map(int, name[1].split("."))) for name in names if name), default=None)
