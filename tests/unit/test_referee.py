"""Laws of the mechanisms that the referee's runs asked for, each on small programs, and the reading of such tables."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from makeway.cli.main import main
from makeway.model.residency import Need
from makeway.model.simulate.driver import Engine, run
from makeway.model.simulate.policies import latency_shares
from makeway.model.simulate.program import EngineOp, Program, Site, Turnaround
from makeway.model.simulate.run_result import RunResult
from makeway.model.validate.referee import referee
from makeway.model.validate.referee_model import SM, TURNAROUND

ENGINES: tuple[Engine, ...] = ("class", "block")
QUARTER = Need(
    warps=8, registers_per_warp=2048, scalar_registers_per_warp=0, smem_bytes=24_576, barriers=0, cluster=1
)  # four blocks fill an SM
SMALL = replace(QUARTER, warps=4, smem_bytes=1024)


def kernel(**changes: Any) -> EngineOp:
    fields: dict[str, Any] = {
        "name": "gemm",
        "kind": "kernel",
        "block": QUARTER,
        "blocks": 48,
        "work_ns": 1000.0,
        "share": 0.5,
        "hbm_per_ns": 1.0,
    }
    return EngineOp(**(fields | changes))


def collective(**changes: Any) -> EngineOp:
    return kernel(**({"name": "comm", "kind": "collective", "stream": "comm", "blocks": 4, "share": 0.0} | changes))


def program(*ops: EngineOp, **changes: Any) -> Program:
    fields: dict[str, Any] = {"sm": SM, "sites": (Site(part=None, gpc=0, sms=4),), "ranks": 1, "saturation": "soft"}
    return Program(ops=ops, **(fields | changes))


def times(result: RunResult) -> list[float]:
    return [value for op in result.times for value in (op.started_ns, op.ended_ns)]


# --- turnaround --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("blocks", [16, 32, 48, 160])
def test_a_turnaround_delays_a_kernel_by_one_gap_between_waves(engine: Engine, blocks: int) -> None:
    plain = run(program(kernel(blocks=blocks)), engine=engine).end_ns
    late = run(program(kernel(blocks=blocks), turnaround=Turnaround(base_ns=300.0)), engine=engine).end_ns
    assert late - plain == pytest.approx(300.0 * (blocks / 16 - 1), abs=1.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_turnaround_grows_with_the_blocks_of_the_sm(engine: Engine) -> None:
    gap = Turnaround(base_ns=100.0, per_block_ns=50.0)
    alone = replace(QUARTER, smem_bytes=98_304)
    for need, resident in ((QUARTER, 4), (alone, 1)):
        op = kernel(block=need, blocks=4 * resident * 2)
        delay = run(program(op, turnaround=gap), engine=engine).end_ns - run(program(op), engine=engine).end_ns
        assert delay == pytest.approx(100.0 + 50.0 * resident, abs=1.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_next_operation_waits_for_kept_rooms_too(engine: Engine) -> None:
    ops = (kernel(blocks=16), kernel(name="next", stream="other", blocks=16))
    plain = run(program(*ops), engine=engine).times[1].started_ns
    late = run(program(*ops, turnaround=Turnaround(base_ns=250.0)), engine=engine).times[1].started_ns
    assert late - plain == pytest.approx(250.0, abs=0.1)


def test_a_kept_room_shows_no_block_and_slows_nobody() -> None:
    ops = (kernel(blocks=16), kernel(name="small", stream="other", block=SMALL, blocks=4))
    result = run(program(*ops, turnaround=Turnaround(base_ns=9e5)), engine="block", sample_ns=0.0)
    shown = {op for sample in result.samples for held, _ in sample.holdings for op, _ in held}
    assert shown <= {0, 1}
    (_, last) = result.times
    assert last.ended_ns - last.started_ns == pytest.approx(2000.0)  # alone on its SM: its work over its share


# --- neighbours on an SM -----------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("exposure", [0.0, 0.2, 1.0])
def test_neighbours_never_speed_anything_up(engine: Engine, share: float, exposure: float) -> None:
    ops = (kernel(blocks=12), collective(block=SMALL, work_ns=3000.0))
    plain = run(program(*ops), engine=engine)
    beside = run(program(ops[0], replace(ops[1], share=share, exposure=exposure)), engine=engine)
    for before, after in zip(plain.times, beside.times, strict=True):
        assert after.ended_ns >= before.ended_ns - 0.01
    assert beside.times[0].ended_ns > plain.times[0].ended_ns  # its blocks take slots from the kernel's
    assert (beside.times[1].ended_ns > plain.times[1].ended_ns) == (exposure > 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_collective_beside_three_blocks_slows_by_its_exposure(engine: Engine) -> None:
    comm = collective(block=SMALL, work_ns=100.0, share=0.4, exposure=0.2)
    result = run(program(kernel(blocks=12, work_ns=1e6), comm), engine=engine)
    assert result.times[1].ended_ns == pytest.approx(100.0 * (1 + 0.2 * 3 * 0.5))


# --- memory latency ----------------------------------------------------------------------------


def test_latency_follows_the_knee_for_operations_that_only_wait_for_memory() -> None:
    for demand in (1.0, 10.0, 40.0, 400.0):
        share = latency_shares({0: demand}, {0: 1.0}, 40.0, 2.0)[0]
        assert share == pytest.approx((1 + (demand / 40.0) ** 2) ** -0.5, rel=1e-4)


def test_latency_leaves_an_operation_that_hides_it_alone_and_never_helps() -> None:
    shares = latency_shares({0: 30.0, 1: 10.0, 2: 0.0}, {0: 1.0, 1: 0.1, 2: 1.0}, 40.0, 2.0)
    assert shares[0] < shares[1] < 1.0
    assert shares[2] == 1.0
    alone = latency_shares({0: 30.0}, {0: 1.0}, 40.0, 2.0)
    assert shares[0] < alone[0]


# --- switches ----------------------------------------------------------------------------------


def mixed(**changes: Any) -> Program:
    ops = (
        kernel(blocks=40),
        collective(block=SMALL, work_ns=5000.0, hbm_per_ns=20.0, exposure=0.3),
        kernel(name="tail", blocks=20, after=(0,), work_ns=700.0, memory=0.2),
    )
    return program(*ops, hbm_per_ns=25.0, **changes)


@pytest.mark.parametrize("engine", ENGINES)
def test_neutral_switches_change_nothing(engine: Engine) -> None:
    neutral = mixed(turnaround=Turnaround(), hbm_knee=None)
    plain = replace(neutral, ops=tuple(replace(op, exposure=1.0, memory=1.0, jitter=None) for op in neutral.ops))
    # without a knee `memory` means nothing, and a collective without a share has no exposure
    assert times(run(neutral, engine=engine)) == times(run(plain, engine=engine))


@pytest.mark.parametrize(
    "changes",
    [
        {"turnaround": Turnaround(base_ns=90.0, per_block_ns=10.0)},
        {"hbm_knee": 2.0},
        {"turnaround": Turnaround(base_ns=90.0), "hbm_knee": 2.5},
    ],
)
def test_both_engines_agree_on_every_mechanism(changes: dict[str, Any]) -> None:
    base = mixed(**changes)
    base = replace(base, ops=tuple(replace(op, share=op.share or 0.25) for op in base.ops))
    by_class, by_block = (run(base, engine=engine) for engine in ENGINES)
    assert times(by_class) == pytest.approx(times(by_block), abs=0.5)


def test_one_operation_may_have_its_own_spread() -> None:
    ops = (kernel(jitter=0.0), kernel(name="other", stream="other", after=(0,)))
    plain, spread = (run(program(*ops, jitter=jitter), engine="block") for jitter in (0.0, 0.2))
    assert plain.times[0] == spread.times[0]
    assert plain.times[1].ended_ns != spread.times[1].ended_ns


# --- tables ------------------------------------------------------------------------------------


def line(scenario: str, *kernels: dict[str, Any], total: float, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "scenario": scenario,
        "role": "alone" if len(kernels) == 1 else "overlap",
        "replica": 0,
        "sms": 4,
        "dram_clock_mhz": 850,
        "l2_at_start": "modified",
        "total_cycles": total,
        "dram_read_bytes": 300_000,
        "dram_written_bytes": 300_000,
    }
    for number, fields in enumerate(kernels, 1):
        row |= {f"k{number}_{key}": value for key, value in fields.items()}
    return row | changes


def launched(name: str, args: str, blocks: int, **changes: Any) -> dict[str, Any]:
    fields = {
        "name": name,
        "stream": name,
        "grid_blocks": blocks,
        "threads": 512 if name == "comm" else 256,
        "registers": 24 if name == "comm" else 62,
        "smem_bytes": 20_480 if name == "comm" else 24_832,
        "args": args,
        "first_start": 0,
        "end": 30_000,
        "block_mean": 10_000,
        "block_sd": 500,
    }
    return fields | changes


GEMM, COMM = launched("gemm", "384x512x32", 48), launched("comm", "4x65536", 4, block_mean=30_000)
TABLE = [
    line("alone_gemm", GEMM, total=50_000),
    line("alone_comm", COMM, total=30_000),
    line("both", GEMM, COMM, total=75_000),
]


def test_a_prediction_never_sees_the_overlap_runs() -> None:
    (row,) = referee(_texts(TABLE), ablation=False).rows
    (other,) = referee(_texts([*TABLE[:2], line("both", GEMM, COMM, total=1_000_000)]), ablation=False).rows
    assert row.predicted == other.predicted
    assert row.published != other.published
    assert row.predicted is not None
    assert 50_000 < row.predicted < 85_000


def test_what_the_model_cannot_know_is_not_covered_and_says_why() -> None:
    strange = launched("sort", "7", 9)
    huge = launched("gemm", "384x512x32", 48, smem_bytes=200_000)
    table = [
        *TABLE,
        line("sorting", GEMM, strange, total=1.0),
        line("too_big", huge, COMM, total=1.0),
        line("other_threads", launched("gemm", "384x512x32", 48, threads=128), COMM, total=1.0),
        line("no_size", GEMM, launched("comm", "all", 4), total=1.0),
    ]
    reasons = {row.id: row.reason for row in referee(_texts(table), ablation=False).rows if not row.covered}
    assert set(reasons) == {"sorting", "too_big", "other_threads", "no_size"}
    assert "unknown kernel sort" in reasons["sorting"]
    assert "never fits" in reasons["too_big"]
    assert all(reasons.values())


def test_other_launches_of_a_known_kernel_are_scaled_and_say_so() -> None:
    table = [
        *TABLE,
        line("comm_first", COMM, GEMM, total=75_000),
        line("half", GEMM, launched("comm", "4x32768", 4), total=60_000),
        line("three", GEMM, COMM, launched("comm", "4x65536", 4, stream="comm"), total=110_000),
        line("fast", GEMM, COMM, total=70_000, dram_clock_mhz=1700),
    ]
    rows = {row.id: row for row in referee(_texts(table), ablation=False).rows}
    assert all(row.covered for row in rows.values())
    totals = {name: row.predicted or 0.0 for name, row in rows.items()}
    assert totals["half"] < totals["both"] < totals["three"]
    assert totals["fast"] < totals["both"]
    assert rows["comm_first"].predicted_start == 0.0
    assert "scaled from alone_comm" in rows["half"].reason
    assert not rows["both"].reason


def test_the_command_prints_rows_and_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.csv"
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in TABLE for key in row))
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows([*TABLE, line("sorting", GEMM, launched("sort", "7", 9), total=1.0)])
    path.write_text(text.getvalue())
    assert main(["validate", "--data", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    both, sorting = document["rows"]
    assert both["covered"]
    assert both["error"] == pytest.approx(both["predicted"] / both["published"] - 1, abs=1e-5)
    assert not sorting["covered"]
    assert sorting["predicted"] is None
    assert sorting["reason"]
    assert document["summary"]["covered"] == 1
    assert {"sum of alone times", "longest alone time"} == set(document["baselines"])
    assert [entry["setting"] for entry in document["ablation"]][-1] == "none of them"
    assert main(["validate", "--data", str(path)]) == 0
    assert "sorting is not covered: unknown kernel sort" in " ".join(capsys.readouterr().out.split())


def test_turnaround_constants_are_the_published_gaps() -> None:
    for blocks, gap in ((1, 860), (2, 1290), (3, 1670), (4, 2280)):
        assert TURNAROUND.ns(blocks) == pytest.approx(gap, rel=0.06)


def _texts(table: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [{key: str(value) for key, value in row.items()} for row in table]
