"""`doctor`: what this machine offers, which controls can work here, and what the self-test proved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from makeway.act.doctor.facts import Machine, cautions, look_around
from makeway.act.doctor.self_test import SelfTest, proof, run_self_test
from makeway.act.doctor.works import PLATFORMS, Answer, absent, answers
from makeway.values.support import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """One machine: its facts, what can work there, and the self-test where one ran."""

    facts: Machine
    cautions: tuple[str, ...]  # what prevents overlap whatever the plan says
    absent: Mapping[Platform, str | None]  # why nothing can work on a platform; None: something might
    controls: tuple[Answer, ...]
    self_test: SelfTest | None

    def working(self, platform: Platform) -> int:
        """How many controls can work on a platform by at least one route."""
        return len({answer.control for answer in self.controls if answer.platform == platform and answer.works})


def doctor(
    *,
    self_test: bool = False,
    machine: Machine | None = None,
    progress: Callable[[str], None] = lambda stage: None,
) -> Checkup:
    """A checkup of this machine, or of a described one; `self_test` tries every control that can be tried here."""
    machine = machine or look_around()
    tested = run_self_test(machine, progress=progress) if self_test else None
    return Checkup(
        facts=machine,
        cautions=cautions(machine),
        absent={platform: absent(machine, platform) for platform in PLATFORMS},
        controls=tuple(
            replace(answer, proof=proof(tested, machine, answer.platform, answer.control, answer.route))
            for answer in answers(machine)
        ),
        self_test=tested,
    )
