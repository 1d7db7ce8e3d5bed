"""The interface of a workload on a rank."""

from __future__ import annotations

from typing import Protocol

from makeway.act.measure.ranks.lanes import Schedule
from makeway.values.collective import Collective
from makeway.values.control import Control


class RankWorkload(Protocol):
    """A workload on this rank."""

    @property
    def description(self) -> str:
        """Shapes and sizes, for readers."""
        ...

    @property
    def exchange(self) -> Collective | None:
        """The collective that a round repeats; None where there are several kinds, or one rank."""
        ...

    @property
    def exchanges(self) -> int:
        """How often a round repeats it."""
        ...

    def refusal(self, control: Control) -> str | None:
        """Why a control cannot be used with this workload; None when it can."""
        ...

    def prepare(self, schedule: Schedule) -> None:
        """Reset the data before a round, untimed."""
        ...

    def run(self, schedule: Schedule) -> None:
        """Run one round."""
        ...

    def wrong(self, schedule: Schedule) -> str | None:
        """How the results of the round just run differ from what they must be; None when they are right."""
        ...
