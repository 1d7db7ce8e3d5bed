"""Twenty steps of training under every control end where torch's own defaults end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import free_port

STEPS = 20
TOLERANCE = 1e-4  # relative; of compressed gradients, whose rounding depends on how they are cut
RAN_WITHIN_S = 240
pytestmark = [pytest.mark.timeout(RAN_WITHIN_S + 60), pytest.mark.long]
CHECKS = Path(__file__).with_name("training_checks.py")


@pytest.fixture(scope="module")
def losses() -> dict[str, dict[str, list[float]]]:
    """By workload and compression, then by way: the loss of every step on rank 0 of two."""
    world = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [
        subprocess.Popen(
            (sys.executable, str(CHECKS)),
            env={**os.environ, **world, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=RAN_WITHIN_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [0, 0], [error for _, error in said]
    found: dict[str, dict[str, list[float]]] = json.loads(said[0][0])
    return found


@pytest.mark.parametrize("kind", ["ddp none", "fsdp2 none"])
def test_without_compression_every_loss_is_that_of_stock_to_the_bit(
    losses: dict[str, dict[str, list[float]]], kind: str
) -> None:
    """Two ranks add the same two numbers whatever carries them, and a sum of two has no order."""
    ways = losses[kind]
    assert {"overlap", "copy-engine"} < set(ways)
    for name, found in ways.items():
        assert found == ways["stock"], name


@pytest.mark.parametrize("kind", ["ddp fp16", "ddp powersgd"])
def test_with_compression_every_loss_is_near_that_of_stock(
    losses: dict[str, dict[str, list[float]]], kind: str
) -> None:
    for found in losses[kind].values():
        assert found == pytest.approx(losses[kind]["stock"], rel=TOLERANCE)


def test_twenty_steps_learn_something_and_compression_changes_it(losses: dict[str, dict[str, list[float]]]) -> None:
    """Else equal losses would say nothing."""
    for kind, ways in losses.items():
        assert len(ways["stock"]) == STEPS, kind
        assert ways["stock"][-1] != ways["stock"][0]
    assert losses["ddp none"]["stock"] != losses["ddp fp16"]["stock"]
    assert losses["ddp none"]["stock"] != losses["ddp powersgd"]["stock"]
