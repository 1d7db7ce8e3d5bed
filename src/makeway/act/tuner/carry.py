"""Whether a launcher gives a program the tuner plugin, and its files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from makeway.act.doctor.gpus import text
from makeway.act.tuner.channels import MOST_CHANNELS, encode_file, rules_of
from makeway.act.tuner.tally import CARRIER
from makeway.values.control import CommBlocks, Control
from makeway.values.errors import InputError
from makeway.values.plan import Plan
from makeway.values.support import support

PLUGIN, RULES = "NCCL_TUNER_PLUGIN", "MAKEWAY_TUNER_RULES"
RULES_FILE = "channels"
# NCCL looks for a tuner in these when NCCL_TUNER_PLUGIN names none (src/plugin/tuner.cc, plugin_open.cc).
_OTHER_TUNERS = ("libnccl-tuner.so", "libnccl-net.so")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuner:
    """The plugin and the file of its rules."""

    plugin: Path
    rules: Path

    @property
    def variables(self) -> dict[str, str]:
        return {PLUGIN: str(self.plugin), RULES: str(self.rules)}


def tuner_refusal(
    plan: Plan, environ: Mapping[str, str], *, version: tuple[int, ...] | None = None, force: bool = False
) -> str | None:
    """Why a program gets no plugin although its plan sets comm blocks; None: it gets one. `version` is NCCL's."""
    if reason := support(CommBlocks.name, CARRIER).refusal("cuda", version):
        return reason
    blocks = max(control.blocks for control in plan.controls if isinstance(control, CommBlocks))
    if blocks > MOST_CHANNELS:
        return f"the tuner plugin sets at most {MOST_CHANNELS} channels, the plan asks for {blocks}"
    policy = environ.get("NCCL_CTA_POLICY", "").upper()
    if "EFFICIENCY" in policy or policy == "1":
        return "NCCL leaves its efficiency policy (NCCL_CTA_POLICY) to itself only without a tuner"
    present = environ.get(PLUGIN)
    if present and RULES not in environ and not force:  # with rules it is ours, of a run around this one
        return f"{PLUGIN}={present} was set by you (--force replaces it)"
    if not force and (other := next(_other_tuners(environ), None)):
        return f"NCCL may take a tuner from {other}, which ours would replace (--force does)"
    return None


def _other_tuners(environ: Mapping[str, str]) -> Iterator[str]:
    if name := environ.get("NCCL_NET_PLUGIN"):
        yield f"NCCL_NET_PLUGIN={name}"
    home = environ.get("NCCL_CONF_FILE") or os.path.join(environ.get("HOME", "/"), ".nccl.conf")
    for path in (home, "/etc/nccl.conf"):  # src/misc/param.cc: the environment overrides them
        if re.search(r"^NCCL_(TUNER|NET)_PLUGIN=", text(Path(path)), re.MULTILINE):
            yield path
    for directory in environ.get("LD_LIBRARY_PATH", "").split(":"):
        for name in _OTHER_TUNERS:
            if directory and os.path.exists(path := os.path.join(directory, name)):
                yield path


def write_rules(sets: Sequence[Sequence[Control]], directory: Path) -> Path:
    """Channel rules in a file that only this user can read and write: of a plan's controls, or of the first of several
    sets of controls among which a job alternates."""
    path = directory / RULES_FILE
    rules = [rules_of(Plan(controls=tuple(controls))) for controls in sets]
    content = encode_file(rules[0], most_channels=max(rule.channels or 0 for each in rules for rule in each))
    try:
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}; choose another place") from None
    return path
