"""Turn the certificate of a GPU (makeway doctor --self-test --out) into a device file for predictions."""

from __future__ import annotations

import argparse
from pathlib import Path

from makeway.act.doctor.calibrate import calibrate
from makeway.cli.output import add_output_options, show, write_file
from makeway.cli.streams import write_out

EXAMPLES = """\
examples:
  makeway doctor --self-test --out certificate.json     on the GPU's machine, ten minutes
  makeway calibrate certificate.json --out gpu.toml     anywhere
  makeway simulate gemm-ar --device gpu.toml

Limits are the driver's. A measured rate stands where no cited peak is known; other facts stay as makeway has them.
A certificate that was changed after it was written is refused.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("certificate", type=Path, metavar="CERTIFICATE", help="the file that the self-test wrote, or -")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the device file there (default: stdout)")
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    calibrated = calibrate(options.certificate)
    if options.out:
        write_file(options.out, calibrated.text, ": pass it with --device")
    if options.json or options.html or options.out:
        show(calibrated, options)
    else:
        write_out(calibrated.text)
    return 0
