"""Show the facts of a device and where each was read, or list all devices."""

from __future__ import annotations

import argparse

from makeway.cli.output import add_output_options, show
from makeway.values.device import known_devices, load_device

EXAMPLES = """\
examples:
  makeway devices                      all names
  makeway devices MI250X               one device, each number with its source
  makeway devices ./mine.toml --json   check a device file of your own

A number marked "unconfirmed" has no source that we trust; the reason is beside it.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a device name, an alias, or a device file ending in .toml")
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    show(known_devices() if options.name is None else load_device(options.name), options)
    return 0
