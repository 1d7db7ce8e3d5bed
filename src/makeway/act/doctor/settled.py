"""Verdicts on what only hardware settles: occupancy, two kernels on one SM, the queue, costs, rates, the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from makeway.act.doctor.samples import BesideRun, Block, CostRun, DriverFacts, RatesRun, sampled_device
from makeway.act.doctor.verdicts import Check, Verdict
from makeway.model.residency import blocks_beside, resident_blocks
from makeway.model.validate.rows import mean_absolute_error
from makeway.model.validate.run import CLOSE, Validation
from makeway.values.errors import UnknownNameError
from makeway.values.recorded_device import RecordedLimits

BESIDE = 0.5  # of the other kernel's blocks must have run beside the held ones, to call it room
ALONE = 0.05  # at most so many, to call it none: a clock may tick once a microsecond
MOST_EXTRA_NS = 25.0  # of a launch through the shim: docs/preload.md


def judge_occupancy(check: Check, facts: DriverFacts) -> Verdict:
    """Proved when the model's residency equals the driver's for every kernel and size of the sweep."""
    try:
        device = sampled_device(facts.device, facts.limits)
    except UnknownNameError as error:
        return check.untested(str(error).splitlines()[0])
    wrong = [(row, wanted) for row in facts.occupancy if row.blocks != (wanted := resident_blocks(device, row.block))]
    first = ""
    if wrong:
        row, wanted = wrong[0]
        block = f"{row.block.threads} threads, {row.block.registers_per_thread} registers, {row.block.smem_bytes:,} B"
        first = f"{row.kernel} of {block}: the driver says {row.blocks}, the model {wanted}"
    return check.verdict(
        held=bool(facts.occupancy) and not wrong,
        expected=f"{len(facts.occupancy)} answers equal to the model's",
        measured=f"{len(facts.occupancy) - len(wrong)} equal",
        detail=first,
    )


# --- two kernels on one SM -----------------------------------------------------------------------


def share_beside(held: Sequence[Block], other: Sequence[Block]) -> float:
    """The share of the other kernel's blocks that started on an SM while a held block was on it."""
    by_sm: dict[int, list[Block]] = {}
    for block in held:
        by_sm.setdefault(block.sm, []).append(block)
    beside = sum(
        any(each.start_ns <= block.start_ns < each.end_ns for each in by_sm.get(block.sm, ())) for block in other
    )
    return beside / len(other) if other else 0.0


def overtakes(held: Sequence[Block], other: Sequence[Block]) -> bool:
    """Whether the other kernel started before the last block of the one ahead was placed."""
    return min(block.start_ns for block in other) < max(block.start_ns for block in held)


def settled(runs: Sequence[BesideRun]) -> dict[str, str]:
    """The questions that the runs answer, in words; a run that shows neither is "unclear"."""
    answers = {}
    for run in runs:
        if not run.held_blocks or not run.other_blocks:
            answers[run.case] = "unclear"
        elif run.case == "queue":
            answers[run.case] = "back-fill" if overtakes(run.held_blocks, run.other_blocks) else "head of line"
        else:
            share = share_beside(run.held_blocks, run.other_blocks)
            answers[run.case] = "beside" if share >= BESIDE else "not beside" if share <= ALONE else "unclear"
    return answers


def judge_beside(check: Check, runs: Sequence[BesideRun]) -> Verdict:
    """Proved when every case ends as the model says; the driver's default carve-out and the queue are answers."""
    if not runs:
        return check.untested("no pair of kernels was tried")
    answers, expected = settled(runs), {}
    for run in runs:
        try:
            device = sampled_device(run.device, run.limits)
        except UnknownNameError as error:
            return check.untested(str(error).splitlines()[0])
        fits = blocks_beside(device, run.held, run.held_per_sm, run.other) > 0
        if run.case == "queue":
            expected[run.case] = "head of line" if device.vendor == "nvidia" else "back-fill"
        elif run.case != "default carve-out":  # no source says what the driver chooses
            expected[run.case] = "beside" if fits else "not beside"
    wrong = [case for case, answer in expected.items() if answers[case] != answer]
    return check.verdict(
        held=not wrong,
        expected=", ".join(f"{case}: {answer}" for case, answer in expected.items()),
        measured=", ".join(f"{case}: {answer}" for case, answer in answers.items()),
        detail=f"unlike the model: {', '.join(wrong)}" if wrong else "",
    )


# --- costs and rates -----------------------------------------------------------------------------


def judge_cost(check: Check, bare: CostRun, shim: CostRun) -> Verdict:
    """Proved when a launch through the shim costs at most the documented extra, beyond the spread of the rounds."""
    extra = median(shim.round_ns) - median(bare.round_ns)
    spread = max(_quartile_range(bare.round_ns), _quartile_range(shim.round_ns))
    return check.verdict(
        held=extra - spread <= MOST_EXTRA_NS,
        expected=f"at most {MOST_EXTRA_NS:g} ns more than a bare launch, beyond the spread",
        measured=(
            f"{median(bare.round_ns):.0f} ns bare, {extra:+.0f} ns through the shim; quartiles of {len(bare.round_ns)} "
            f"rounds {spread:.0f} ns apart"
        ),
    )


def _quartile_range(values: Sequence[float]) -> float:
    low, _, high = quantiles(values, n=4)
    return high - low


def judge_rates(check: Check, run: RatesRun, limits: RecordedLimits | None = None) -> Verdict:
    """Proved when no measured rate is above the device file's peak: then the file is of another device."""
    try:
        device = sampled_device(run.device, limits)
    except UnknownNameError as error:
        return check.untested(str(error).splitlines()[0])
    shares, above = [], []
    for name, value in measured_rates(run).items():
        peak = getattr(device, name)
        words = name.removesuffix("_per_s").replace("_", " ")
        shares.append(f"{words} {value:.4g}/s" + (f" ({value / peak:.0%} of peak)" if peak else ""))
        if peak and value > peak:
            above.append(words)
    return check.verdict(
        held=not above,
        expected=f"at most the peaks of {device.name}",
        measured=", ".join(shares),
        detail=f"above the peak: {', '.join(above)}" if above else "",
    )


def measured_rates(run: RatesRun) -> dict[str, float]:
    """The rates by the names of device files."""
    names = ("fp16_flops_per_s", "tf32_flops_per_s", "hbm_bytes_per_s", "pcie_bytes_per_s", "link_bytes_per_s")
    return {name: value for name in names if (value := getattr(run, name)) is not None}


# --- the overlap bench and the model -------------------------------------------------------------


def judge_overlap(check: Check, document: Mapping[str, Any]) -> Verdict:
    """Proved when the bench ran, and the results of its collectives were right."""
    cells = document.get("cells") or []
    ratios = [float(cell["time_ratio"]) for cell in cells]
    return check.verdict(
        held=bool(ratios) and document.get("verified") is not False,
        expected="overlap measured for every grid, with right results",
        measured=str(document.get("verdict", "nothing")),
        detail="" if document.get("verified") is not False else "a collective returned wrong data",
    )


def own_table(device: str, document: Mapping[str, Any]) -> str:
    """The bench's cells as the table that `makeway validate --data` takes."""
    rows = [f"{device},{cell['grid_y']},{cell['grid_x']},{cell['time_ratio']}" for cell in document.get("cells") or []]
    return "\n".join(["device,grid_y,grid_x,time_ratio", *rows, ""])


def judge_own_table(check: Check, validation: Validation) -> Verdict:
    """Proved when every measured ratio is within a tenth of the model's, which has never seen them."""
    count = validation.all
    if not count.rows:
        reason = validation.uncovered[0].reason if validation.uncovered else "the table is empty"
        return check.untested(f"the model does not cover it: {reason}")
    mae = mean_absolute_error(validation.rows)
    return check.verdict(
        held=count.close == count.rows,
        expected=f"t_overlap / t_sequential of {count.rows} grids within {CLOSE:.0%} of the model's",
        measured=f"{count.close} within, mean absolute error {mae:.3f}",
    )
