"""`calibrate`: a GPU's certificate as a device file: the driver's limits, and measured rates for borrowed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from makeway.act.doctor.certificate import Step, read_certificate
from makeway.act.doctor.samples import BesideRun, DriverFacts, Line, PaddedRun, RatesRun, sampled_device
from makeway.act.doctor.settled import measured_rates, settled
from makeway.values.device import Device, parse_device
from makeway.values.errors import DataFileError
from makeway.values.facts import Fact, Value
from makeway.values.recorded_device import RecordedLimits, with_recorded_sms


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedDevice:
    """A device as measured, the facts that the certificate changed, and where it came from."""

    device: Device
    measured: Mapping[str, float]  # what the certificate says, by the names of device files
    before: Mapping[str, float | None]  # the same facts in makeway's own file, or borrowed
    used: tuple[str, ...]  # the facts that the device file takes from the certificate
    settled: Mapping[str, str]  # what the self-test settled
    certificate: str  # SHA-256 of the whole document
    date: str
    text: str  # the device file


def calibrate(path: Path) -> CalibratedDevice:
    """The device that a certificate describes; an error where no step on a GPU succeeded."""
    document, steps = read_certificate(path)
    lines = [line for step in steps for line in step.lines]
    name, limits = _identity(path, steps, lines)
    base = with_recorded_sms(sampled_device(name, limits), limits)
    driver, rates = _driver_facts(lines), _measured_rates(lines)
    used = {**driver, **{key: value for key, value in rates.items() if _doubtful(base.facts.get(key))}}
    answers = settled([run for line in lines for run in line.beside or ()])
    date, whole = str(document.get("date", "")), str(document["hashes"]["document"])
    text = _text(base, used, source=f"makeway doctor --self-test of {date}, certificate {whole}", answers=answers)
    return CalibratedDevice(
        device=parse_device(text.encode(), where="calibration"),
        measured={**driver, **rates},
        before={key: _number(base.facts.get(key)) for key in (*driver, *rates)},
        used=tuple(used),
        settled=answers,
        certificate=whole,
        date=date,
        text=text,
    )


def _identity(path: Path, steps: tuple[Step, ...], lines: list[Line]) -> tuple[str, RecordedLimits]:
    runs: list[DriverFacts | BesideRun | PaddedRun] = [line.driver for line in lines if line.driver]
    for line in lines:
        runs += line.beside or ()
        runs += line.padded or ()
    for run in runs:
        if run.limits is not None:
            return run.device, run.limits
    troubles = [f"{step.name}: {step.trouble}" for step in steps if step.trouble]
    why = f" ({troubles[0]})" if troubles else ""
    raise DataFileError(f"{path}: no step says which GPU it ran on{why}; run makeway doctor --self-test on a GPU")


def _driver_facts(lines: list[Line]) -> Mapping[str, float]:
    """Limits that the driver states exactly."""
    for line in lines:
        if (driver := line.driver) is None:
            continue
        numbers = {
            "smem_reserved_bytes": driver.smem_reserved_bytes,
            "max_blocks": driver.max_blocks,
            "clock_hz": driver.clock_hz,
            "l2_bytes": driver.l2_bytes,
            "copy_engines": driver.copy_engines,
            "memory_bytes": driver.limits.memory_bytes,
            "registers": driver.limits.registers,
            "smem_bytes": driver.limits.smem_bytes,
            "smem_block_bytes": driver.limits.smem_block_bytes,
        }
        return {key: value for key, value in numbers.items() if value}
    return {}


def _measured_rates(lines: list[Line]) -> Mapping[str, float]:
    runs: list[RatesRun] = [line.rates for line in lines if line.rates]
    return measured_rates(runs[0]) if runs else {}


def _doubtful(fact: Fact | None) -> bool:
    """Whether a measured rate is better: a cited peak stays, since the model takes its share of peaks."""
    return fact is None or fact.unconfirmed is not None


def _number(fact: Fact | None) -> float | None:
    return fact.value if fact is not None and not isinstance(fact.value, tuple) else None


# --- the file ------------------------------------------------------------------------------------


def _text(base: Device, facts: Mapping[str, float], *, source: str, answers: Mapping[str, str]) -> str:
    """The device file: every fact of the base device with its source, those of the certificate in their place."""
    sources = {source: "certificate"}
    rows = []
    for key, fact in {**base.facts, **{key: Fact(value=value, source=source) for key, value in facts.items()}}.items():
        name = sources.setdefault(fact.source, f"source-{len(sources)}")
        doubt = f", unconfirmed = {_quoted(fact.unconfirmed)}" if fact.unconfirmed else ""
        rows.append(f'{key} = {{ value = {_value(fact.value)}, source = "{name}"{doubt} }}')
    notes = ["Measured rates stand where no cited peak is known: what torch's own products and copies reached."]
    notes += [f"Self-test, {case}: {answer}." for case, answer in answers.items()]
    return "\n".join(
        [
            f"name = {_quoted(f'{base.name} (measured)')}",
            f'vendor = "{base.vendor}"',
            f"arch = {_quoted(base.arch)}",
            "aliases = []",
            f'link = "{base.link}"',
            f"notes = [{', '.join(map(_quoted, notes))}]",
            "",
            "[sources]",
            *(f"{name} = {_quoted(text)}" for text, name in sources.items()),
            "",
            "[facts]",
            *rows,
            "",
        ]
    )


def _value(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value) if isinstance(value, int) else repr(float(value))


def _quoted(text: str) -> str:
    """A TOML string; control characters are escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in escaped) + '"'
