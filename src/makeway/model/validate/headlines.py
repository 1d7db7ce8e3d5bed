"""Headline figures of the papers and of field reports, each beside what the model says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from makeway.model.simulate.network import collective_cost
from makeway.model.simulate.policies import DISPATCHES
from makeway.model.simulate.predict import Settings, simulate
from makeway.model.simulate.spread import BLOCK_SPREAD
from makeway.model.validate.grid import PAPER_DEVICES, published_device, run_experiment
from makeway.model.validate.rows import Row
from makeway.values.collective import Collective
from makeway.values.control import CommBlocks, CommPriority
from makeway.values.device import Device, load_device
from makeway.values.kernel import KernelResources
from makeway.values.workload import Measured, WorkloadBuilder

_DIAGONAL = (4, 16, 64, 256, 1024, 4096, 16384)  # X = Y from 2 to 128: the axis of the paper's Fig. 3


def headline_rows() -> Iterator[Row]:
    """All rows, computed one at a time: some take a second."""
    for rows in (_priority_rows, _dispatcher_rows, _channel_rows, _rate_rows):
        yield from rows()


# --- arXiv 2606.09200 --------------------------------------------------------------------------


def priority_gain(device: Device, blocks: int, settings: Settings | None = None) -> float:
    """The share of the time that priority for communication saves in the published experiment."""
    plain = run_experiment(device, blocks, settings=settings)
    return 1.0 - run_experiment(device, blocks, priority=True, settings=settings).t_ns / plain.t_ns


def _priority_rows() -> Iterator[Row]:
    row = partial(Row, source="arXiv 2606.09200", unit="%")
    gains = {name: max(priority_gain(published_device(name), blocks) for blocks in _DIAGONAL) for name in PAPER_DEVICES}
    case = "largest cut in time by priority, cb-ar"
    seen = ("the GEMM's 64 operations per clock and SM were chosen with this figure in sight",)
    yield row(device="A40", case=case, published=25.5, predicted=100 * gains["A40"], status="fitted", assumed=seen)
    for name in ("A100", "H100", "MI250X"):
        limit = f"{case} (published: at most A40's 25.5)"
        yield row(device=name, case=limit, published=25.5, predicted=100 * gains[name], assumed=("a bound, no figure",))
    a40, mi250x = load_device("A40"), load_device("MI250X")
    rate = run_experiment(a40, 4096, priority=True).overlap_rate
    assert rate is not None
    case = "largest overlap rate (the last collective follows its GEMM)"
    yield row(device="A40", case=case, published=90.0, predicted=100 * rate, assumed=("10 iterations",))
    case = "priority against plain overlap at 1,024 blocks and more (published: can lose, no size given)"
    loss = min(priority_gain(mi250x, blocks) for blocks in (1024, 4096))
    yield row(device="MI250X", case=case, published=0.0, predicted=100 * loss)


def _dispatcher_rows() -> Iterator[Row]:
    """The published gain tells dispatchers apart: back-fill with spread block times leaves none of it."""
    a40 = load_device("A40")
    for name in ("strict", "backfill"):
        settings = Settings(jitter=BLOCK_SPREAD, dispatch=DISPATCHES[name])
        yield Row(
            source="arXiv 2606.09200, dispatcher test",
            device="A40",
            case=f"priority gain at 512 blocks, {BLOCK_SPREAD:.0%} spread of all blocks, {name} dispatch",
            published=25.5,
            predicted=100 * priority_gain(a40, 512, settings),
            unit="%",
            assumed=("the published figure is the largest over all grids",),
        )


# --- arXiv 2602.20656: channels ----------------------------------------------------------------


def _channel_rows() -> Iterator[Row]:
    """Lagom's triple: an FSDP all-gather beside an FFN on A40, with 8, 61 and 2 channels; speed relative to 8."""
    device = load_device("A40")
    builder = WorkloadBuilder("FSDP all-gather beside an FFN", ranks=8)
    gemm = KernelResources(threads=128, registers_per_thread=222, smem_bytes=80 * 1024)
    for index in range(4):
        builder.kernel(f"ffn{index}", gemm, Measured(time_ns=2.5e6, blocks=1680, hbm_bytes=2.5e-3 * 0.35 * 696e9))
    builder.collective("gather", "all-gather", 100 * 2**20, "nccl-2.21.5/ring-simple", blocks=8)
    workload = builder.done()
    times = {
        count: simulate(workload, device, (CommPriority(), CommBlocks(count)), Settings(engine="class")).t_ns
        for count in (8, 32, 2)
    }
    for count, published in ((32, 0.87), (2, 1.35)):
        yield Row(
            source="arXiv 2602.20656 (second-hand)",
            device="A40",
            case=f"speed at {61 if count == 32 else count} channels relative to 8",
            published=published,
            predicted=times[8] / times[count],
            unit="x",
            assumed=("kernel, sizes and ranks are ours", "NCCL 2.21 has at most 32 channels, used for 61"),
        )


# --- more channels, more SMs -------------------------------------------------------------------


def _rate_rows() -> Iterator[Row]:
    """What a collective gains, or loses, by more blocks."""
    exchange = Collective(kind="all-to-all", size_bytes=2**30, ranks=8)
    cost = collective_cost(load_device("B200"), exchange, path="sendrecv")
    few = cost.rate_bytes_per_s(24) / cost.rate_bytes_per_s(64)
    row = partial(Row, unit="x")
    for name, published in (("dispatch", 643 / 726), ("combine", 675 / 740)):
        yield row(
            source="DeepEP README",
            device="B200",
            case=f"{name} bandwidth at 24 SMs over that at 64",
            published=published,
            predicted=few,
            calibrated_on="NCCL's own limit per channel",
            assumed=("an NCCL block's rate is used for DeepEP's",),
        )
    reduce = Collective(kind="all-reduce", size_bytes=128 * 2**20, ranks=16)
    cost = collective_cost(load_device("MI350X"), reduce, nodes=2)
    yield row(
        source="ROCm/rocm-systems PR 9406",
        device="MI350X",
        case="all-reduce of 128 MiB on two nodes, 48 channels over 64",
        published=249.4 / 229.7,
        predicted=cost.rate_bytes_per_s(48) / cost.rate_bytes_per_s(64),
        calibrated_on="message sizes on four B200 nodes",
        assumed=("smaller messages fill the network less", "an all-reduce; the PR names none"),
    )
