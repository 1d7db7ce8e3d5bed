"""The model against a cycle-level GPU simulator, predicted from its runs of single kernels.

Bounds are what the model reaches, with a margin for the draws; the targets stand beside them. The referee's files
are read where they are and never copied here.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from functools import cache
from statistics import fmean, median, pstdev

import pytest
from tests.recordings import REFEREE_BLOCKS, REFEREE_RUNS, needs_referee_runs

from makeway.model.validate import validate
from makeway.model.validate.referee import Errors, Referee, RefereeSummary, alone_kernels
from makeway.model.validate.referee_model import ALL, SPREAD_WITHIN_WAVE, Alone, block_cycles, predict
from makeway.model.validate.rows import parse_csv
from makeway.show.referee import TARGETS

pytestmark = needs_referee_runs
REACHED = {"total": (0.022, 0.055), "comm": (0.038, 0.10), "start": (0.015, 0.035)}  # mean and worst


@cache
def checked() -> Referee:
    result = validate(data=REFEREE_RUNS).referee
    assert result is not None
    return result


def summary() -> RefereeSummary:
    result = checked().summary
    assert result is not None
    return result


@cache
def alone() -> dict[str, Alone]:
    return {given.scenario: given for given in alone_kernels([row for row in _table() if row["role"] == "alone"])}


def _table() -> list[dict[str, str]]:
    return parse_csv(REFEREE_RUNS.read_text())


@pytest.mark.parametrize("quantity", REACHED)
def test_errors_are_within_what_was_reached_and_within_the_targets(quantity: str) -> None:
    errors: Errors = getattr(summary(), quantity)
    (mean, worst), (target_mean, target_worst) = REACHED[quantity], TARGETS[quantity]
    print(f"{quantity}: {errors.mean:.3f} / {errors.worst:.3f} at {errors.worst_at}; target {TARGETS[quantity]}")
    assert errors.mean <= mean <= target_mean
    assert errors.worst <= worst <= target_worst


def test_every_scenario_is_covered_by_its_own_runs_alone() -> None:
    assert len(checked().rows) == 11
    assert all(row.covered and not row.reason for row in checked().rows)


def test_every_effect_beyond_the_replicas_spread_has_the_right_sign() -> None:
    assert summary().signs >= 20
    assert summary().wrong_signs == ()


def test_a_pad_that_lets_communication_in_pays_and_deeper_pads_lose() -> None:
    totals = {row.id: (row.published, row.predicted or 0.0) for row in checked().rows}
    for index in (0, 1):  # published, predicted
        change = {r: totals[f"gemm_comm_{r}"][index] / totals["gemm_comm_r16"][index] - 1 for r in ("r12", "r8", "r4")}
        assert -0.11 < change["r12"] < -0.05
        assert change["r12"] < change["r8"] < change["r4"]
        assert change["r4"] > 0.15


def test_each_kept_mechanism_is_worth_its_place_and_turnaround_is_not() -> None:
    every, ablation = summary(), {entry.setting: entry for entry in checked().ablation}
    assert every.comm is not None
    for name in ("sm neighbours", "dram latency", "block spread", "l2 state"):
        without = ablation[f"without {name}"]
        assert without.comm is not None
        assert without.comm.mean > every.comm.mean, name
    for name in ("sm neighbours", "dram latency", "l2 state"):
        assert ablation[f"without {name}"].total.mean > 1.25 * every.total.mean, name
    # a negative result: the block time that meets the total alone already holds the gaps
    assert ablation["without turnaround"].total.mean == pytest.approx(every.total.mean, abs=0.004)
    assert ablation["none of them"].total.mean > 3 * every.total.mean


def test_the_model_is_far_better_than_adding_up_or_taking_the_longest() -> None:
    baselines = checked().baselines
    assert baselines
    for errors in baselines.values():
        assert errors.mean > 5 * summary().total.mean


# --- the constants, from kernels alone ---------------------------------------------------------


def test_nine_runs_of_communication_alone_share_one_time_per_float() -> None:
    """One block time per float and group explains 1 to 8 blocks, 256 threads, three sizes, clean L2, double DRAM."""
    per_float = {
        name: block_cycles(given, ALL) / given.launch.size.block
        for name, given in alone().items()
        if given.launch.is_comm and given.launch.size
    }
    assert len(per_float) == 9
    assert pstdev(per_float.values()) / fmean(per_float.values()) < 0.025
    assert max(per_float.values()) / min(per_float.values()) < 1.08


def test_residencies_of_the_product_alone_share_one_block_time_except_the_full_one() -> None:
    """A full SM takes 5 to 9 % more of a block than its turnaround and neighbours explain: a miss of the model."""
    full, *others = (block_cycles(alone()[f"alone_gemm_r{resident}"], ALL) for resident in (16, 12, 8, 4))
    assert pstdev(others) / fmean(others) < 0.01
    assert full / fmean(others) == pytest.approx(1.07, abs=0.02)


def test_a_run_alone_is_predicted_from_the_other_runs_alone() -> None:
    """Out of sample: other block counts, threads, sizes, residencies, clocks and L2 states of the same kernel."""
    errors = {}
    for name, given in alone().items():
        others = tuple(other for other in alone().values() if other is not given)
        prediction = predict((given.launch,), others, ALL)
        assert "scaled from" in prediction.assumed[0]
        errors[name] = abs(prediction.times.total / given.total - 1)
    print(f"runs alone from other runs alone: {fmean(errors.values()):.3f} / {max(errors.values()):.3f}")
    assert len(errors) == 15
    assert fmean(errors.values()) < 0.045
    assert max(errors.values()) < 0.11  # double bytes: traffic does not grow in proportion


def test_most_of_the_spread_at_full_residency_is_within_waves() -> None:
    blocks: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    with REFEREE_BLOCKS.open() as file:
        for row in csv.DictReader(file):
            if row["scenario"] in ("alone_gemm_r16", "alone_gemm_r12"):
                blocks[row["scenario"], row["replica"]].append((int(row["start"]), int(row["end"])))
    parts = []
    for (scenario, _), spans in blocks.items():
        wave = int(scenario.rpartition("_r")[2])
        lengths = [end - start for start, end in sorted(spans)]
        waves = [lengths[first : first + wave] for first in range(0, len(lengths), wave)]
        within = fmean((length - fmean(each)) ** 2 for each in waves for length in each) ** 0.5
        parts.append(within / pstdev(lengths))
    assert median(parts) == pytest.approx(SPREAD_WITHIN_WAVE, abs=0.06)
