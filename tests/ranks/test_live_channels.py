"""Channels that change between steps: two ranks whose calls ask the real tuner plugin, under a real trial.

The one thing that must never happen is that two ranks give the same call different channels: NCCL would hang.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.processes import free_port
from tests.ranks.test_run_ddp import ENDED_WITHIN_S

from makeway.act.launch.step_files import StepSettings, write_settings
from makeway.act.preload.build import library
from makeway.act.preload.rules import encode_rules, rules_of
from makeway.act.tuner.agreed import SEVERAL
from makeway.act.tuner.build import plugin
from makeway.act.tuner.carry import write_rules
from makeway.act.tuner.channel_orders import NOT_SEEN
from makeway.act.tuner.live import published
from makeway.act.tuner.tally import read_tallies
from makeway.values.control import CommBlocks
from makeway.values.plan import Plan

pytestmark = pytest.mark.timeout(2 * ENDED_WITHIN_S)
PROGRAM = str(Path(__file__).parent / "programs" / "channel_rank.py")
STEPS, CALLS, WARM_UP = 170, 3, 5
FOUR = CommBlocks(4)


class Ranks:
    """What two ranks of a comparison with `comm-blocks=4` answered and logged."""

    def __init__(self, place: Path, *, how: str = "plain", channels: int = 16) -> None:
        self.rules = write_rules([(), (FOUR,)], place)
        settings = StepSettings(kind="compare", steps=150, warm_up=WARM_UP, settings=((), ("comm-blocks=4",)))
        write_settings(place / "at-steps.json", settings)
        (place / "rules").write_bytes(encode_rules(*[rules_of(Plan(controls=()))] * 2))
        ours = {
            "MAKEWAY_RECEIPTS": str(place),
            "MAKEWAY_STEPS": str(place / "at-steps.json"),
            "MAKEWAY_RULES": str(place / "rules"),
            "MAKEWAY_TUNER_RULES": str(self.rules),
            "NCCL_TUNER_PLUGIN": str(plugin()),
            "LD_PRELOAD": str(library()),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": "2",
        }
        command = [sys.executable, PROGRAM, str(STEPS), str(CALLS), str(channels), how]
        ranks = [
            subprocess.Popen(
                command,
                env={**os.environ, **ours, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        ended = [rank.communicate(timeout=ENDED_WITHIN_S) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], [said for _, said in ended]
        self.lines: list[dict[str, Any]] = [json.loads(out) for out, _ in ended]
        assert [line["failures"] for line in self.lines] == [[], []]
        self.log = self.lines[0]["log"]
        self.tallies = read_tallies(place)
        # Whatever else happened.
        assert self.lines[0]["answers"] == self.lines[1]["answers"]
        assert [tally.late for tally in self.tallies] == [0, 0]

    @property
    def answers(self) -> list[list[int]]:
        answers: list[list[int]] = self.lines[0]["answers"]
        return answers


def test_steps_that_count_have_the_channels_of_their_setting_on_every_rank(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    assert ranks.log["error"] is None
    at, switches = 1 + WARM_UP, 0
    for block in ranks.log["blocks"]:
        steps = ranks.answers[at : at + len(block["times_ns"])]
        wanted = 4 if block["setting"] else 0
        assert [set(step) for step in steps[block["dropped"] :]] == [{wanted}] * 3
        if block["dropped"]:  # the change comes one step after ranks have agreed
            switches += 1
            assert [set(step) for step in steps[:2]] == [{4 - wanted}, {wanted}]
        at += len(steps)
    assert switches >= 8
    assert published(ranks.rules) == 1 + switches + (ranks.log["blocks"][-1]["setting"] != ranks.log["final"])
    given = sum(answer == 4 for step in ranks.answers for answer in step)
    assert [dict(tally.given) for tally in ranks.tallies] == [{4: given}] * 2


def test_a_second_communicator_ends_the_trial(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, how="two")
    assert ranks.log["error"] == SEVERAL


def test_a_change_that_one_rank_does_not_see_is_taken_back(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, how="blind")
    assert ranks.log["error"] == NOT_SEEN
    before = {answer for step in ranks.answers[:20] for answer in step}
    assert before == {0}
    assert {answer for step in ranks.answers for answer in step} == {0}
    assert published(ranks.rules) == 3  # the first, the change, and the way back


def test_more_channels_than_communicators_have_are_refused_by_name(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, channels=2)
    assert ranks.log["error"] == (
        "communicators of this job have 2 channels, and comm-blocks=4 asks for more, which only a new start can give; "
        "compare whole runs (--compare-runs)"
    )
    assert {answer for step in ranks.answers for answer in step} == {0}
