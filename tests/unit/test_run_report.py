"""A run as a report: text, page and JSON show the same receipts, and the library function returns them."""

from __future__ import annotations

import json
import subprocess
import sys
from html import escape

import pytest

import makeway
from makeway.act.launch.environment import needs_of
from makeway.act.launch.outcome import Outcome
from makeway.act.launch.run import Run
from makeway.show.json import json as as_json
from makeway.show.page import page
from makeway.show.run import rank_ranges
from makeway.show.text import text
from makeway.values.control import CommBlocks, CommPriority, Control, SmemPad
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt, Status

PAD, PRIORITY, BLOCKS = SmemPad(1024, "gemm*"), CommPriority(), CommBlocks(16)


def receipt(control: Control, status: Status, rank: int, *, seen: int = 0, detail: str = "read back") -> Receipt:
    evidence = (("launches seen", seen), ("launches changed", seen - 1)) if seen else ()
    return Receipt(control=control, status=status, detail=detail, carrier="launch shim", rank=rank, evidence=evidence)


def example_run() -> Run:
    """A run of four ranks: one control applied on all, one on some."""
    needs = needs_of(Plan(controls=(PRIORITY, BLOCKS)), {"NCCL_MAX_CTAS": "8"})
    pads = [receipt(PAD, "applied", rank, seen=1200 + rank) for rank in (0, 1, 3)]
    refused = receipt(PAD, "refused", 2, seen=77, detail="too large")
    return Run(
        program=("torchrun", "train me.py"),
        rank=None,
        exit_code=3,
        killed_by=None,
        controls=(
            Outcome(control=PAD, receipts=(*pads[:2], refused, pads[2])),
            Outcome(control=PRIORITY, receipts=tuple(receipt(PRIORITY, "applied", rank) for rank in range(4))),
        ),
        variables=needs.variables,
        notes=("process 7 was left",),
    )


def test_every_receipt_is_in_text_page_and_json() -> None:
    shown = makeway.report_of(example_run(), arguments="makeway run")
    lines, markup, document = text(shown, width=400, verbose=True), page(shown), json.loads(as_json(shown))
    assert (document["applied"], document["all_applied"], document["exit_code"]) == (1, False, 3)
    assert document["program"] == ["torchrun", "train me.py"]
    for outcome, data in zip(example_run().controls, document["controls"], strict=True):
        assert data["status"] == outcome.status
        for wanted, given in zip(outcome.receipts, data["receipts"], strict=True):
            assert (given["rank"], given["status"], given["carrier"]) == (wanted.rank, wanted.status, wanted.carrier)
            assert given["evidence"] == dict(wanted.evidence)
            assert wanted.detail in lines
            assert escape(wanted.detail) in markup
            for _, counted in wanted.evidence:
                assert f"{counted:,}" in lines
                assert f"{counted:,}" in markup
    for variable in example_run().variables:
        assert variable.summary in lines


@pytest.mark.parametrize("width", [60, 80, 120])
def test_text_leads_with_the_verdict_and_fits(width: int) -> None:
    lines = text(makeway.report_of(example_run()), width=width).splitlines()
    assert " ".join(lines[:2]).startswith("makeway run: exit code 3; 1 of 2 controls applied")
    assert max(map(len, lines)) <= width


def test_ranks_with_the_same_receipt_share_a_row() -> None:
    lines = text(makeway.report_of(example_run()), width=120).splitlines()
    rows = [line.split()[:3] for line in lines if "read back" in line or "too large" in line]
    assert rows == [["pad=1KiB:gemm*", "applied", "0-1,3"], ["refused", "2", "too"], ["priority", "applied", "0-3"]]


@pytest.mark.parametrize(
    ("ranks", "shown"), [([0, 1, 2, 3, 5], "0-3,5"), ([4], "4"), ([0, 2, 4], "0,2,4"), ([None], "-"), ([], "")]
)
def test_ranks_are_written_as_ranges(ranks: list[int | None], shown: str) -> None:
    assert rank_ranges(ranks) == shown


def test_the_library_runs_a_program_and_returns_what_became_of_each_control() -> None:
    code = """if True:
        import sys, makeway
        ran = makeway.run([sys.executable, "-c", "raise SystemExit(3)"], ["comm-blocks=16"], environ={"PATH": "/bin"})
        [outcome] = ran.controls
        assert (ran.exit_code, ran.killed_by, outcome.status) == (3, None, "not seen"), ran
        assert outcome.receipts[0].carrier == "launcher"
        dry = makeway.dry_run(["true"], ["comm-blocks=16"], environ={})
        assert dry.needs.settings == {"NCCL_MIN_CTAS": "16", "NCCL_MAX_CTAS": "16"}
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
