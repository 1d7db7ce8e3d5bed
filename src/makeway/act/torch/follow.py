"""What a process of an unmodified program does at the program's steps: record them, time them, or try controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch.distributed as dist
from torch.optim.optimizer import Optimizer

from makeway.act.launch.step_files import STEPS, StepLogFile, StepSettings, read_settings
from makeway.values.control import Control

if TYPE_CHECKING:
    from makeway.act.torch.process import Process
    from makeway.act.torch.trial import LiveTrial


class Follower(Protocol):
    """Acts at each step, from the first process group on."""

    def start(self) -> None: ...
    def stop(self, reason: str | None) -> None:
        """Act no more; `reason`: what cut it short, None for the end of the program."""


class Followed:
    """The one follower of this process, begun with its first process group."""

    def __init__(
        self, settings: StepSettings, fail: Callable[[Exception], None], *, optimizer: Optimizer | None = None
    ) -> None:
        self.settings, self._fail = settings, fail
        self._optimizer = optimizer  # whose steps count; None: as the settings say
        self._follower: Follower | None = None

    @property
    def switches(self) -> bool:
        """Whether controls change between steps."""
        return self.settings.kind in ("compare", "tune")

    def at_first(self, controls: Sequence[Control]) -> tuple[Control, ...]:
        """The controls to begin with: those of the first setting in a trial, else all."""
        if self.switches:
            return self.settings.controls[0]
        return tuple(controls)

    def group_made(self, process: Process) -> None:
        """Begin; a later process group, after the first was destroyed, begins nothing."""
        if self._follower is not None:
            return
        directory = Path(self.settings.directory) if self.settings.directory else None
        log = StepLogFile(directory, rank=dist.get_rank(), ranks=dist.get_world_size())
        if self.settings.kind == "record":
            from makeway.act.torch.recorder import Recorder

            self._follower = Recorder(self.settings, log)
        elif self.settings.kind == "measure":
            from makeway.act.torch.trial import Stopwatch

            self._follower = Stopwatch(self.settings, log)
        else:
            from makeway.act.torch.trial import LiveTrial

            self._follower = LiveTrial(self.settings, log, process, optimizer=self._optimizer)
        try:
            self._follower.start()
        except Exception as error:
            self._follower.stop(str(error))
            raise

    @property
    def trial(self) -> LiveTrial | None:
        """The trial that has begun; None where this process makes none."""
        from makeway.act.torch.trial import LiveTrial

        return self._follower if isinstance(self._follower, LiveTrial) else None

    def group_goes(self) -> None:
        if self._follower is not None and self.switches:
            self._follower.stop(None)

    def at_exit(self) -> None:
        if self._follower is not None:
            self._follower.stop(None)


def followed(environ: Mapping[str, str], fail: Callable[[Exception], None]) -> Followed | None:
    """As the file named by MAKEWAY_STEPS says; None without one."""
    path = environ.get(STEPS)
    return Followed(read_settings(Path(path)), fail) if path else None
