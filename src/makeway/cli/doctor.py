"""What this machine offers and which controls work here; --self-test proves them, --calibrate measures its speed."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from makeway.act.doctor.checkup import Checkup, doctor
from makeway.act.measure.bench import require_torch
from makeway.act.measure.calibrate import calibrate
from makeway.cli.output import add_output_options, show, show_stage, write_file
from makeway.cli.streams import say, write_out
from makeway.values.errors import InputError

EXAMPLES = """\
examples:
  makeway doctor
  makeway doctor --self-test --out certificate.json
  makeway doctor --calibrate --out host.toml      measures this host, about a minute

exit codes: 0 done, 1 a control was tried by --self-test and failed, 2 could not run
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--self-test", action="store_true", help="try every control that can be tried here")
    parser.add_argument("--calibrate", action="store_true", help="measure this host for predictions on its CPU")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks to calibrate with (default: one per core)")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds of calibration (default: 7)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the device file (default: stdout) or certificate there"
    )
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    if options.calibrate and options.self_test:
        raise InputError("--calibrate and --self-test write different files; run them separately")
    if options.calibrate:
        return _calibrate(options)
    if options.out and not options.self_test:
        raise InputError("--out is for the certificate of --self-test or the device file of --calibrate; add one")
    checkup = doctor(self_test=options.self_test, progress=show_stage)
    if options.out:
        _write_certificate(checkup, options.out)
    show(checkup, options)
    return 1 if checkup.self_test is not None and checkup.self_test.failed else 0


def _write_certificate(checkup: Checkup, out: Path) -> None:
    from makeway.show.checkup import certificate

    if checkup.self_test is None or not checkup.self_test.tested:
        say(f"nothing could be tested here: {out} was not written")
        return
    document = msgspec.json.format(msgspec.json.encode(certificate(checkup)), indent=2).decode()
    write_file(out, document + "\n")


def _calibrate(options: argparse.Namespace) -> int:
    require_torch()
    calibration = calibrate(ranks=options.ranks, rounds=options.repeats, progress=show_stage)
    show_stage("")
    if options.out:
        write_file(options.out, calibration.text, ": pass it with --device")
    if options.json or options.html:
        show(calibration, options)
    elif not options.out:
        write_out(calibration.text)
    return 0
