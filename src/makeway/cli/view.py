"""Serve a live page on this machine: change controls and see the effect, open traces and plans, watch a tuned job."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from makeway.cli.streams import say, write_out
from makeway.model.presets import preset_names
from makeway.show.view.question import Question
from makeway.show.view.serve import serve
from makeway.show.view.shell import FIRST
from makeway.values.device import load_device
from makeway.values.errors import InputError

EXAMPLES = """\
examples:
  makeway view                                   a small GEMM and an all-reduce, to play with
  makeway view traces/                           what `makeway analyze` shows, and the recorded step to play with
  makeway view plan.toml                         a plan and its effect; also a workload file
  makeway view result.json                       what any command wrote with --json
  makeway view receipts/                         a job under `makeway run --tune --receipts receipts/`, as it runs
  makeway view --port 8700 --no-browser          on a remote machine: ssh -L 8700:127.0.0.1:8700 HOST

The page listens on 127.0.0.1 alone, and its address holds a random token: whoever knows the address can use the page.
It ends with Ctrl-C, SIGTERM or the terminal, and leaves nothing behind. With --json the first line is a document with
the address.
"""
_MOST_PORT = 65_535


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="TRACE|PLAN|RESULT",
        help="what to open: traces, a plan, a workload, a result, a job",
    )
    parser.add_argument("--device", metavar="NAME", help=f"the device to begin with, or FILE.toml ({FIRST.device})")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address, and open no browser")


def run(options: argparse.Namespace) -> int:
    if not 0 <= options.port <= _MOST_PORT:
        raise InputError(f"--port takes a number in 0..{_MOST_PORT:,}, got {options.port}")
    device = load_device(options.device) if options.device else None
    first = Question(workload=FIRST.workload, device=device.name if device else FIRST.device)
    paths = [Path(name) for name in options.paths]
    if len(options.paths) == 1 and options.paths[0] in preset_names() and not paths[0].exists():
        first, paths = Question(workload=options.paths[0], device=first.device), []
    own = Path(options.device) if device is not None and options.device.endswith(".toml") else None

    def ready(url: str, port: int) -> None:
        if options.json:
            write_out(json.dumps({"schema": "makeway/view/1", "url": url, "port": port, "pid": os.getpid()}) + "\n")
        else:
            write_out(f"{url}\n")
            say(f"Ctrl-C ends it. From another machine: ssh -L {port}:127.0.0.1:{port} HOST, then the same address.")

    browser = not options.no_browser and sys.stdout.isatty()
    serve(paths, first=first, port=options.port, device_file=own, open_browser=browser, ready=ready)
    return 0
