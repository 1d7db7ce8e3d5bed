"""What launch shim and tuner plugin carry into this process, switched between the settings of a trial.

On GPUs not yet run on hardware.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from makeway.act.launch.start.sitecustomize import RECEIPTS, RULES
from makeway.act.preload.rule_sets import LoadedShim
from makeway.act.switching import WHOLE_RUNS, not_switchable
from makeway.act.tuner.agreed import AgreedChannels
from makeway.act.tuner.carry import RULES as TUNER_RULES
from makeway.values.control import CommBlocks, CommPriority, Control, SmemPad
from makeway.values.errors import UnsupportedError

GRAPHS = (
    "the program launches CUDA or HIP graphs, whose kernels and collectives keep the controls that they were captured "
    f"with; {WHOLE_RUNS}"
)
OTHER_RULES = "the launch shim of this process has the rules of another run"


class Carried:
    """The rule set of the launch shim and the channels of the tuner plugin, for one process of a trial."""

    def __init__(self, sets: Sequence[Sequence[Control]], *, backend: str, environ: Mapping[str, str]) -> None:
        self._backend = backend
        self._controls = tuple(dict.fromkeys(control for controls in sets for control in controls))
        self._shim: LoadedShim | None = None
        self._no_shim = f"this program was started without the launch shim, so nothing can be switched; {WHOLE_RUNS}"
        if RULES in environ:
            try:
                self._shim = _shim_of(len(sets))
            except UnsupportedError as error:
                self._no_shim = f"{error}; {WHOLE_RUNS}"
        self.channels: AgreedChannels | None = None
        if backend != "cpu" and self._has(CommBlocks) and TUNER_RULES in environ and RECEIPTS in environ:
            self.channels = AgreedChannels(sets, rules=Path(environ[TUNER_RULES]), receipts=Path(environ[RECEIPTS]))

    def refusal(self, steps: int) -> str | None:
        """Why controls stay as they are, after a block of so many steps; None when they can be switched."""
        channels = self.channels.look(steps) if self.channels is not None else None
        if self._shim is not None and self._shim.graph_launches and self._captured:
            return GRAPHS
        if self._backend == "cpu":
            return None
        for control in self._controls:
            if reason := not_switchable(control, self._backend):
                return reason
        if self._shim is None:
            return self._no_shim
        if self._has(CommBlocks) and self.channels is None:
            return f"the tuner plugin was not given to this program, so comm-blocks cannot be switched; {WHOLE_RUNS}"
        return channels

    @property
    def _captured(self) -> bool:
        """Whether a graph would keep one of the controls."""
        return self._has(SmemPad, CommPriority) or (self._backend != "cpu" and self._has(CommBlocks))

    def _has(self, *kinds: type[Control]) -> bool:
        return any(isinstance(control, kinds) for control in self._controls)

    def use(self, number: int) -> None:
        """Put the launch rules of a setting in force, from the next launch on."""
        if self._shim is not None:
            self._shim.use(number)


def _shim_of(sets: int) -> LoadedShim:
    shim = LoadedShim()
    if shim.sets != sets:
        raise UnsupportedError(OTHER_RULES)
    return shim


def carried(sets: Sequence[Sequence[Control]], *, backend: str) -> Carried:
    """What this process' own environment names."""
    return Carried(sets, backend=backend, environ=os.environ)
