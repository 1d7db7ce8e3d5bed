"""Checkups and calibrations as reports: facts of the machine, controls by route, the self-test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from makeway import __version__
from makeway.act.doctor.certificate import sealed
from makeway.act.doctor.checkup import Checkup
from makeway.act.doctor.facts import Machine
from makeway.act.doctor.gpus import Gpus
from makeway.act.doctor.self_test import SelfTest
from makeway.act.doctor.works import PLATFORMS, ROUTES, Answer
from makeway.act.measure.calibrate import Calibration
from makeway.show.blocks import Cell, Column, Facts, Headline, Notes, Paragraph, Report, Section, Table
from makeway.show.data import plain, record
from makeway.show.provenance import provenance
from makeway.values.support import CONTROL_NAMES, Platform
from makeway.values.units import GIB

_FOUND = "found in files, nothing tried"


def report(result: Checkup | Calibration, *, arguments: str = "") -> Report:
    """A checkup, or a host that was measured."""
    if isinstance(result, Calibration):
        return _calibration_report(result, arguments)
    tested = result.self_test
    return Report(
        result="checkup",
        over="makeway doctor",
        headline=Headline(sentence=_verdict(result), origin="measured" if tested and tested.tested else _FOUND),
        sections=(
            Section(
                name="machine",
                title="Machine",
                blocks=(
                    Facts(pairs=tuple(_facts(result.facts))),
                    Notes(sentences=tuple(f"caution: {text}" for text in result.cautions)),
                ),
            ),
            *(_platform_section(result, platform) for platform in PLATFORMS),
            *((_self_test_section(tested),) if tested is not None else ()),
            provenance(
                arguments, numbers="read from this machine's files; a self-test measures in processes of its own"
            ),
        ),
        data={
            "facts": plain(result.facts) | {"variables": dict(result.facts.variables)},
            "cautions": plain(result.cautions),
            "platforms": {platform: {"absent": reason} for platform, reason in result.absent.items()},
            "controls": plain(result.controls),
            "self_test": None
            if tested is None
            else record(tested, without=("verdicts", "steps"))
            | {"results": plain(tested.verdicts), "hashes": certificate(result)["hashes"]},
        },
        arguments=arguments,
    )


def certificate(checkup: Checkup) -> dict[str, Any]:
    """The self-test as a document: what ran, on what, with which versions, when; raw data and hashes of every step."""
    machine, tested = checkup.facts, checkup.self_test
    assert tested is not None
    document = {
        "makeway": __version__,
        "date": tested.date,
        "device": (*machine.nvidia.names, *machine.amd.names) or ("CPU host",),
        "driver": machine.nvidia.driver or machine.amd.driver,
        "versions": dict(tested.versions),
        "machine": asdict(machine),
        "settled": tested.settled,
        "results": [asdict(verdict) for verdict in tested.verdicts],
    }
    return sealed(document, tested.steps)


def _verdict(checkup: Checkup) -> str:
    counts = [f"{checkup.working(platform)} on {platform}" for platform in PLATFORMS]
    sentence = f"Of {len(CONTROL_NAMES)} controls, {', '.join(counts[:-1])} and {counts[-1]} can work here"
    if checkup.self_test is None:
        return sentence
    statuses = [verdict.status for verdict in checkup.self_test.verdicts]
    tested = ", ".join(f"{statuses.count(status)} {status}" for status in ("proved", "failed", "not tested"))
    return f"{sentence}; self-test: {tested}"


# --- controls by route -----------------------------------------------------------------------------


def _platform_section(checkup: Checkup, platform: Platform) -> Section:
    name, title = f"platform-{platform}", f"Controls on {platform}"
    if reason := checkup.absent[platform]:
        gpu = "" if platform == "cpu" else " (GPU controls: not yet run on hardware)"
        return Section(
            name=name, title=title, blocks=(Paragraph(text=f"{platform}: no control can work here: {reason}{gpu}"),)
        )
    answers = [answer for answer in checkup.controls if answer.platform == platform]
    details = list(dict.fromkeys(answer.detail for answer in answers))
    numbered = tuple((str(number), detail) for number, detail in enumerate(details, 1))
    return Section(name=name, title=title, blocks=(_control_table(platform, answers, details), Facts(pairs=numbered)))


def _control_table(platform: Platform, answers: Sequence[Answer], details: Sequence[str]) -> Table:
    """One row per control; numbers refer to the lines below the table, since those are long."""
    rows = []
    for control in CONTROL_NAMES:
        by_route = [answer for answer in answers if answer.control == control]
        cells = [Cell(f"{'yes' if each.works else 'no'} {details.index(each.detail) + 1}") for each in by_route]
        rows.append((Cell(control), *cells, Cell("; ".join(_proofs(by_route)))))
    return Table(
        name=f"controls-{platform}",
        caption=f"Controls on {platform} by route, and where each is explained below",
        columns=(Column("control"), *map(Column, ROUTES), Column("proof", "wide")),
        rows=tuple(rows),
        brief_rows=len(rows),
    )


def _proofs(answers: Sequence[Answer]) -> list[str]:
    """The proof of a control, by route where routes differ."""
    by_route = {answer.route: answer.proof for answer in answers if answer.works}
    if len(set(by_route.values())) < 2:
        return list(dict.fromkeys(by_route.values()))
    return [f"{route}: {proof}" for route, proof in by_route.items()]


# --- the self-test ---------------------------------------------------------------------------------


def _self_test_section(tested: SelfTest) -> Section:
    table = Table(
        name="checks",
        caption=f"Self-test of {tested.date}",
        origin="measured",
        columns=(
            Column("check"),
            Column("control"),
            Column("status"),
            Column("measured", "wide"),
            Column("expected", "wide", brief=False),
        ),
        rows=tuple(
            (
                Cell(f"{verdict.platform}: {verdict.check}"),
                Cell(verdict.control),
                Cell(verdict.status),
                Cell(verdict.measured),
                Cell(verdict.expected),
            )
            for verdict in tested.verdicts
            if verdict.status != "not tested"
        ),
        nothing="No check could be tried.",
        brief_rows=len(tested.verdicts),
    )
    notes = tuple(
        f"{verdict.status}: {verdict.platform}: {verdict.check}: {verdict.detail}"
        for verdict in tested.verdicts
        if verdict.status != "proved" and verdict.detail
    )
    answers = Facts(pairs=tuple((f"settled: {case}", answer) for case, answer in tested.settled.items()))
    return Section(name="self-test", title="Self-test", blocks=(table, answers, Notes(sentences=notes)))


# --- the machine -----------------------------------------------------------------------------------


def _facts(machine: Machine) -> Iterator[tuple[str, str]]:
    torch, limits, shm = machine.torch, machine.cgroup, machine.shm_free_bytes
    built = [f"CUDA {torch.cuda}" if torch.cuda else "", f"ROCm {torch.hip}" if torch.hip else ""] if torch else []
    cpus = f"{limits.cpus:g} cores' time" if limits.cpus is not None else "no limit on processor time"
    memory = f"{limits.memory_bytes / GIB:.1f} GiB" if limits.memory_bytes is not None else "no limit on memory"
    links = machine.no_user_namespaces or ", ".join(f"{tool} not found" for tool in machine.missing_link_tools)
    yield "system", f"{machine.kernel}, Python {machine.python}, makeway {__version__}"
    yield "cores", f"{machine.cores}; control group: {cpus}, {memory}, cpuset {limits.cpuset or 'not set'}"
    yield "NVIDIA GPUs", _gpus(machine.nvidia)
    yield "AMD GPUs", _gpus(machine.amd)
    yield "MPS", machine.mps or "not found"
    yield "torch", f"{torch.version} ({' '.join(filter(None, built)) or 'no GPU'})" if torch else "not installed"
    yield "NCCL, RCCL", f"{machine.nccl or 'not found'}, {machine.rccl or 'not found'}"
    yield "Triton", machine.triton or "not installed"
    yield "cuda-bindings", machine.cuda_bindings or "not installed"
    yield (
        "compiler",
        machine.compiler or f"not found{'; a compiled launch shim came with makeway' * machine.shim_prebuilt}",
    )
    yield "shared memory", f"{shm / GIB:.1f} GiB free in /dev/shm" if shm is not None else "no /dev/shm"
    yield "paced links", f"no: {links}" if links else "tools found, user namespaces allowed"
    yield "variables", " ".join(f"{name}={value}" for name, value in machine.variables) or "none set"


def _gpus(gpus: Gpus) -> str:
    if not gpus.names:
        return "none found" if gpus.driver is None else f"none found; driver {gpus.driver}"
    counts = ", ".join(f"{gpus.names.count(name)} x {name}" for name in dict.fromkeys(gpus.names))
    mig = f", {gpus.mig_instances} MIG instances" if gpus.mig_instances else ""
    return f"{counts}{mig}; driver {gpus.driver or 'version not readable'}"


# --- calibration -----------------------------------------------------------------------------------


def _calibration_report(calibration: Calibration, arguments: str) -> Report:
    table = Table(
        name="fact-table",
        caption="Facts of this host",
        columns=(Column("fact", "name"), Column("value", "number")),
        rows=tuple((Cell(name), Cell(f"{value:.6g}", value)) for name, value in calibration.facts.items()),
        origin="measured",
        brief_rows=len(calibration.facts),
    )
    return Report(
        result="calibration",
        over="makeway doctor --calibrate",
        headline=Headline(
            sentence=f"This host as a device: medians of {calibration.rounds} rounds on {calibration.cores} cores",
            origin="measured",
        ),
        sections=(
            Section(name="host", title="Host", blocks=(table,)),
            provenance(arguments, numbers=f"measured on {calibration.machine}"),
        ),
        data={"cores": calibration.cores, "rounds": calibration.rounds, "facts": dict(calibration.facts)},
        arguments=arguments,
    )
