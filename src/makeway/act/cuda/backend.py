"""Controls on one rank's NVIDIA GPU. Not yet run on hardware.

Some controls are options of a process group, so `applied` creates a group with them; some confine a stream; some belong
to our own GEMM. `session` holds the results while the `with` block runs: the bench launches through it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, assert_never

from makeway.act.cuda.barriers import WITH_BLOCKS, WITHOUT_BLOCKS, memory_operations
from makeway.act.cuda.machine import GpuMachine, load_torch, look, require
from makeway.act.cuda.options import (
    environment_receipt,
    group_receipt,
    option_settings,
    overriding,
    process_group_options,
)
from makeway.act.cuda.streams import ConfinedStream, compute_sms, green_stream, prioritised_stream
from makeway.act.export.nccl import too_many_blocks
from makeway.act.export.values import Library
from makeway.act.triton.config import KERNEL_NAME, GemmConfig, controlled
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Compress,
    Control,
    CopyEngine,
    LaunchOrder,
    OwnCores,
    SmemPad,
    SmPartition,
    TileChoice,
)
from makeway.values.errors import MakewayError
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt, Status
from makeway.values.support import Platform, support


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What the controls in force provide; a field that none of them sets keeps torch's default."""

    controls: tuple[Control, ...]
    options: Any  # of a process group
    group: Any | None  # created with the options; None: none needed, or torch.distributed is not initialised yet
    compute_stream: Any | None  # None: the current one
    comm_stream: Any | None  # for copies of our own; NCCL has its own streams
    copy_engine: bool  # all-gather and all-to-all through makeway.act.cuda.copies
    gemm: GemmConfig


def _compiled_bytes(config: GemmConfig, arch: str) -> int:
    from makeway.act.triton.gemm import launch_bytes  # loads Triton

    return launch_bytes(config, arch)


@dataclass
class CudaBackend:
    """A backend for the current device of this process; `torch` stands in for the package."""

    torch: Any | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    gemm: GemmConfig = field(default_factory=GemmConfig)
    name: Platform = "cuda"
    # Shared memory of a block, by architecture; None: not asked before the launch.
    gemm_bytes: Callable[[GemmConfig, str], int] | None = _compiled_bytes
    session: Session | None = field(default=None, init=False)
    machine: GpuMachine = field(init=False)

    def __post_init__(self) -> None:
        self.machine = look("nvidia", self.torch)

    @property
    def carrier(self) -> str:
        """The name in the support table."""
        return "torch on CUDA" if self.name == "cuda" else "torch on ROCm"

    @property
    def library(self) -> Library:
        return Library(name="nccl", version=self.machine.nccl)

    def refusal(self, control: Control) -> str | None:
        return self.machine.missing or self._refusal(control)

    def _refusal(self, control: Control) -> str | None:
        if isinstance(control, LaunchOrder | Chunks | Compress):
            return None  # nothing to set on the device: see `_apply`
        reason = support(control, self.carrier).refusal(self.name, self.library.version)
        return reason or self._machine_refusal(control)

    def _machine_refusal(self, control: Control) -> str | None:
        match control:
            case CommBlocks(blocks):
                return self._without_nccl() or too_many_blocks(blocks, self.library)
            case CommPriority():
                return self._without_nccl()
            case CommThreads():
                receipt = environment_receipt(control, self.environ, self.library)
                return receipt.detail if receipt.status == "refused" else None
            case CopyEngine() if not self.machine.symmetric_memory:
                return "this torch has no symmetric memory, which copies between peers need"
            case SmPartition(comm_sms):
                return self._partition_refusal(comm_sms)
            case SmemPad() | TileChoice():
                return self._own_gemm_refusal(control)
            case _:
                return None

    def _without_nccl(self) -> str | None:
        return None if self.machine.nccl is not None else f"torch {self.machine.torch} was built without NCCL"

    def _own_gemm_refusal(self, control: SmemPad | TileChoice) -> str | None:
        if not fnmatchcase(KERNEL_NAME, control.kernel):
            return f"only our own GEMM ({KERNEL_NAME}) can be set here, not kernels named {control.kernel!r}"
        if not self.machine.triton:
            return "our own GEMM needs Triton: pip install 'makeway[triton]'"
        try:
            config = controlled(self.gemm, (control,))
        except MakewayError as error:
            return str(error)
        limit, ask = self.machine.smem_block_bytes, self.gemm_bytes
        if limit is not None and ask is not None and (needed := ask(config, self.machine.arch or "")) > limit:
            return f"a block of our GEMM would ask for {needed:,} bytes of shared memory; the device allows {limit:,}"
        return None

    def _partition_refusal(self, comm_sms: int) -> str | None:
        if not self.machine.green_contexts:
            needs = "which need torch 2.11 and CUDA 12.8 or later"
            return (
                self.machine.no_green_contexts
                or f"torch {self.machine.torch} has no streams in green contexts, {needs}"
            )
        assert self.machine.sms is not None
        assert self.machine.arch is not None
        try:
            compute_sms(self.machine.sms, comm_sms, int(self.machine.arch.removeprefix("sm_")) // 10)
        except MakewayError as error:
            return str(error)
        return None

    def _partition(self, torch: Any, device: int, comm_sms: int) -> AbstractContextManager[ConfinedStream]:
        return green_stream(torch, device, comm_sms)

    @contextmanager
    def applied(self, controls: Sequence[Control]) -> Iterator[tuple[Receipt, ...]]:
        """The controls in force inside the block; without a GPU an error that says what is missing."""
        Plan(controls=tuple(controls))  # contradictory controls are an error
        require(self.machine, f"the {self.name} backend")
        torch = self.torch or load_torch()
        refused = {control: reason for control in controls if (reason := self._refusal(control)) is not None}
        able = tuple(control for control in controls if control not in refused)
        with ExitStack() as stack:
            receipts = self._apply(torch, able, stack)
            receipts |= {control: self._receipt(control, reason, "refused") for control, reason in refused.items()}
            try:
                kept = [receipts[control] for control in controls]
                yield tuple(replace(receipt, carrier=receipt.carrier or self.carrier) for receipt in kept)
            finally:
                self.session = None

    def _receipt(self, control: Control, detail: str, status: Status = "applied") -> Receipt:
        return Receipt(control=control, status=status, detail=detail, carrier=self.carrier)

    def _apply(self, torch: Any, controls: tuple[Control, ...], stack: ExitStack) -> dict[Control, Receipt]:
        device = torch.cuda.current_device()
        options, group, receipts = self._grouped(torch, controls, stack)
        confined = comm_stream = None
        gemm = controlled(self.gemm, controls)
        for control in controls:
            match control:
                case SmPartition(comm_sms):
                    try:
                        confined = stack.enter_context(self._partition(torch, device, comm_sms))
                    except Exception as error:  # a driver's or torch's refusal must not end the program
                        receipts[control] = self._receipt(control, str(error), "refused")
                    else:
                        receipts[control] = replace(self._receipt(control, confined.detail), evidence=confined.evidence)
                case CommPriority():
                    comm_stream = prioritised_stream(torch, device)
                    receipts[control] = _with_stream(receipts[control], comm_stream)
                case CopyEngine():
                    receipts[control] = self._copies_receipt(control, receipts.get(control))
                case CommThreads():
                    receipts[control] = environment_receipt(control, self.environ, self.library)
                case SmemPad() | TileChoice():
                    tile = "x".join(map(str, gemm.tile))
                    detail = f"our GEMM takes tile {tile} and a pad of {gemm.pad_bytes:,} bytes; no other kernel does"
                    receipts[control] = self._receipt(control, detail)
                case LaunchOrder() | Chunks() | Compress():
                    row = support(control, self.carrier)
                    detail = f"nothing to set on the device: {row.how or row.why_not}"
                    receipts[control] = self._receipt(control, detail, "no effect")
                case CommBlocks():
                    pass  # the options' receipt
                case OwnCores():
                    raise AssertionError(f"{control} was refused")
                case _:
                    assert_never(control)
        self.session = Session(
            controls=controls,
            options=options,
            group=group,
            compute_stream=confined.stream if confined else None,
            comm_stream=comm_stream,
            copy_engine=any(isinstance(control, CopyEngine) for control in controls),
            gemm=gemm,
        )
        return receipts

    def _grouped(
        self, torch: Any, controls: tuple[Control, ...], stack: ExitStack
    ) -> tuple[Any, Any | None, dict[Control, Receipt]]:
        """Process-group options, a group with them where torch.distributed runs, and receipts for both."""
        nccl = getattr(torch.distributed, "ProcessGroupNCCL", None)
        if nccl is None:
            return None, None, {}
        made = process_group_options(nccl, [control for control in controls if option_settings(control)])
        receipts = {receipt.control: receipt for receipt in made.receipts}
        set_ones = [control for control, receipt in receipts.items() if receipt.status == "applied"]
        group = None
        if set_ones and torch.distributed.is_initialized():
            group = torch.distributed.new_group(backend="nccl", pg_options=made.options)
            stack.callback(torch.distributed.destroy_process_group, group)
            where = "in a new process group"
            receipts |= {control: group_receipt(torch, group, control, where) for control in set_ones}
        for control in set_ones:
            if variable := overriding(control, self.environ, self.library):
                receipts[control] = self._receipt(control, variable, "no effect")
        return made.options, group, receipts

    def _copies_receipt(self, control: CopyEngine, policy: Receipt | None) -> Receipt:
        """Our own copies need no policy; where NCCL has one, it is set too."""
        barriers = WITHOUT_BLOCKS if memory_operations(self.torch or load_torch()) is not None else WITH_BLOCKS
        detail = (
            "all-gather and all-to-all by copies of our own: no blocks for what peers send; this rank's own piece may "
            f"take some; {barriers}"
        )
        no_policy = support(control, "NCCL environment").refusal(self.name, self.library.version)
        if policy is not None and policy.status == "applied" and no_policy is None:
            detail += f"; NCCL: {policy.detail}"
        return self._receipt(control, detail)


def _with_stream(receipt: Receipt, stream: Any) -> Receipt:
    if receipt.status != "applied":
        return receipt
    detail = f"{receipt.detail}; our own comm stream has priority {stream.priority}"
    return replace(receipt, status="applied" if stream.priority < 0 else "no effect", detail=detail)
