"""What became of a control: only what processes have reported, and the worst rank counts."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.launch.compare_run import compare_run
from makeway.act.launch.environment import NEVER_ON, needs_of, needs_of_trial, receipts_at_start
from makeway.act.launch.outcome import Outcome, outcomes
from makeway.act.launch.receipt_file import ProcessReceipts, read_receipt_files
from makeway.act.preload.receipts import KernelCounts, LaunchReceipts
from makeway.values.control import CommBlocks, CommPriority, CommThreads, Control, CopyEngine, SmemPad, control_word
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt, Status
from makeway.values.support import Platform

PAD, GEMM_PAD, PRIORITY, COPY = SmemPad(1024), SmemPad(2048, "gemm*"), CommPriority(), CopyEngine()
statuses: st.SearchStrategy[Status] = st.sampled_from(("applied", "refused", "no effect"))
counts = st.integers(0, 1000)


def kernel(
    name: str = "gemm_128", *, seen: int, done: int = 0, refused: int = 0, skipped: int = 0, reason: str = ""
) -> KernelCounts:
    comm = name.startswith("nccl")
    return KernelCounts(
        kernel=name,
        comm=comm,
        seen=seen,
        padded=0 if comm else done,
        refused=refused,
        skipped=skipped,
        prioritised=done if comm else 0,
        asked_bytes=0,
        given_bytes=0,
        reason=reason,
    )


def shim(*kernels: KernelCounts, rank: int | None = 0, pid: int = 10) -> LaunchReceipts:
    return LaunchReceipts(pid=pid, rank=rank, notes=(), kernels=kernels)


def python(control: Control, status: Status, *, rank: int | None = 0, detail: str = "said so") -> ProcessReceipts:
    receipt = Receipt(control=control, status=status, detail=detail, carrier="torch on CPU", rank=rank)
    return ProcessReceipts(pid=20, rank=rank, receipts=(receipt,))


def outcomes_of(
    *controls: Control, shims: tuple[LaunchReceipts, ...] = (), pythons: tuple[ProcessReceipts, ...] = ()
) -> tuple[Outcome, ...]:
    plan = Plan(controls=controls)
    return outcomes(plan, receipts_at_start(plan, needs_of(plan, {})), shims, pythons)


# --- laws ---------------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 64), statuses, min_size=1))
def test_a_control_is_applied_only_when_every_rank_has_it(by_rank: dict[int, Status]) -> None:
    [outcome] = outcomes_of(COPY, pythons=tuple(python(COPY, status, rank=rank) for rank, status in by_rank.items()))
    assert [(receipt.rank, receipt.status) for receipt in outcome.receipts] == sorted(by_rank.items())
    assert (outcome.status == "applied") == (set(by_rank.values()) == {"applied"})
    assert outcome.status in by_rank.values()


@given(st.lists(statuses, min_size=1), st.randoms(use_true_random=False))
def test_the_order_in_which_processes_are_read_does_not_matter(said: list[Status], draw: object) -> None:
    receipts = [python(COPY, status, detail=status) for status in said]
    shuffled = list(receipts)
    draw.shuffle(shuffled)  # type: ignore[attr-defined]
    assert outcomes_of(COPY, pythons=tuple(receipts)) == outcomes_of(COPY, pythons=tuple(shuffled))


@given(st.lists(st.tuples(counts, counts), min_size=1, max_size=5))
def test_launches_of_all_processes_of_a_rank_are_counted(launched: list[tuple[int, int]]) -> None:
    shims = tuple(
        shim(kernel(seen=padded + skipped, done=padded, skipped=skipped), pid=pid)
        for pid, (padded, skipped) in enumerate(launched)
    )
    [outcome] = outcomes_of(PAD, shims=shims)
    [receipt] = outcome.receipts
    padded, skipped = (sum(column) for column in zip(*launched, strict=True))
    assert dict(receipt.evidence) == {
        "launches seen": padded + skipped,
        "launches changed": padded,
        "launches refused": 0,
        "launches skipped": skipped,
    }
    assert receipt.status == ("applied" if padded else "no effect")
    assert receipt.carrier == "launch shim"


@given(counts, st.integers(1, 1000))
def test_one_refused_launch_is_enough_to_say_refused(padded: int, refused: int) -> None:
    [outcome] = outcomes_of(PAD, shims=(shim(kernel(seen=padded + refused, done=padded, refused=refused)),))
    assert outcome.status == "refused"


@given(st.permutations([GEMM_PAD, PRIORITY, COPY]))
def test_outcomes_come_in_the_plans_order_whoever_told(controls: list[Control]) -> None:
    assert [outcome.control for outcome in outcomes_of(*controls)] == controls


# --- who knows what -----------------------------------------------------------------------------


def test_where_nobody_says_anything_it_was_not_seen() -> None:
    assert [outcome.status for outcome in outcomes_of(PAD, PRIORITY, COPY)] == ["not seen"] * 3
    [outcome] = outcomes_of(COPY)
    assert outcome.receipts[0].rank is None
    assert "NCCL_CTA_POLICY=2 was set, and no process has confirmed" in outcome.receipts[0].detail


def test_a_pad_belongs_to_the_first_pattern_that_matches() -> None:
    gemm, other = outcomes_of(
        GEMM_PAD, SmemPad(512, "*128"), shims=(shim(kernel("gemm_128", seen=3, done=3), kernel("conv_128", seen=2)),)
    )
    assert (gemm.status, gemm.receipts[0].detail) == ("applied", "3 of 3 launches padded")
    assert (other.status, other.receipts[0].detail) == ("no effect", "0 of 2 launches padded")


def test_a_kernel_that_never_came_is_not_seen() -> None:
    [outcome] = outcomes_of(GEMM_PAD, shims=(shim(kernel("conv", seen=5)),))
    assert (outcome.status, outcome.receipts[0].detail) == ("not seen", "no kernel named gemm* was launched")


def test_communication_is_no_business_of_a_pad_nor_compute_of_priority() -> None:
    launched = shim(kernel("gemm", seen=4, done=4), kernel("ncclDevKernel", seen=6, done=6))
    pad, priority = outcomes_of(PAD, PRIORITY, shims=(launched,))
    assert pad.receipts[0].detail == "4 of 4 launches padded"
    assert priority.receipts[0].detail == "6 of 6 launches raised in priority"


def test_a_pad_by_code_gets_what_no_name_matches() -> None:
    by_code = SmemPad(64, "code:0123456789abcdef")
    named, coded = outcomes_of(GEMM_PAD, by_code, shims=(shim(kernel("gemm", seen=1), kernel("odd", seen=2, done=2)),))
    assert (named.status, coded.status) == ("no effect", "applied")


def test_the_shims_word_on_pads_stands_and_priority_is_whoevers_had_it() -> None:
    launched = shim(kernel("gemm", seen=4, refused=1, skipped=3, reason="over the limit"), kernel("nccl", seen=1))
    pad, priority = outcomes_of(
        PAD, PRIORITY, shims=(launched,), pythons=(python(PAD, "applied"), python(PRIORITY, "applied"))
    )
    assert pad.receipts[0].detail == "0 of 4 launches padded, 1 refused, 3 left alone: over the limit"
    assert (pad.status, priority.status) == ("refused", "applied")


def test_a_rank_that_is_silent_about_a_control_counts() -> None:
    [outcome] = outcomes_of(
        PAD, shims=(shim(kernel(seen=1, done=1), rank=0),), pythons=(ProcessReceipts(pid=1, rank=1),)
    )
    assert [receipt.status for receipt in outcome.receipts] == ["applied", "not seen"]
    assert outcome.status == "not seen"


def test_processes_without_a_rank_count_only_where_there_is_no_rank() -> None:
    alone = python(COPY, "applied", rank=None)
    [outcome] = outcomes_of(COPY, pythons=(alone,))
    assert (outcome.status, outcome.receipts[0].rank) == ("applied", None)
    [outcome] = outcomes_of(COPY, pythons=(alone, python(COPY, "refused", rank=0)))
    assert [receipt.rank for receipt in outcome.receipts] == [0]
    assert outcome.status == "refused"


def test_a_process_has_one_rank_whichever_of_its_receipts_knows_it() -> None:
    both = (shim(kernel(seen=2, done=2), rank=None, pid=20),)
    [outcome] = outcomes_of(PAD, shims=both, pythons=(ProcessReceipts(pid=20, rank=5),))
    assert [(receipt.rank, receipt.status) for receipt in outcome.receipts] == [(5, "applied")]


def test_why_a_process_could_apply_nothing_is_the_reason_given() -> None:
    [outcome] = outcomes_of(COPY, pythons=(ProcessReceipts(pid=1, rank=0, error="makeway is not importable"),))
    assert (outcome.status, outcome.receipts[0].detail) == ("not seen", "makeway is not importable")


def test_a_refusal_before_the_start_gives_way_to_what_was_applied_after() -> None:
    plan = Plan(controls=(PRIORITY,))
    at_start = receipts_at_start(plan, needs_of(plan, {}))
    refused = [replace(receipt, status="refused") for receipt in at_start]
    assert outcomes(plan, refused, (), (python(PRIORITY, "applied"),))[0].status == "applied"
    assert outcomes(plan, refused, (), (python(PRIORITY, "no effect"),))[0].status == "refused"


# --- files --------------------------------------------------------------------------------------


def test_receipts_are_read_and_a_broken_file_is_said(tmp_path: Path) -> None:
    row = {"control": "priority", "status": "applied", "detail": "d"}
    whole = {"pid": 7, "rank": 1, "backend": "cpu", "receipts": [row]}
    (tmp_path / "torch-7.json").write_text(json.dumps(whole))
    (tmp_path / "torch-8.json").write_text("{")
    (tmp_path / "torch-9.json.new").write_text("{")
    good, bad = read_receipt_files(tmp_path)
    assert good.receipts == (Receipt(control=PRIORITY, status="applied", detail="d", rank=1),)
    assert (good.rank, good.error) == (1, None)
    assert (bad.pid, bad.rank, bad.receipts) == (8, None, ())
    assert "torch-8.json cannot be read" in str(bad.error)


@pytest.mark.parametrize(("control", "status"), [("priority", "done"), ("priority", ""), ("nonsense", "applied")])
def test_unknown_controls_and_statuses_are_an_error_of_the_process(control: str, status: str, tmp_path: Path) -> None:
    receipt = {"control": control, "status": status, "detail": ""}
    (tmp_path / "torch-7.json").write_text(json.dumps({"pid": 7, "receipts": [receipt]}))
    [read] = read_receipt_files(tmp_path)
    assert read.receipts == ()
    assert read.error is not None


@pytest.mark.parametrize("platform", [None, "cuda", "rocm"])
@given(st.sets(st.sampled_from([COPY, PRIORITY, PAD, CommBlocks(4), CommThreads(256)]), min_size=1))
def test_a_job_that_alternates_sets_no_variable_and_says_so_where_it_never_came_to_the_plan(
    platform: Platform | None, controls: set[Control]
) -> None:
    plan = Plan(controls=tuple(sorted(controls, key=control_word)))
    needs = needs_of_trial(needs_of(plan, {}, platform=platform), ((), plan.controls))
    assert needs.settings == {}
    assert needs.read_by_nccl == {}
    for outcome in outcomes(plan, receipts_at_start(plan, needs), (), ()):
        (receipt,) = outcome.receipts
        assert receipt.status != "applied"
        assert "was set" not in receipt.detail


def test_a_comparison_on_cpu_ranks_that_ends_before_its_first_block_claims_nothing_for_the_plan(tmp_path: Path) -> None:
    program = [sys.executable, "-c", f"import os; open({str(tmp_path / 'seen')!r}, 'w').write(repr(dict(os.environ)))"]
    compared = compare_run(program, Plan(controls=(COPY,)))
    [receipt] = compared.controls[0].receipts
    assert (receipt.status, receipt.detail) == ("not seen", f"no process applied it: {NEVER_ON}")
    assert "NCCL_CTA_POLICY" not in (tmp_path / "seen").read_text()


def test_a_trial_may_have_several_settings_of_one_control() -> None:
    sets = ((), (CommBlocks(12),), (CommBlocks(6),))
    plan = Plan(controls=(CommBlocks(12),))
    (outcome,) = outcomes(plan, receipts_at_start(plan, needs_of(plan, {})), (), (), trial=sets)
    assert outcome.control == CommBlocks(12)
