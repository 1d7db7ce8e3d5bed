"""Say whether a collective's block fits beside a compute kernel on one SM, what binds, and what makes room."""

from __future__ import annotations

import argparse

from makeway.cli.output import add_output_options, show
from makeway.model.room import make_room
from makeway.values.collective import library_names
from makeway.values.device import load_device
from makeway.values.kernel import parse_resources

EXAMPLES = f"""\
examples:
  makeway residency --device H100-SXM5-80GB --compute threads=256,registers=98,smem=48KiB \\
                    --comm nccl-2.32.3/ring-simple
  makeway residency --device A100-SXM4-80GB --compute threads=128,registers=128,smem=48KiB \\
                    --comm nccl-2.32.3/ring-simple,threads=288 --json
  makeway residency --device B200 --compute threads=256,registers=94,smem=49168 \\
                    --comm threads=512,registers=64,smem=0

--compute and a --comm of your own: threads=, registers= (per thread), smem= (static + dynamic per
block, bytes or KiB), and where they apply cluster=, barriers=, sgprs=.
--comm by name: LIBRARY-VERSION/PATH[,threads=N]; libraries: {", ".join(library_names())}.

The model takes the SM at its largest shared-memory carve-out. One kernel alone equals NVIDIA's
occupancy calculator; two kernels side by side is makeway's own model, not yet run on hardware.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", required=True, help="a device name (`makeway devices`) or FILE.toml")
    parser.add_argument("--compute", required=True, metavar="BLOCK", help="what one compute block occupies")
    parser.add_argument("--comm", required=True, metavar="BLOCK", help="the collective's block, by name or written out")
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    show(make_room(load_device(options.device), parse_resources(options.compute), options.comm), options)
    return 0
