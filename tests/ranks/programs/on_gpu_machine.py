"""`makeway run --compare` or `--tune` on a machine that is said to have GPUs: writes the JSON document to stdout.

usage: on_gpu_machine.py compare|tune PLAN RECEIPTS STEPS PROGRAM ...; PLAN may be "-" for none.
"""

from __future__ import annotations

import sys
from pathlib import Path

from makeway.act.launch.compare_run import compare_run
from makeway.act.launch.tune_run import tune_run
from makeway.read.plan_file import load_plan
from makeway.show.json import json
from makeway.show.report import report_of


def main() -> None:
    how, plan, receipts, steps, *program = sys.argv[1:]
    given = load_plan(Path(plan)) if plan != "-" else None
    place, out = Path(receipts), sys.stderr.fileno()
    if how == "compare":
        assert given is not None
        result: object = compare_run(
            program, given, steps=int(steps), receipts=place, stdout=out, platform="cuda", warn=print_warning
        )
    else:
        result = tune_run(
            program,
            given,
            share=0.5,
            job_steps=int(steps),
            receipts=place,
            stdout=out,
            platform="cuda",
            warn=print_warning,
        )
    sys.stdout.write(json(report_of(result, arguments="")))


def print_warning(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
