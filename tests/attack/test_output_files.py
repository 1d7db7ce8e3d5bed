"""A file that makeway writes appears whole or not at all, and what was there before stays until then."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from tests.attack import hostile_traces
from tests.attack.running import MAKEWAY, ROOT, TRACEBACK, run

BEFORE = "what was there before\n"
CPU_PLAN = str(ROOT / "examples" / "cpu-plan.toml")
SIMULATE = ("simulate", "gemm-ar", "--device", "A100-SXM4-80GB", "--policies", "none")
PLANS = ("plan", "gemm-ar", "--device", "A100-SXM4-80GB")
WRITERS = {
    "export --out": ("export", CPU_PLAN, "--to", "torch", "--out", "{out}"),
    "plan --out": (*PLANS, "--out", "{out}"),
    "plan --html": (*PLANS, "--html", "{out}"),
    "simulate --html": (*SIMULATE, "--html", "{out}"),
    "analyze --html": ("analyze", "{trace}", "--html", "{out}"),
    "analyze --perfetto": ("analyze", "{trace}", "--perfetto", "{out}"),
}
FITS = 64  # bytes: less than any of these files has


def limited(most: int) -> None:
    """Python ignores SIGXFSZ: a write beyond the limit fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@pytest.mark.parametrize("writer", WRITERS)
def test_a_failed_write_leaves_what_was_there(tmp_path: Path, writer: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    out = place / "out"
    out.write_text(BEFORE)
    (tmp_path / "trace.json").write_bytes(hostile_traces.ordinary())
    words = [word.format(out=out, trace=tmp_path / "trace.json") for word in WRITERS[writer]]
    ended = run(*MAKEWAY, *words, prepare=lambda: limited(FITS))
    assert out.read_text() == BEFORE
    assert [path.name for path in place.iterdir()] == ["out"]
    assert ended.code == 2, ended
    assert TRACEBACK not in ended.err
    assert "cannot write" in ended.err


def test_a_page_of_a_run_that_cannot_be_written_costs_no_exit_code(
    run_command: tuple[str, ...], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "out").write_text(BEFORE)
    words = (*run_command, "--html", str(place / "out"), "--", "sh", "-c", "exit 3")
    ended = run(*words, prepare=lambda: limited(512))
    assert ended.code == 3, ended
    assert TRACEBACK not in ended.err
    assert (place / "out").read_text() == BEFORE
    assert [path.name for path in place.iterdir()] == ["out"]
