"""What a program's process on GPUs does under a plan: options of NCCL's groups, and receipts of what they hold.

Not yet run on hardware.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cuda.options import GroupOptions, environment_receipt
from makeway.act.export.values import Library
from makeway.act.launch.receipt_file import ReceiptFile
from makeway.act.torch.groups import OWN_OPTIONS, group_controls, options_in_force, process_group_options
from makeway.act.torch.where import where_runs
from makeway.values.control import CommThreads, Control, LaunchOrder, SmPartition, TileChoice
from makeway.values.receipt import Receipt

FOR_THE_PROGRAM = "only code that launches the operations can do it: makeway.torch has the calls"


class OnGpu:
    """The groups of one process, from the first to the end of the default one."""

    def __init__(self, file: ReceiptFile) -> None:
        self._file = file
        self._made: GroupOptions | None = None  # of the first group

    def group_options(self, given: Mapping[str, Any], plan: Sequence[Control]) -> Any | None:
        """NCCL's options under the plan for a group made with `given`; None: none, or the program has its own."""
        controls = group_controls(plan)
        if not controls:
            return None
        if given.get("pg_options") is not None:
            carrier = TORCH_CARRIERS[where_runs()]
            for control in controls:
                self._file.set(Receipt(control=control, status="refused", detail=OWN_OPTIONS, carrier=carrier))
            return None
        made = process_group_options(controls)
        if (timeout := given.get("timeout")) is not None:
            made.options._timeout = timeout  # torch warns when the two differ
        self._made = self._made or made
        return made.options

    def receipts(self, controls: Sequence[Control]) -> list[Receipt]:
        """Options as the group has them, variables as they were at the start; the launch shim reports pads."""
        receipts = list(options_in_force(self._made.receipts if self._made is not None else (), environ=os.environ))
        library = Library(name="rccl" if self._file.backend == "rocm" else "nccl")
        for control in controls:
            if isinstance(control, CommThreads):
                receipts.append(environment_receipt(control, os.environ, library))
            elif isinstance(control, SmPartition | TileChoice | LaunchOrder):
                receipts.append(Receipt(control=control, status="no effect", detail=FOR_THE_PROGRAM))
        return [replace(receipt, carrier=TORCH_CARRIERS[self._file.backend]) for receipt in receipts]
