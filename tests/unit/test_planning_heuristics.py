"""Published heuristics, as baselines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from makeway.decide.planning.deadlock import deadlock_risk
from makeway.decide.planning.heuristics import RESERVED_POWERS, Isolated, heuristic_controls, heuristic_names
from makeway.decide.planning.score import QuickScorer, dispatch_policies
from makeway.model.presets import PresetOptions, load_preset
from makeway.values.control import Chunks, CommPriority, CopyEngine, LaunchOrder, SmPartition, TileChoice
from makeway.values.device import load_device
from makeway.values.errors import UnknownNameError
from makeway.values.kernel import KernelResources
from makeway.values.workload import Measured, Workload, WorkloadBuilder

A100 = load_device("A100-SXM4-80GB")
MI300X = load_device("MI300X")
BLOCK = KernelResources(threads=256, registers_per_thread=64)


def chain(comm_ms: float, size_bytes: int = 2**28) -> Workload:
    """A kernel of 1 ms and eight waves, and the collective that waits for it."""
    builder = WorkloadBuilder("chain", ranks=8)
    builder.kernel("k", BLOCK, Measured(time_ns=1e6, blocks=3456))
    builder.collective("c", "all-reduce", size_bytes, "nccl-2.32.3/ring-simple", after=("k",), time_ns=comm_ms * 1e6)
    return builder.done()


@pytest.mark.parametrize("name", heuristic_names())
@pytest.mark.parametrize("preset", ["conccl-01", "conccl-16", "cb-ar", "tp-llama-70b", "ep-moe"])
@pytest.mark.parametrize("device", ["A100-SXM4-80GB", "H100-SXM5-80GB", "MI300X"])
def test_what_a_heuristic_chooses_can_run(name: str, preset: str, device: str) -> None:
    there = load_device(device)
    options = PresetOptions(iterations=2, grid=(16, 16)) if preset == "cb-ar" else PresetOptions()
    workload = load_preset(preset, there, options)
    isolated = Isolated(compute_ns=1e7, comm_ns=5e6)
    scorer = QuickScorer(workload, there, dispatch_policies(there)[0])
    assert scorer.time_ns(heuristic_controls(name, workload, there, isolated=isolated)) is not None


def test_naive_does_nothing() -> None:
    assert heuristic_controls("naive", load_preset("conccl-01", MI300X), MI300X) == ()


def test_concclsp_launches_communication_first_where_it_can() -> None:
    assert heuristic_controls("conccl-sp", load_preset("conccl-01", MI300X), MI300X) == (CommPriority(), LaunchOrder())
    assert heuristic_controls("conccl-sp", chain(1.0), A100) == (CommPriority(),)


def test_conccl_reserves_more_for_longer_communication() -> None:
    workload = load_preset("conccl-01", MI300X)
    sizes = []
    for comm_ns in (1e5, 1e6, 1e7):
        isolated = Isolated(compute_ns=1e6, comm_ns=comm_ns)
        controls = heuristic_controls("conccl-rp", workload, MI300X, isolated=isolated)
        sizes += [control.comm_sms for control in controls if isinstance(control, SmPartition)]
        assert deadlock_risk(workload, MI300X, controls) is None  # with as many channels as it holds
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    assert set(sizes) <= set(RESERVED_POWERS)


def test_conccl_copies_only_what_is_large_enough() -> None:
    large = load_preset("conccl-01", MI300X)
    assert heuristic_controls("conccl-dma", large, MI300X) == (CopyEngine(),)
    (comm,) = large.collectives
    small = replace(comm, collective=replace(comm.collective, size_bytes=16 * 2**20))
    few = replace(large, operations=(*large.kernels, small))
    assert heuristic_controls("conccl-dma", few, MI300X) == (CommPriority(), LaunchOrder())


def test_cui_and_pericas_change_the_tile_of_their_own_gemm_only() -> None:
    assert heuristic_controls("cui-pericas", load_preset("cb-ar", A100), A100) == (
        CommPriority(),
        TileChoice(64, 64, 64),
    )
    assert heuristic_controls("cui-pericas", load_preset("gemm-ar", A100), A100) == (CommPriority(),)


def test_flashoverlap_cuts_a_chain_and_leaves_independent_operations_whole() -> None:
    # Two clocks, by hand: 1 ms + 1 ms whole is 2 ms; in eight pieces 1 ms + 1/8 ms and latencies.
    assert heuristic_controls("flashoverlap", chain(1.0), A100) == (CommPriority(), Chunks(8))
    assert heuristic_controls("flashoverlap", load_preset("gemm-ar", A100), A100) == (CommPriority(),)


def test_flashoverlap_does_not_cut_what_is_mostly_latency() -> None:
    builder = WorkloadBuilder("small", ranks=8)
    builder.kernel("k", BLOCK, Measured(time_ns=1e4, blocks=432))
    builder.collective("c", "all-reduce", 4096, "nccl-2.32.3/ring-simple", after=("k",))
    assert heuristic_controls("flashoverlap", builder.done(), A100) == (CommPriority(),)


def test_an_unknown_heuristic_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'conccl-dma'"):
        heuristic_controls("concll-dma", chain(1.0), A100)
