"""Devices built from a recording, node numbers of ROCm, Kineto's occupancy field, and ranks of different runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kineto_files import DATE_US, gpu, kernel, write_kineto
from tests.recordings import RECORDINGS, needs_recordings

from makeway.decide.analysis.analyze import Analysis, analyze
from makeway.decide.analysis.runs import EARLIEST_DATE_NS, MOST_SKEW_NS, RunStamp, runs, runs_note
from makeway.model.residency import resident_blocks
from makeway.read.traces.read import read_trace
from makeway.show.analysis import report
from makeway.show.text import text
from makeway.values.device import device_names, load_device
from makeway.values.errors import TraceError
from makeway.values.kernel import KernelResources
from makeway.values.recorded_device import RecordedLimits, device_from_recording, nearest_architecture

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_sgemm_128x64_nn"
AMD = {"warpSize": 64, "computeMajor": 9, "computeMinor": 4, "numSms": 304, "sharedMemPerBlock": 65_536}


def analysed(*paths: Path) -> Analysis:
    return analyze(paths, what_if=False, jobs=1)


# --- devices --------------------------------------------------------------------------------------


def limits_of(name: str) -> RecordedLimits:
    """What a profiler would record of a known NVIDIA device."""
    device = load_device(name)
    sm = device.sm
    return RecordedLimits(
        vendor=device.vendor,
        arch=device.arch,
        sms=device.sms,
        memory_bytes=device.memory_bytes,
        registers=sm.registers,
        threads=sm.max_warps * sm.warp_threads,
        max_threads_per_block=sm.max_threads_per_block,
        warp_threads=sm.warp_threads,
        smem_bytes=sm.smem_bytes,
        smem_block_bytes=sm.smem_block_bytes,
        smem_default_block_bytes=sm.smem_default_block_bytes,
    )


NVIDIA = [name for name in device_names() if load_device(name).vendor == "nvidia"]


@pytest.mark.parametrize("name", NVIDIA)
def test_a_device_built_from_its_own_limits_holds_what_the_known_one_holds(name: str) -> None:
    built = device_from_recording("Unheard-of", limits_of(name))
    assert built is not None
    assert built.sm == load_device(name).sm
    block = KernelResources(threads=256, registers_per_thread=96, smem_bytes=40_000)
    assert resident_blocks(built, block) == resident_blocks(load_device(name), block)


def test_what_is_borrowed_is_unconfirmed_and_the_recorded_is_not() -> None:
    built = device_from_recording("NVIDIA H123", RecordedLimits(vendor="nvidia", arch="sm_90", sms=66))
    assert built is not None
    assert (built.sms, built.name) == (66, "NVIDIA H123")
    assert built.facts["sms"].unconfirmed is None
    rate = built.facts["fp16_flops_per_s"]
    relative = rate.unconfirmed
    assert relative is not None
    assert relative.startswith("borrowed from ")
    donor = load_device(relative.removeprefix("borrowed from "))
    assert donor.fp16_flops_per_s is not None
    assert built.fp16_flops_per_s == pytest.approx(donor.fp16_flops_per_s * 66 / donor.sms)
    assert built.notes[0].startswith("Built from the trace")


@pytest.mark.parametrize(
    ("arch", "stands"),
    [("sm_90", "sm_90"), ("sm_121", "sm_120"), ("sm_87", "sm_86"), ("sm_60", "sm_70"), ("gfx940", "gfx90a"),
     ("gfx1201", "gfx950"), ("sm_x", None), ("avx512", None), ("", None)],
)  # fmt: skip
def test_the_nearest_architecture_stands_for_an_unknown_one(arch: str, stands: str | None) -> None:
    assert nearest_architecture(arch) == stands


@given(
    st.builds(
        RecordedLimits,
        vendor=st.sampled_from(["nvidia", "amd"]),
        arch=st.sampled_from(["sm_90", "sm_75", "gfx942", "sm_999"]),
        sms=st.integers(0, 10**9),
        registers=st.integers(0, 10**9),
        threads=st.integers(0, 10**9),
        warp_threads=st.integers(0, 64),
        smem_bytes=st.integers(0, 10**9),
        smem_block_bytes=st.integers(0, 10**9),
    )
)
def test_impossible_limits_make_no_device_and_no_error(limits: RecordedLimits) -> None:
    built = device_from_recording("Hostile", limits)
    assert built is None or built.sms == limits.sms


def test_a_trace_of_an_unknown_gpu_is_judged_by_the_limits_it_carries(tmp_path: Path) -> None:
    events = [kernel(GEMM, DATE_US, 100), kernel(NCCL, DATE_US + 100, 50, stream=20)]
    analysis = analysed(write_kineto(tmp_path / "t.json", events, world=8, gpus=[gpu("NVIDIA X900", numSms=144)]))
    assert analysis.devices == ("NVIDIA X900",)
    assert analysis.ranks[0].occupancy is not None
    assert any("Built from the trace, which carries the limits of 'NVIDIA X900'" in note for note in analysis.notes)


def test_a_part_of_a_known_gpu_has_the_sms_that_the_trace_counts(tmp_path: Path) -> None:
    events = [kernel(GEMM, DATE_US, 100, blocks=10_000)]
    whole = analysed(write_kineto(tmp_path / "a.json", events))
    part = analysed(write_kineto(tmp_path / "b.json", events, gpus=[gpu(numSms=60)]))
    assert not any("SMs where" in note for note in whole.notes)
    assert any("The trace counts 60 SMs where H100-SXM5-80GB has 132" in note for note in part.notes)


def test_a_gpu_of_a_billion_sms_is_not_believed() -> None:
    assert device_from_recording("Hostile", RecordedLimits(vendor="nvidia", arch="sm_90", sms=10**9)) is None


# --- ROCm's node numbers ---------------------------------------------------------------------------


def test_a_node_number_of_rocm_is_neither_a_gpu_index_nor_a_rank(tmp_path: Path) -> None:
    events = [kernel(GEMM, DATE_US, 10, device=2)]
    gpus = [gpu("AMD Instinct MI300X", **AMD)]
    (rank,) = read_trace(write_kineto(tmp_path / "t.json", events, rank=None, gpus=gpus)).ranks
    assert (rank.rank, rank.device, rank.sms) == (0, "AMD Instinct MI300X", 304)
    assert not any("does not describe" in note or "rank; 2" in note for note in rank.notes)


def test_gpus_of_one_rocm_process_are_ranks_in_the_order_of_their_nodes(tmp_path: Path) -> None:
    events = [kernel(GEMM, DATE_US + node, 10, device=node) for node in (4, 2, 3)]
    gpus = [gpu("AMD Instinct MI300X", number=number, **AMD) for number in range(8)]
    ranks = read_trace(write_kineto(tmp_path / "t.json", events, rank=None, gpus=gpus)).ranks
    assert [(rank.rank, rank.device) for rank in ranks] == [(number, "AMD Instinct MI300X") for number in range(3)]


def test_a_gpu_that_an_nvidia_trace_does_not_describe_is_still_named(tmp_path: Path) -> None:
    (rank,) = read_trace(write_kineto(tmp_path / "t.json", [kernel(GEMM, DATE_US, 10, device=2)])).ranks
    assert any("does not describe GPU 2" in note for note in rank.notes)


# --- Kineto's occupancy field ------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", [True, False])
def test_kinetos_field_is_wrong_only_where_it_is_recorded(tmp_path: Path, *, recorded: bool) -> None:
    field = {"est. achieved occupancy %": 0} if recorded else {}
    events = [kernel(GEMM, DATE_US, 10, smem_bytes=100_000, **field)]
    analysis = analysed(write_kineto(tmp_path / "t.json", events))
    assert analysis.kineto_wrong == ((1, 1) if recorded else (None, 1))
    assert ("Kineto's field is wrong" in " ".join(text(report(analysis)).split())) == recorded


# --- ranks of different runs -------------------------------------------------------------------------


def rank_file(directory: Path, rank: int, *, later_us: int = 0, world: int = 2) -> Path:
    events = [
        event
        for number in range(4)
        for event in (
            kernel(GEMM, DATE_US + later_us + 1_000 * number, 500),
            kernel(NCCL, DATE_US + later_us + 1_000 * number + 500, 100, stream=20),
        )
    ]
    return write_kineto(directory / f"rank{rank}.json", events, rank=rank, world=world)


def test_ranks_of_one_run_are_matched(tmp_path: Path) -> None:
    analysis = analysed(rank_file(tmp_path, 0), rank_file(tmp_path, 1, later_us=30))
    assert len(analysis.matching.matched) == 4
    assert "different runs" not in "".join(analysis.notes)


def test_ranks_of_two_runs_are_analysed_but_never_matched(tmp_path: Path) -> None:
    analysis = analysed(rank_file(tmp_path, 0), rank_file(tmp_path, 1, later_us=406_000_000))
    assert analysis.matching.matched == ()
    assert [rank.figures.comm_ns for rank in analysis.ranks] == [400_000, 400_000]
    (note,) = [note for note in analysis.notes if "different runs" in note]
    assert "run 1: " in note
    assert "run 2 (406 s later): " in note
    assert "rank0.json" in note.partition("run 2")[0]
    assert "rank1.json" in note.partition("run 2")[2]


def test_headers_that_name_jobs_of_different_sizes_are_of_different_runs(tmp_path: Path) -> None:
    analysis = analysed(rank_file(tmp_path, 0, world=2), rank_file(tmp_path, 1, world=4))
    assert analysis.matching.matched == ()
    assert any("run 1 (2 ranks)" in note and "run 2 (4 ranks)" in note for note in analysis.notes)


def test_the_same_rank_of_two_runs_is_refused_with_the_reason(tmp_path: Path) -> None:
    later = tmp_path / "later"
    later.mkdir()
    with pytest.raises(TraceError, match=r"both say they are rank 0; they are of 2 different runs"):
        analysed(rank_file(tmp_path, 0), rank_file(later, 0, later_us=406_000_000))


@needs_recordings
def test_two_real_runs_of_one_program_are_told_apart() -> None:
    earlier, later = (RECORDINGS / "torchrec" / name for name in ("a2a_opt4_w4", "a2a_opt5_w4"))
    mixed = analysed(earlier / "rank1.json.gz", later / "rank0.json.gz")
    assert mixed.matching.matched == ()
    assert any("run 2 (160 s later)" in note for note in mixed.notes)
    assert analysed(later / "rank0.json.gz", later / "rank1.json.gz").matching.matched


stamps = st.lists(
    st.builds(
        lambda start, length: (EARLIEST_DATE_NS + start, length),
        st.integers(0, 10**12),
        st.integers(0, 10**11),
    ),
    min_size=1,
    max_size=12,
)


@given(stamps, st.randoms())
def test_runs_part_the_ranks_whatever_their_order(times: list[tuple[int, int]], random: object) -> None:
    listed = [RunStamp(rank=rank, start_ns=start, end_ns=start + length) for rank, (start, length) in enumerate(times)]
    groups = runs(listed)
    assert sorted(stamp.rank for group in groups for stamp in group) == list(range(len(listed)))
    shuffled = list(listed)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert {frozenset(group) for group in runs(shuffled)} == {frozenset(group) for group in groups}
    ends = [max(stamp.end_ns or 0 for stamp in group) for group in groups]
    starts = [min(stamp.start_ns or 0 for stamp in group) for group in groups]
    assert all(start > end + MOST_SKEW_NS for end, start in zip(ends, starts[1:], strict=False))
    assert (runs_note(groups) is None) == (len(groups) == 1)


@given(stamps)
def test_clocks_that_are_no_times_of_day_part_nothing(times: list[tuple[int, int]]) -> None:
    listed = [
        RunStamp(rank=rank, start_ns=start - EARLIEST_DATE_NS, end_ns=start - EARLIEST_DATE_NS + length)
        for rank, (start, length) in enumerate(times)
    ]
    assert len(runs(listed)) == 1
