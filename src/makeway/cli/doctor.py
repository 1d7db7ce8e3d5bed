"""What this machine offers and which controls work here; --self-test proves them, --calibrate measures its speed."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import msgspec
from rich.table import Table

from makeway import __version__
from makeway.act.doctor.facts import Machine, cautions, look_around
from makeway.act.doctor.gpus import Gpus
from makeway.act.doctor.self_test import SelfTest, certificate, proof, self_test
from makeway.act.doctor.works import Answer, Platform, Way, absent, answers
from makeway.act.measure.bench import require_torch
from makeway.act.measure.calibrate import calibrate
from makeway.cli.output import console, print_json, show_stage
from makeway.show.new_file import new_file
from makeway.values.errors import InputError
from makeway.values.units import GIB

EXAMPLES = """\
examples:
  makeway doctor
  makeway doctor --self-test --out certificate.json
  makeway doctor --calibrate --out host.toml      measures this host, about a minute

exit codes: 0 done, 1 a control was tried by --self-test and failed, 2 could not run
"""
_TITLES: dict[Way, str] = {
    "launcher": "makeway run",
    "graph": "graph",
    "python": "Python API",
    "environment": "environment",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--self-test", action="store_true", help="try every control that can be tried here")
    parser.add_argument("--calibrate", action="store_true", help="measure this host for predictions on its CPU")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks to calibrate with (default: one per core)")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds of calibration (default: 7)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the device file (default: stdout) or certificate there"
    )


def run(options: argparse.Namespace) -> int:
    if options.calibrate and options.self_test:
        raise InputError("--calibrate and --self-test write different files; run one after the other")
    if options.calibrate:
        return _calibrated(options)
    if options.out and not options.self_test:
        raise InputError("--out is for the certificate of --self-test or the device file of --calibrate; add one")
    machine = look_around()
    tested = self_test(machine, progress=show_stage) if options.self_test else None
    show_stage("")
    if tested is not None and options.out:
        _write_certificate(machine, tested, options.out)
    if options.json:
        print_json(_document(machine, tested))
    else:
        _show(machine, tested)
    return 1 if tested is not None and tested.failed else 0


def _write_certificate(machine: Machine, tested: SelfTest, out: Path) -> None:
    if not tested.tested:
        print(f"nothing could be tested here: {out} was not written", file=sys.stderr)
        return
    text = msgspec.json.format(msgspec.json.encode(certificate(machine, tested)), indent=2).decode()
    with new_file(out) as file:
        file.write(text + "\n")
    print(f"wrote {out}", file=sys.stderr)


# --- one document --------------------------------------------------------------------------------


def _document(machine: Machine, tested: SelfTest | None) -> dict[str, Any]:
    return {
        "makeway": __version__,
        "facts": asdict(machine) | {"variables": dict(machine.variables)},
        "cautions": cautions(machine),
        "platforms": {platform: {"absent": absent(machine, platform)} for platform in get_args(Platform)},
        "controls": [asdict(answer) | {"proof": _proof(answer, machine, tested)} for answer in answers(machine)],
        "self_test": None
        if tested is None
        else {
            "date": tested.date,
            "versions": tested.versions,
            "results": [asdict(verdict) for verdict in tested.verdicts],
        },
    }


def _proof(answer: Answer, machine: Machine, tested: SelfTest | None) -> str:
    return proof(tested, machine, answer.platform, answer.control, answer.way)


# --- for people ----------------------------------------------------------------------------------


def _show(machine: Machine, tested: SelfTest | None) -> None:
    out = console()
    for key, value in _fact_words(machine):
        out.print(f"{key:<17} {value}", markup=False)
    for caution in cautions(machine):
        out.print(f"caution: {caution}", markup=False)
    found = answers(machine)
    for platform in get_args(Platform):
        if reason := absent(machine, platform):
            gpu = "" if platform == "cpu" else " (GPU controls: not yet run on hardware)"
            out.print(f"\n{platform}: no control can work here: {reason}{gpu}", markup=False)
        else:
            _show_platform(platform, [answer for answer in found if answer.platform == platform], machine, tested)
    if tested is not None:
        _show_self_test(tested)


def _show_platform(platform: Platform, found: list[Answer], machine: Machine, tested: SelfTest | None) -> None:
    """One row for each control; how, and why not, in numbered lines below, since they are long."""
    ways = get_args(Way)
    table = Table(platform, *(_TITLES[way] for way in ways), "proof", box=None, pad_edge=False)
    notes: dict[str, int] = {}
    for control in dict.fromkeys(answer.control for answer in found):
        row = [answer for answer in found if answer.control == control]
        cells = [f"{'yes' if one.works else 'no'} {notes.setdefault(one.words, len(notes) + 1)}" for one in row]
        table.add_row(control, *cells, "; ".join(_proofs(row, machine, tested)))
    out = console()
    out.print()
    out.print(table)
    for words, number in notes.items():
        out.print(f"  {number:>2}  {words}", markup=False)


def _proofs(row: list[Answer], machine: Machine, tested: SelfTest | None) -> list[str]:
    """What stands behind a control, by way where ways differ."""
    by_way = {answer.way: _proof(answer, machine, tested) for answer in row if answer.works}
    told = dict.fromkeys(by_way.values())
    if len(told) < 2:
        return list(told)
    return [f"{_TITLES[way]}: {words}" for way, words in by_way.items()]


def _show_self_test(tested: SelfTest) -> None:
    table = Table("check", "control", "status", "expected", "measured", box=None, pad_edge=False)
    for verdict in tested.verdicts:
        if verdict.status != "not tested":
            name = f"{verdict.platform}: {verdict.check}"
            table.add_row(name, verdict.control, verdict.status, verdict.expected, verdict.measured)
    out = console()
    out.print(f"\nself-test of {tested.date}")
    if tested.tested:
        out.print(table)
    for verdict in tested.verdicts:
        if verdict.status == "not tested":
            out.print(f"not tested: {verdict.platform}: {verdict.check}: {verdict.detail}", markup=False)
        elif verdict.status == "failed" and verdict.detail:
            out.print(f"failed: {verdict.platform}: {verdict.check}: {verdict.detail}", markup=False)


def _fact_words(machine: Machine) -> list[tuple[str, str]]:
    torch, limits = machine.torch, machine.cgroup
    built = [f"CUDA {torch.cuda}" if torch.cuda else "", f"ROCm {torch.hip}" if torch.hip else ""] if torch else []
    cpus = f"{limits.cpus:g} cores' time" if limits.cpus is not None else "no limit on processor time"
    memory = f"{limits.memory_bytes / GIB:.1f} GiB" if limits.memory_bytes is not None else "no limit on memory"
    shm = machine.shm_free_bytes
    links = machine.no_user_namespaces or ", ".join(f"{tool} not found" for tool in machine.missing_link_tools)
    return [
        ("system", f"{machine.kernel}, Python {machine.python}, makeway {__version__}"),
        ("cores", f"{machine.cores}; control group: {cpus}, {memory}, cpuset {limits.cpuset or 'not set'}"),
        ("NVIDIA GPUs", _gpu_words(machine.nvidia)),
        ("AMD GPUs", _gpu_words(machine.amd)),
        ("MPS", machine.mps or "not found"),
        ("torch", f"{torch.version} ({' '.join(filter(None, built)) or 'no GPU'})" if torch else "not installed"),
        ("NCCL, RCCL", f"{machine.nccl or 'not found'}, {machine.rccl or 'not found'}"),
        ("Triton", machine.triton or "not installed"),
        ("cuda-bindings", machine.cuda_bindings or "not installed"),
        ("compiler", machine.compiler or "not found"),
        ("shared memory", f"{shm / GIB:.1f} GiB free in /dev/shm" if shm is not None else "no /dev/shm"),
        ("paced links", f"no: {links}" if links else "tools found, user namespaces allowed"),
        ("variables", " ".join(f"{name}={value}" for name, value in machine.variables) or "none set"),
    ]


def _gpu_words(gpus: Gpus) -> str:
    if not gpus.names:
        return "none found" if gpus.driver is None else f"none found; driver {gpus.driver}"
    counted = ", ".join(f"{gpus.names.count(name)} x {name}" for name in dict.fromkeys(gpus.names))
    mig = f", {gpus.mig_instances} MIG instances" if gpus.mig_instances else ""
    return f"{counted}{mig}; driver {gpus.driver or 'version not readable'}"


# --- calibration ---------------------------------------------------------------------------------


def _calibrated(options: argparse.Namespace) -> int:
    require_torch()
    calibration = calibrate(ranks=options.ranks, rounds=options.repeats, progress=show_stage)
    show_stage("")
    if options.out:
        with new_file(options.out) as file:
            file.write(calibration.text)
        print(f"wrote {options.out}: pass it with --device", file=sys.stderr)
    if options.json:
        print_json({"cores": calibration.cores, "rounds": calibration.rounds, "facts": dict(calibration.facts)})
    elif not options.out:
        sys.stdout.write(calibration.text)
    return 0
