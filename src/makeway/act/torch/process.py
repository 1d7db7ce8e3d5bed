"""One process of an unmodified program under a plan: its controls, from the first process group to the last."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cpu.direct import DirectGroup
from makeway.act.launch.receipt_file import ReceiptFile
from makeway.act.launch.start.sitecustomize import RULES
from makeway.act.launch.step_files import StepSettings
from makeway.act.torch.follow import Followed, followed
from makeway.act.torch.meeting import met, seated
from makeway.act.torch.modules import Modules
from makeway.act.torch.on_cpu import OnCpu
from makeway.act.torch.reducers import Switched
from makeway.act.torch.where import may_be_nccl, where_runs
from makeway.read.plan_file import load_plan
from makeway.values.control import Chunks, Compress, Control

if TYPE_CHECKING:  # loaded where they act: a program on CPU ranks waits for what is loaded here
    from makeway.act.torch.carried import Carried
    from makeway.act.torch.on_gpu import OnGpu
    from makeway.act.torch.trial import LiveTrial

WORLD = "the default group"


class Process:
    """Applies the plan when the program makes a process group; no method raises because of the plan."""

    def __init__(
        self,
        plan: Path | Sequence[Control],
        receipts: Path | None,
        *,
        settings: StepSettings | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        """`settings`: what happens at steps, of `optimizer` where it is given; by default as MAKEWAY_STEPS says."""
        self.file = ReceiptFile(receipts)
        self.controls: tuple[Control, ...] = ()
        self._life = ExitStack()  # what is undone with the default group
        self._on_cpu: OnCpu | None = None
        self._modules: Modules | None = None
        self._direct: dict[str, DirectGroup] = {}  # by name of the group
        self._on_gpu: OnGpu | None = None  # once a group may be NCCL's
        self._meetings = 0
        self.carried: Carried | None = None  # in a trial: launch shim and tuner plugin, where they may act
        self.began_ns = 0  # by `time.perf_counter_ns`: when work for the group began, the program's own left out
        self._followed: Followed | None = None  # what happens at steps, where a file of settings says so
        with self._guarded():
            self.controls = load_plan(plan).controls if isinstance(plan, Path) else tuple(plan)
            if settings is None:
                self._followed = followed(os.environ, fail=self.fail)
            else:
                self._followed = Followed(settings, self.fail, optimizer=optimizer)
            atexit.register(self.end_trial)

    def fail(self, error: Exception) -> None:
        """Note an error of ours."""
        self.file.fail(error, self.controls)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.fail(error)

    # --- before a group is made ----------------------------------------------------------------

    def group_options(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """What to change in a call of `init_process_group` or `new_group`: NCCL's options under the plan."""
        options = None
        with self._guarded():
            if may_be_nccl(given.get("backend"), torch):
                options = self._gpu().group_options(given, self._at_first)
        return {} if options is None else {"pg_options": options}

    @property
    def _at_first(self) -> tuple[Control, ...]:
        """The controls to begin with."""
        return self.controls if self._followed is None else self._followed.at_first(self.controls)

    # --- while the default group exists --------------------------------------------------------

    @property
    def trial(self) -> LiveTrial | None:
        """Where controls change between steps: who changes them."""
        return self._followed.trial if self._followed is not None else None

    def group_made(self, modules: Sequence[DistributedDataParallel] = (), *, took_ns: int = 0) -> None:
        """Apply the plan to the new default group, and read it back; `modules` exist already, on every rank.

        `took_ns`: what was done for it before.
        """
        self.began_ns = time.perf_counter_ns() - took_ns
        with self._guarded():
            self.file.rank = dist.get_rank()
            self.file.backend = where_runs()
            if self._followed is not None and self._followed.switches:
                self._carry(self._followed.settings.controls)
            if self.file.backend == "cpu":
                self._apply_on_cpu()
                assert self._modules is not None
                for module in modules:
                    self._modules.add(module, chosen=not module.bucket_bytes_cap_default)
            else:
                self.file.set(*self._gpu().receipts(self.controls))
                self._watch_modules()
            if self._followed is not None:
                self._followed.group_made(self)

    def _apply_on_cpu(self) -> None:
        first = self._at_first
        self._modules = modules = Modules(first, share=self.share, file=self.file)
        on_cpu = OnCpu(
            self.controls, dist.group.WORLD, join=self._meet, seat=seated, copies=modules.copies, at_first=first
        )
        if self._followed is not None and self._followed.switches:
            modules.switched = Switched(copies=on_cpu.may_copy)
        self._on_cpu = self._life.enter_context(on_cpu)
        if on_cpu.direct is not None:
            self._direct[WORLD] = on_cpu.direct
        self.file.set(*on_cpu.receipts)
        self._life.enter_context(modules.watched(copy=on_cpu.copying))

    def switch(self, controls: Sequence[Control], *, setting: int | None = None) -> None:
        """Other controls from now on; every rank must call it between the same collectives.

        `setting` is their number in the trial, by which launch shim and tuner plugin know them.
        """
        if self._on_cpu is not None:
            self.file.set(*self._on_cpu.switch(controls))
        if self._modules is not None:
            chunks = next((control for control in controls if isinstance(control, Chunks)), None)
            compress = next((control for control in controls if isinstance(control, Compress)), None)
            copy = self._on_cpu.copying if self._on_cpu is not None else None
            self._modules.switch(copy=copy, chunks=chunks, compress=compress)
        if self.carried is not None and setting is not None:
            self.carried.use(setting)

    def cannot_switch(self, steps: int) -> str | None:
        """Why controls stay as they are, after so many steps since the last question; None when `switch` works."""
        if (self._on_cpu if self.file.backend == "cpu" else self.carried) is None:
            return f"the plan could not be applied to this process: {self.file.error}"
        return self.carried.refusal(steps) if self.carried is not None else None

    def refused(self, sets: Sequence[Sequence[Control]], *, exact: bool) -> dict[int, str]:
        """The sets, by number, that this process cannot put in force as a whole, and why: asked on CPU ranks only.

        `exact`: a set that may change results by rounding is refused, too.
        """
        if self._on_cpu is None:
            return {}
        reasons = {number: self._on_cpu.refusal(controls, exact=exact) for number, controls in enumerate(sets)}
        return {number: reason for number, reason in reasons.items() if reason is not None}

    @property
    def shares_memory(self) -> bool:
        """Whether copies through shared memory reach all ranks of the default group."""
        return self._on_cpu is not None and self._on_cpu.direct is not None

    def end_trial(self) -> None:
        """Change no more controls between steps; what is in force stays."""
        with self._guarded():
            if self._followed is not None:
                self._followed.at_exit()
            self._record_copies()

    def settled(self) -> None:
        """No other controls follow those in force."""
        if self._on_cpu is not None:
            self._on_cpu.settled()

    def release_threads(self) -> None:
        """Undo what concerns this process alone, where other ranks cannot be asked."""
        if self._on_cpu is not None:
            self._on_cpu.release_threads()
        if self.carried is not None:
            self.carried.use(0)

    def share(self, group: dist.ProcessGroup) -> DirectGroup:
        """Shared memory with the ranks of a group; the first time, all of them must call it."""
        name = WORLD if group is dist.group.WORLD else str(group.group_name)
        if name not in self._direct:
            self._direct[name] = self._life.enter_context(self._meet(group))
        return self._direct[name]

    def _meet(self, group: dist.ProcessGroup | None) -> DirectGroup:
        assert group is not None
        self._meetings += 1
        return met(group, number=self._meetings)

    def group_added(self) -> None:
        """Set the threads that another group brought."""
        if self._on_cpu is not None:
            with self._guarded():
                self.file.set(*self._on_cpu.set_new_threads())

    def group_goes(self, group: dist.ProcessGroup | None) -> None:
        """Undo everything with the default group; the next one starts afresh."""
        if group is not None and group is not dist.group.WORLD:
            return
        with self._guarded():
            if self._followed is not None:
                self._followed.group_goes()
            self._record_copies()
            self._life.__exit__(*sys.exc_info())  # after an error peers may never finish what is under way
            self._direct.clear()
            self._on_cpu = self._modules = self._on_gpu = self.carried = None

    def _record_copies(self) -> None:
        if self._modules is not None:
            self._modules.record_copies()
            self._modules.record_compression()

    # --- on a GPU: not yet run on hardware -----------------------------------------------------

    def _watch_modules(self) -> None:
        """Give DistributedDataParallel modules smaller buckets or compression: all that is ours of them on a GPU."""
        if any(isinstance(control, Chunks | Compress) for control in self.controls):
            carrier = TORCH_CARRIERS[self.file.backend]
            self._modules = Modules(self._at_first, share=self.share, file=self.file, carrier=carrier)
            if self._followed is not None and self._followed.switches:
                self._modules.switched = Switched(copies=False)
            self._life.enter_context(self._modules.watched(copy=None))

    def _gpu(self) -> OnGpu:
        if self._on_gpu is None:
            from makeway.act.torch.on_gpu import OnGpu

            self._on_gpu = OnGpu(self.file)
        return self._on_gpu

    def _carry(self, sets: Sequence[Sequence[Control]]) -> None:
        """Find launch shim and tuner plugin; on CPU ranks there is a shim only where a launcher has set its rules."""
        if self.file.backend != "cpu" or RULES in os.environ:
            from makeway.act.torch.carried import carried

            self.carried = carried(sets, backend=self.file.backend)
            self._life.callback(self.carried.use, 0)
