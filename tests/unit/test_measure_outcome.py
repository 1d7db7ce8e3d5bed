"""A bench as a value and as its JSON document."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.measure.bench import job_settings
from makeway.act.measure.job import Job, decode_job, encode_job
from makeway.act.measure.names import family, workload_names, workload_summary
from makeway.act.measure.outcome import OVERLAP, PLANNED, SEQUENTIAL, TORCHRUN, Bench, VariantResult, document
from makeway.act.measure.record import Record, SettingRecord, SpanRecord, bench, plain, record_from
from makeway.act.measure.variants import (
    COMM,
    COMPUTE,
    Setting,
    candidate_settings,
    controlled_settings,
    fair_threads,
    fixed_settings,
    rotated,
)
from makeway.values.collective import Collective
from makeway.values.control import Chunks, CommPriority, CopyEngine, SmPartition
from makeway.values.errors import InputError, UnknownNameError


def a_bench(**variants: float) -> Bench:
    return Bench(
        on="cpu",
        ranks=2,
        workload="gemm-ar",
        origin="measured",
        variants=tuple(VariantResult(name=name, times_ns=(ms * 1e6,)) for name, ms in variants.items()),
        compute_ns=(10e6,),
        comm_ns=(8e6,),
        exchange=Collective(kind="all-reduce", size_bytes=4_000_000, ranks=2),
        exchanges=4,
    )


def test_the_document_keeps_its_contract() -> None:
    found = document(a_bench(sequential=18, overlap=20, overlap_torchrun=14, planned=10))
    assert {"on", "ranks", "workload", "variants", "isolated", "ideal_ms", "share_of_ideal"} <= set(found)
    assert {"overlap_rate", "verified", "timeline"} <= set(found)
    assert {"median_ms", "spread_ms", "n"} <= set(found["variants"]["overlap"])
    assert (found["isolated"]["compute_ms"], found["isolated"]["comm_ms"], found["ideal_ms"]) == (10, 8, 10)
    assert found["share_of_ideal"] == {
        "overlap": pytest.approx((18 / 20 - 1) / (18 / 10 - 1), abs=1e-6),
        "overlap_torchrun": pytest.approx((18 / 14 - 1) / (18 / 10 - 1), abs=1e-6),
        "planned": 1.0,
    }
    assert msgspec.json.decode(msgspec.json.encode(found))["variants"] == found["variants"]


def test_bandwidth_is_counted_as_nccl_tests_does() -> None:
    # 4 MB in 2 ms: 2 GB/s of the algorithm, and 2(n-1)/n = 1 times that on the bus of two ranks.
    assert a_bench(sequential=18).bandwidths == pytest.approx((2e9, 2e9))


def test_one_wrong_variant_makes_a_bench_unverified() -> None:
    right = VariantResult(name=SEQUENTIAL, times_ns=(1.0,))
    wrong = VariantResult(name=OVERLAP, times_ns=(1.0,), wrong="rank 1: other numbers")
    found = Bench(
        on="cpu",
        ranks=2,
        workload="w",
        origin="measured",
        variants=(right, wrong),
        compute_ns=(1.0,),
        comm_ns=(1.0,),
    )
    assert not found.verified
    assert found.better_baseline is None  # a wrong result is nobody's baseline


def test_a_bench_needs_a_sequential_run_and_one_name_each() -> None:
    with pytest.raises(InputError, match="sequential"):
        a_bench(overlap=1)


@given(st.integers(1, 64), st.integers(1, 8))
def test_a_fair_share_never_crowds_the_cores_unless_ranks_do(cores: int, ranks: int) -> None:
    assert fair_threads(cores, ranks) * ranks <= max(cores, ranks)


@given(st.integers(2, 64), st.integers(1, 8), st.booleans(), st.booleans())
def test_every_candidate_differs_and_shared_memory_is_used_only_where_there_is_some(
    cores: int, ranks: int, shared: bool, wide: bool
) -> None:
    found = candidate_settings(cores, ranks, shared_memory=shared, wide=wide)
    assert max(Counter(setting.name for setting in found).values()) == 1
    assert any(CopyEngine() in setting.controls for setting in found) == shared


@given(st.integers(1, 7))
def test_in_a_rotation_every_setting_has_every_place_once(count: int) -> None:
    settings = [Setting(name=str(number), threads=1) for number in range(count)]
    places = Counter((one.name, place) for turn in range(count) for place, one in enumerate(rotated(settings, turn)))
    assert set(places.values()) == {1}
    assert len(places) == count**2


def test_the_two_baselines_are_torchs_defaults() -> None:
    by_name = {setting.name: setting for setting in fixed_settings(8, 2)}
    assert (by_name[OVERLAP].threads, by_name[TORCHRUN].threads, by_name[SEQUENTIAL].threads) == (8, 1, 4)
    assert {COMPUTE, COMM} <= set(by_name)


def test_named_variants_may_join_controls() -> None:
    (found,) = controlled_settings(["priority+chunks=4", "priority+chunks=4"], 4, 2)
    assert found.controls == (CommPriority(), Chunks(4))


def test_shared_memory_and_a_link_exclude_one_another() -> None:
    with pytest.raises(InputError, match="round the link"):
        job_settings(["copy-engine"], 2, apart=True, plan=False, wide=False)
    _, candidates = job_settings([], 2, apart=True, plan=True, wide=True)
    assert not any(CopyEngine() in setting.controls for setting in candidates)


def test_a_job_survives_its_journey_to_a_rank() -> None:
    settings = (*fixed_settings(2, 2), *controlled_settings(["copy-engine+chunks=2", "partition=1"], 2, 2))
    job = Job(workload="gemm-ar", settings=settings, candidates=settings[-1:], scale=0.5, size_bytes=1 << 20)
    line = encode_job(job)
    assert b"\n" not in line
    assert decode_job(line) == job


def test_a_record_becomes_a_bench_with_a_timeline_of_every_rank() -> None:
    names = (COMPUTE, COMM, SEQUENTIAL, OVERLAP, PLANNED)
    record = Record(
        words="sizes",
        ranks=2,
        settings=[
            SettingRecord(
                name=name,
                times_ns=[2e6, 3e6],
                controls=["partition=1"] if name == PLANNED else [],
                threads=1,
                overlap_rate=0.5,
                wrong=None,
                applied=[("partition=1", "applied", "core 0")] if name == PLANNED else [],
            )
            for name in names
        ],
        exchange=("all-gather", 1024),
        exchanges=2,
        choice="partition=1: less time",
        spans=[
            SpanRecord(setting=OVERLAP, rank=rank, name="gemm 0", kind="compute", start_ns=5, end_ns=9)
            for rank in (0, 1)
        ],
        notes=[],
    )
    found = bench(record_from(plain(record)), workload="gemm-ag", link="unpaced")
    assert [variant.name for variant in found.variants] == [SEQUENTIAL, OVERLAP, PLANNED]
    assert found.variant(PLANNED).controls == (SmPartition(1),)
    assert found.variant(PLANNED).applied[0].detail == "core 0"
    assert found.timeline is not None
    assert {(span.rank, span.name) for span in found.timeline.spans} == {(0, "overlap: gemm 0"), (1, "overlap: gemm 0")}


def test_every_workload_has_a_summary_and_a_wrong_name_a_suggestion() -> None:
    assert all(workload_summary(name) and family(name) for name in workload_names())
    with pytest.raises(UnknownNameError, match="did you mean 'gemm-ar'"):
        family("gemm-arr")
