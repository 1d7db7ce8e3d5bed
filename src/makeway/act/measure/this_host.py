"""The host that makeway runs on, calibrated on first use and kept in makeway's cache."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from makeway.act.measure.bench import cores, require_torch
from makeway.act.measure.calibrate import calibrate
from makeway.values.device import Device, parse_device
from makeway.values.errors import MakewayError
from makeway.values.own_files import own_bytes, own_folder, write_whole

ROUNDS = 3  # on first use; `makeway doctor --calibrate` takes more
_MOST_BYTES = 1 << 20
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisHost:
    """The calibrated host, and where and how long ago it was measured."""

    device: Device
    path: Path | None  # None: there is no cache to keep it in
    age_s: float

    def __str__(self) -> str:
        if self.path is None:
            return "calibrated this host now, for this plan only: there is no cache to keep it in"
        when = "now" if self.age_s < 1 else f"{_age(self.age_s)} ago"
        return f"calibrated this host {when}: {self.path}; delete the file to measure again, or pass --device"


def this_host(*, progress: Say = lambda stage: None, say: Say = lambda message: None) -> ThisHost:
    """The host from the cache, else measured now, which takes a minute or two; `say` gets which of the two."""
    folder = own_folder("hosts", closed=0o022)
    path = folder / f"{_identity()}.toml" if folder is not None else None
    if path is not None:
        with suppress(OSError, MakewayError):
            device = parse_device(own_bytes(path, most_bytes=_MOST_BYTES), where=str(path))
            host = ThisHost(device=device, path=path, age_s=max(time.time() - path.stat().st_mtime, 1.0))
            say(str(host))
            return host
    require_torch()
    say("calibrating this host, once: a minute or two; nothing else should run meanwhile")
    calibration = calibrate(rounds=ROUNDS, progress=progress)
    if path is not None:
        try:
            write_whole(path, calibration.text.encode())
        except OSError:
            path = None
    host = ThisHost(device=calibration.device, path=path, age_s=0.0)
    say(str(host))
    return host


def _identity() -> str:
    """What a calibration depends on: the machine, its processor and the cores that this process may use."""
    model = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line for line in lines if line.startswith("model name")), "")
    facts = "\n".join((platform.node(), platform.machine(), model, str(cores())))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _age(seconds: float) -> str:
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{int(seconds)} s"
