"""Predict what happens when a workload's kernels and collectives share a GPU, under any controls."""

from __future__ import annotations

import argparse
from pathlib import Path

from makeway.cli.output import add_output_options, show, show_stage
from makeway.cli.workload_input import add_preset_options, workload_of
from makeway.model.simulate.policies import DISPATCHES, HBM_POLICIES
from makeway.model.simulate.predict import Settings, simulate
from makeway.model.simulate.spread import BLOCK_SPREAD
from makeway.model.simulate.sweep import MANY_BLOCKS, sweep, with_alternatives
from makeway.read.plan_file import load_plan
from makeway.values.device import load_device
from makeway.values.errors import InputError
from makeway.values.plan import Plan, parse_controls

EXAMPLES = """\
examples:
  makeway simulate --list
  makeway simulate gemm-ar --device H100-SXM5-80GB
  makeway simulate gemm-ar --device H100-SXM5-80GB --control priority --control comm-threads=288
  makeway simulate cb-ar --device A40 --grid 64x64 --sweep priority
  makeway simulate gemm-ar --device A100-SXM4-80GB --control priority --html step.html
  makeway simulate my-step.toml --device MI300X --control copy-engine --json

controls: pad=48KiB[:kernel*]  tile=64x64x64  priority  comm-first  comm-blocks=16  comm-threads=288
          partition=32  copy-engine[=broadcast[,prelaunch]]  chunks=4  compress=bf16

Nothing here is measured. Two policies of the hardware are not confirmed (which block is dispatched
first, how HBM is shared): --policies all shows every combination.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_preset_options(parser)
    parser.add_argument("--gpus", type=int, metavar="N", help="refused: `makeway scale` predicts steps on many GPUs")
    parser.add_argument("--control", action="append", default=[], metavar="CONTROL", help="a control; may be repeated")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="take the controls from a plan file")
    parser.add_argument(
        "--engine",
        choices=("auto", "class", "block", "fluid"),
        default="auto",
        help="how to simulate: block by block, by SM states with equal block times (class), from simulated pairs of "
        "operations (fluid); auto is block, or fluid for millions of blocks (default: auto)",
    )
    parser.add_argument("--dispatch", choices=tuple(DISPATCHES), help="dispatch policy (default: the vendor's)")
    parser.add_argument("--hbm", choices=tuple(HBM_POLICIES), default="proportional", help="how HBM is shared")
    parser.add_argument(
        "--jitter",
        type=float,
        metavar="X",
        help=f"relative spread of block times (default: {BLOCK_SPREAD:g}; class engine: 0)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the order in which blocks take their times (default: 0)"
    )
    parser.add_argument("--skew-us", type=float, default=0.0, metavar="T", help="how much later the last rank starts")
    parser.add_argument(
        "--policies",
        choices=("auto", "all", "none"),
        default="auto",
        help="try the hardware policies that are not confirmed",
    )
    parser.add_argument(
        "--sweep", choices=("pad", "priority", "comm-blocks", "grid"), help="run one knob over its values"
    )
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    if options.gpus is not None:
        raise InputError(
            "simulate runs one node; --ranks N sets the ranks of a preset\n"
            f"For a training step on {options.gpus:,} GPUs: makeway scale MODEL --cluster NAME --gpus {options.gpus}"
        )
    if options.skew_us < 0:
        raise InputError(f"--skew-us cannot be negative, got {options.skew_us:g}")
    device = load_device(options.device)
    workload = workload_of(options, device)
    planned = load_plan(options.plan).controls if options.plan else ()
    controls = Plan(controls=(*parse_controls(options.control), *planned)).controls
    settings = Settings(
        engine=options.engine,
        dispatch=DISPATCHES[options.dispatch] if options.dispatch else None,
        hbm=HBM_POLICIES[options.hbm],
        jitter=options.jitter,
        seed=options.seed,
        skew_ns=options.skew_us * 1e3,
        record=options.json and not options.sweep,
    )
    if options.sweep:
        result = sweep(options.sweep, workload, device, controls, settings, progress=show_stage)
        show_stage("")
        show(result, options)
        return 0
    prediction = simulate(workload, device, controls, settings)
    if options.policies == "all" or (options.policies == "auto" and prediction.blocks <= MANY_BLOCKS):
        prediction = with_alternatives(prediction, settings)
    show(prediction, options)
    return 0
