"""Workloads, plans and controls as files and words: what is read is what was written, errors name the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from makeway.model.simulate.predict import Settings, simulate
from makeway.model.simulate.rewrite import rewritten
from makeway.read.plan_file import load_plan
from makeway.read.workload_file import parse_workload
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Control,
    CopyEngine,
    LaunchOrder,
    SmemPad,
    SmPartition,
    TileChoice,
    describe,
    parse_control,
)
from makeway.values.device import load_device
from makeway.values.errors import DataFileError, InputError, MakewayError
from makeway.values.kernel import KernelResources
from makeway.values.workload import BlockWork, CollectiveOp, Gemm, KernelOp, WorkloadBuilder

STEP = """
name = "step"
ranks = 8
streams = ["compute", "comm"]

[[operation]]
name = "gemm"
stream = "compute"
threads = 256
registers = 98
smem = "48KiB"
gemm = { m = 8192, n = 8192, k = 4096, dtype = "bf16", tile = [128, 128, 32] }

[[operation]]
name = "norm"
threads = 256
registers = 40
blocks = 4096
hbm_bytes_per_block = 65536

[[operation]]
name = "gather"
stream = "comm"
kind = "all-gather"
size = "256MiB"
library = "nccl-2.32.3/ring-simple"
after = ["gemm"]
"""


def test_a_file_gives_the_operations_it_describes() -> None:
    workload = parse_workload(STEP.encode(), where="step.toml")
    assert [op.name for op in workload.operations] == ["gemm", "norm", "gather"]
    assert isinstance(workload.operations[0], KernelOp)
    assert workload.kernels[0].work.blocks == 4096
    assert workload.collectives[0].collective.size_bytes == 256 * 2**20
    prediction = simulate(workload, load_device("H100-SXM5-80GB"))
    assert 0 < prediction.ideal_ns <= prediction.t_ns * (1 + 1e-9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('after = ["gemm"]', 'after = ["gem"]'), "gather waits for unknown operation 'gem'; did you mean 'gemm'"),
        (('stream = "comm"', 'stream = "com"'), "gather is on unknown stream 'com'; did you mean 'comm'"),
        (('size = "256MiB"', "size = 0"), "at least 1 byte"),
        (('size = "256MiB"', ""), "gather: size is missing"),
        (('kind = "all-gather"', 'kind = "all-gathre"'), "unknown collective 'all-gathre'"),
        (("registers = 98", ""), "gemm: registers is missing"),
        (("threads = 256\nregisters = 98", "threads = 0\nregisters = 98"), "threads must be a whole number"),
        (("blocks = 4096", "blocks = -1"), "blocks must be a whole number of 1 or more"),
        (("hbm_bytes_per_block = 65536", "hbm_bytes_per_block = -5"), "cannot be negative"),
        (("hbm_bytes_per_block = 65536", "hbm_bytes_per_blok = 5"), "unknown key 'hbm_bytes_per_blok'"),
        (('name = "norm"', 'name = "gemm"'), "two operations named 'gemm'"),
        (("ranks = 8", "ranks = 1"), "at least 2 ranks"),
        (("ranks = 8", "rank = 8"), "unknown key 'rank'; did you mean 'ranks'"),
    ],
)
def test_a_wrong_file_names_the_operation(change: tuple[str, str], said: str) -> None:
    with pytest.raises(DataFileError) as caught:
        parse_workload(STEP.replace(*change).encode(), where="step.toml")
    assert said in str(caught.value)
    assert str(caught.value).startswith("step.toml")


def test_operations_that_wait_for_each_other_are_named_as_a_cycle() -> None:
    text = STEP.replace('stream = "compute"\nthreads', 'stream = "compute"\nafter = ["gather"]\nthreads')
    with pytest.raises(DataFileError, match="in a cycle: gemm waits for gather waits for gemm"):
        parse_workload(text.encode(), where="step.toml")


def test_a_stream_cannot_wait_for_its_own_future() -> None:
    builder = WorkloadBuilder("self")
    kernel = KernelResources(threads=32, registers_per_thread=8)
    builder.kernel("a", kernel, BlockWork(blocks=1, flops_per_block=1), after=("b",))
    builder.kernel("b", kernel, BlockWork(blocks=1, flops_per_block=1))
    with pytest.raises(InputError, match="cycle"):
        builder.done()


# --- controls ----------------------------------------------------------------------------------

WORDS: dict[str, Control] = {
    "pad=48KiB": SmemPad(49152),
    "pad=1000:gemm*": SmemPad(1000, "gemm*"),
    "tile=64x64x32": TileChoice(64, 64, 32),
    "priority": CommPriority(),
    "comm-first": LaunchOrder(),
    "comm-blocks=16": CommBlocks(16),
    "comm-threads=288": CommThreads(288),
    "partition=32": SmPartition(32),
    "copy-engine": CopyEngine(),
    "copy-engine=broadcast,prelaunch": CopyEngine("broadcast", True),
    "chunks=4": Chunks(4),
}


@pytest.mark.parametrize("word", WORDS)
def test_controls_are_read_from_words_and_told_in_words(word: str) -> None:
    assert parse_control(word) == WORDS[word]
    assert len(describe(WORDS[word])) > 10


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("prioritty", "did you mean 'priority'"),
        ("pad=lots", "not a size"),
        ("pad=0", "pad_bytes must be a whole number of 1 or more"),
        ("tile=64x64", "write tile=64x64x32"),
        ("comm-blocks=many", "needs a whole number"),
        ("copy-engine=broadcst", "did you mean 'broadcast'"),
        ("comm-threads=8", "threads must be a whole number of 32 or more"),
    ],
)
def test_a_word_that_is_no_control_says_what_would_be(word: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_control(word)


def test_a_plan_file_gives_its_controls(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'version = 2\n[[control]]\nkind = "priority"\nreason = "r"\n[[control]]\nkind = "comm-blocks"\nblocks = 8\n'
    )
    plan = load_plan(file)
    assert plan.controls == (CommPriority(), CommBlocks(8))
    assert plan.reasons == ("r", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 3", "this makeway reads versions 1 to 2"),
        ("version = 2\ncontrols = []", "unknown key 'controls'; did you mean 'control'"),
        ('version = 2\n[[control]]\nkind = "comm-block"', "did you mean 'comm-blocks'"),
        ('version = 2\n[[control]]\nkind = "comm-blocks"', "comm-blocks: blocks is missing"),
        ('version = 2\n[[control]]\nkind = "comm-blocks"\nblocks = 0', "whole number of 1 or more"),
        ('version = 2\n[[control]]\nkind = "priority"\nlevel = 3', "unknown key 'level'"),
        (
            'version = 2\n[[control]]\nkind = "comm-blocks"\nblocks = 8\n[[control]]\nkind = "comm-blocks"\nblocks = 9',
            "comm-blocks is set twice",
        ),
    ],
)
def test_a_wrong_plan_says_what_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(text)
    with pytest.raises(MakewayError, match=said):
        load_plan(file)


# --- controls that rewrite the workload --------------------------------------------------------


def test_chunks_divide_a_collective_and_the_kernel_that_feeds_it() -> None:
    workload = rewritten(parse_workload(STEP.encode(), where="step.toml"), (Chunks(4),))
    names = [op.name for op in workload.operations]
    assert names == ["gemm/1", "gemm/2", "gemm/3", "gemm/4", "norm", "gather/1", "gather/2", "gather/3", "gather/4"]
    assert [op.after for op in workload.collectives] == [(f"gemm/{index}",) for index in (1, 2, 3, 4)]
    assert sum(op.collective.size_bytes for op in workload.collectives) == 256 * 2**20
    gemms = [op.work for op in workload.kernels if isinstance(op.work, Gemm)]
    assert sum(gemm.m for gemm in gemms) == 8192
    assert sum(gemm.blocks for gemm in gemms) == 4096


def test_communication_that_waits_for_nothing_can_be_launched_first() -> None:
    plain = parse_workload(STEP.encode(), where="step.toml")
    free = parse_workload(STEP.replace('after = ["gemm"]', "").encode(), where="step.toml")
    assert rewritten(plain, (LaunchOrder(),)).operations == plain.operations
    assert isinstance(rewritten(free, (LaunchOrder(),)).operations[0], CollectiveOp)


def test_a_tile_changes_shared_memory_by_the_published_rule() -> None:
    workload = rewritten(
        parse_workload(STEP.encode(), where="step.toml"), (TileChoice(128, 128, 64), SmemPad(1000, "gemm"))
    )
    assert workload.kernels[0].resources.smem_bytes == 2 * 48 * 1024 + 1000


def test_a_pad_for_no_kernel_is_an_error() -> None:
    with pytest.raises(InputError, match="no kernel of the workload is named 'flash"):
        rewritten(parse_workload(STEP.encode(), where="step.toml"), (SmemPad(1000, "flash*"),))


@pytest.mark.parametrize(
    ("control", "said"),
    [
        (LaunchOrder(), "comm-first: every collective waits"),
        (TileChoice(128, 128, 32), "tile: no kernel offers another tile, or it has this one"),
        (CommPriority(), None),
        (TileChoice(128, 64, 32), None),
    ],
)
def test_a_control_that_changes_nothing_is_reported(control: Control, said: str | None) -> None:
    prediction = simulate(parse_workload(STEP.encode(), where="step.toml"), load_device("H100-SXM5-80GB"), (control,))
    assert bool(prediction.without_effect) == (said is not None)
    assert said is None or prediction.without_effect[0].startswith(said)


def test_comm_controls_without_communication_are_reported() -> None:
    builder = WorkloadBuilder("compute only")
    builder.kernel("k", KernelResources(threads=32, registers_per_thread=8), BlockWork(blocks=9, flops_per_block=1e6))
    prediction = simulate(builder.done(), load_device("H200"), (CommPriority(), CommBlocks(4)))
    assert len(prediction.without_effect) == 2


@pytest.mark.parametrize(
    ("control", "said"),
    [
        (SmPartition(132), "leave none of 132 for compute"),
        (CommThreads(300), "cannot have 300 threads"),
        (CommBlocks(65), "at most 64"),
        (SmemPad(200_000, "gemm"), "allows at most 227 KiB"),
    ],
)
def test_a_control_that_the_device_cannot_honour_is_refused(control: SmemPad, said: str) -> None:
    with pytest.raises(MakewayError, match=said):
        simulate(parse_workload(STEP.encode(), where="step.toml"), load_device("H100-SXM5-80GB"), (control,))


def test_copy_engines_refuse_arithmetic_and_say_so() -> None:
    reduce = STEP.replace('kind = "all-gather"', 'kind = "all-reduce"')
    with pytest.raises(MakewayError, match="cannot add"):
        simulate(parse_workload(reduce.encode(), where="step.toml"), load_device("H100-SXM5-80GB"), (CopyEngine(),))


def test_settings_refuse_what_makes_no_sense() -> None:
    with pytest.raises(InputError, match="jitter"):
        Settings(jitter=-0.1)
    with pytest.raises(InputError, match="class engine has no jitter"):
        Settings(engine="class", jitter=0.1)
    with pytest.raises(InputError, match="skew"):
        Settings(skew_ns=-1)
