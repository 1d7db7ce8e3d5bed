"""A bench as a value and as its JSON document."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import median
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.measure.bench import with_variants
from makeway.act.measure.job import Job
from makeway.act.measure.link import Rate
from makeway.act.measure.names import family, workload_names, workload_summary
from makeway.act.measure.outcome import Bench, VariantResult
from makeway.act.measure.ranks.rounds import Samples, collected_bench
from makeway.act.measure.variants import (
    COMM,
    COMPUTE,
    OVERLAP,
    PLANNED,
    SEQUENTIAL,
    TORCHRUN,
    Variant,
    candidate_controls,
    controlled_variants,
    fair_threads,
    fixed_variants,
    measured_as,
    parse_variant,
    rotated,
)
from makeway.act.measure.wire import decode_bench, decode_job, encode_bench, encode_job
from makeway.show.bench import bench_data
from makeway.show.page import page
from makeway.show.report import report_of
from makeway.show.text import text
from makeway.values.collective import Collective
from makeway.values.control import Chunks, CommPriority, CopyEngine, SmPartition
from makeway.values.errors import InputError, UnknownNameError
from makeway.values.receipt import Receipt
from makeway.values.timeline import Rank, Span, Timeline


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
    found = bench_data(a_bench(sequential=18, overlap=20, overlap_torchrun=14, planned=10))
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
    assert found.baseline is None  # a wrong result is nobody's baseline


def test_a_bench_needs_a_sequential_run_and_one_name_each() -> None:
    with pytest.raises(InputError, match="sequential"):
        a_bench(overlap=1)


@given(st.integers(1, 64), st.integers(1, 8))
def test_a_fair_share_never_crowds_the_cores_unless_ranks_do(cores: int, ranks: int) -> None:
    assert fair_threads(cores, ranks) * ranks <= max(cores, ranks)


@given(st.integers(2, 64), st.booleans(), st.booleans())
def test_every_candidate_differs_and_shared_memory_is_used_only_where_there_is_some(
    cores: int, shared: bool, wide: bool
) -> None:
    found = candidate_controls(cores, shared_memory=shared, wide=wide)
    assert len(controlled_variants(found)) == len(found)
    assert any(CopyEngine() in controls for controls in found) == shared


@given(st.integers(1, 7))
def test_in_a_rotation_every_variant_has_every_place_once(count: int) -> None:
    variants = [Variant(name=str(number)) for number in range(count)]
    places = Counter((each.name, place) for turn in range(count) for place, each in enumerate(rotated(variants, turn)))
    assert set(places.values()) == {1}
    assert len(places) == count**2


def test_the_two_baselines_are_torchs_defaults() -> None:
    by_name = {variant.name: variant for variant in fixed_variants(8, 2)}
    assert (by_name[OVERLAP].threads, by_name[TORCHRUN].threads, by_name[SEQUENTIAL].threads) == (8, 1, 4)
    assert {COMPUTE, COMM} <= set(by_name)


def test_named_variants_may_join_controls() -> None:
    (variant,) = controlled_variants(map(parse_variant, ["priority+chunks=4", "priority+chunks=4"]))
    assert (variant.name, variant.controls) == ("priority+chunks=4", (CommPriority(), Chunks(4)))


def test_a_variant_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        parse_variant("chunks=2+chunks=4")
    with pytest.raises(InputError, match="twice"):
        Job(workload="gemm-ar", controls=((Chunks(2), Chunks(4)),))


@pytest.mark.parametrize("on", ["cpu", "cuda", "sim:A40"])
def test_one_rank_has_nobody_to_communicate_with(on: str) -> None:
    with pytest.raises(InputError, match="a collective needs at least 2 ranks, got 1"):
        Job(workload="gemm-ar", on=on, ranks=1)


def test_shared_memory_and_a_link_exclude_one_another() -> None:
    job = Job(workload="gemm-ar", link=Rate(10**9), wide=True)
    with pytest.raises(InputError, match="bypasses --link"):
        with_variants(replace(job, controls=((CopyEngine(),),)), 2)
    assert not any(CopyEngine() in variant.controls for variant in with_variants(job, 2).candidates)


def test_named_variants_are_measured_and_are_the_candidates_unless_the_search_is_wide() -> None:
    job = Job(workload="gemm-ar", controls=((Chunks(2),),))
    assert with_variants(job, 2).candidates == with_variants(job, 2).variants[-1:]
    assert len(with_variants(replace(job, wide=True), 2).candidates) > 3
    assert with_variants(replace(job, plan=False), 2).candidates == ()


def test_a_job_survives_its_journey_to_a_rank() -> None:
    job = Job(
        workload="gemm-ar",
        controls=((CopyEngine(), Chunks(2)), (SmPartition(1),)),
        grids=((2, 4),),
        tiles=((16, 16, 32),),
        scale=0.5,
        size_bytes=1 << 20,
    )
    job = replace(with_variants(job, 2), link=Rate(10**9))
    line = encode_job(job)
    assert b"\n" not in line
    assert decode_job(line) == job


def test_a_bench_survives_its_journey_from_rank_0() -> None:
    receipt = Receipt(
        control=SmPartition(1), status="applied", detail="core 0", carrier="torch on CPU", evidence=(("cores", 1),)
    )
    spans = tuple(
        Span(name="overlap: gemm 0", kind="compute", stream="compute", start_ns=5, end_ns=9, rank=rank)
        for rank in (0, 1)
    )
    sent = replace(
        a_bench(sequential=18, overlap=20),
        variants=(
            VariantResult(name=SEQUENTIAL, times_ns=(2e6, 3e6)),
            VariantResult(
                name=PLANNED, times_ns=(2e6, 3e6), controls=(SmPartition(1),), threads=1, receipts=(receipt,)
            ),
        ),
        choice="partition=1: clearly faster than overlap",
        timeline=Timeline(spans=spans, origin="measured", ranks=(Rank(rank=0), Rank(rank=1))),
        notes=("sizes",),
    )
    assert decode_bench(msgspec.json.decode(msgspec.json.encode(encode_bench(sent)))) == sent


def test_every_variant_of_a_bench_has_the_same_rounds() -> None:
    with pytest.raises(InputError, match="same number of rounds"):
        replace(
            a_bench(sequential=1),
            variants=(
                VariantResult(name=SEQUENTIAL, times_ns=(1.0,)),
                VariantResult(name=OVERLAP, times_ns=(1.0, 2.0)),
            ),
        )


def rounds(**times_ms: tuple[float, ...]) -> Bench:
    variants = tuple(
        VariantResult(
            name=name,
            times_ns=tuple(time * 1e6 for time in times),
            controls=(CommPriority(),) if name == PLANNED else (),
        )
        for name, times in times_ms.items()
    )
    return replace(a_bench(sequential=1), variants=variants)


def test_one_estimator_gives_the_gain_in_headline_table_and_json() -> None:
    """By medians the plan takes 40 % less time than its baseline; round by round it takes 20 % less."""
    bench = rounds(
        sequential=(30.0, 30.0, 30.0),
        overlap=(10.0, 20.0, 30.0),
        planned=(8.0, 30.0, 12.0),
    )
    gain = bench.gain
    assert gain is not None
    assert gain.relative == pytest.approx(-0.2)
    assert (gain.faster, gain.n) == (2, 3)
    made = report_of(bench)
    assert "(-20.0\N{NO-BREAK SPACE}%, n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}3)" in made.headline.sentence
    assert made.data["against_baseline"]["planned"] == {
        "relative": -0.2,
        "low": None,
        "high": None,
        "verdict": "no difference shown",
        "faster": 2,
        "n": 3,
    }
    written = text(made)
    assert "-20.0" in next(line for line in written.splitlines() if line.startswith("planned"))
    assert "-40" not in written
    assert "(-20.0\N{NO-BREAK SPACE}%, n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}3)" in page(made)


@given(st.lists(st.tuples(*[st.integers(50, 200)] * 4), min_size=1, max_size=9))
def test_every_percentage_against_the_baseline_is_a_median_of_paired_rounds(times: list[tuple[int, ...]]) -> None:
    names = (SEQUENTIAL, OVERLAP, TORCHRUN, PLANNED)
    bench = rounds(**{name: tuple(float(each[place]) for each in times) for place, name in enumerate(names)})
    data = bench_data(bench)
    base = bench.variant(data["baseline"]).times_ns
    for name, comparison in data["against_baseline"].items():
        pairs = list(zip(bench.variant(name).times_ns, base, strict=True))
        assert comparison["relative"] == pytest.approx(
            median((time - other) / other for time, other in pairs), abs=1e-6
        )
        assert (comparison["faster"], comparison["n"]) == (sum(time < other for time, other in pairs), len(times))


def test_a_plan_that_changes_nothing_claims_no_gain() -> None:
    bench = replace(rounds(sequential=(30.0,), overlap=(20.0,)), choice="leave as is (overlap): no candidate is faster")
    unchanged = VariantResult(name=PLANNED, times_ns=(19.0 * 1e6,))
    sentence = report_of(replace(bench, variants=(*bench.variants, unchanged))).headline.sentence
    assert "leave as is; torch's default takes 20.0" in sentence
    assert "-5" not in sentence


def test_every_workload_has_a_summary_and_a_wrong_name_a_suggestion() -> None:
    assert all(workload_summary(name) and family(name) for name in workload_names())
    with pytest.raises(UnknownNameError, match="did you mean 'gemm-ar'"):
        family("gemm-arr")


def test_variants_that_run_the_same_are_one_measurement() -> None:
    variants = (*fixed_variants(2, 2), Variant(name=PLANNED, threads=1), Variant(name="other", threads=3))
    original = measured_as(variants)
    assert original[PLANNED] == TORCHRUN
    assert original["other"] == "other"
    assert all(original[name] == name for name in (COMPUTE, COMM, SEQUENTIAL, OVERLAP, TORCHRUN))


def test_leave_as_is_shows_the_figures_of_the_default_itself() -> None:
    samples = {name: Samples(times_ns=[time_ns], cpu_ns=[time_ns]) for name, time_ns in
               ((COMPUTE, 10e6), (COMM, 8e6), (SEQUENTIAL, 18e6), (OVERLAP, 16e6), (TORCHRUN, 15e6))}  # fmt: skip
    variants = (*fixed_variants(2, 2), Variant(name=PLANNED, threads=1))
    bench = collected_bench(
        Job(workload="gemm-ar", on="cpu"), Alone(), variants, samples,
        exchange=None, exchanges=1, choice="leave as is", notes=(), cores=1,
    )  # fmt: skip
    assert bench is not None
    assert bench.planned is not None
    assert bench.planned.same_as == TORCHRUN
    assert bench.planned.times_ns == bench.variant(TORCHRUN).times_ns
    assert bench_data(bench)["variants"][PLANNED]["same_as"] == TORCHRUN
    assert f"{PLANNED} = {TORCHRUN}" in text(report_of(bench), width=120)
    assert bench.reachable_ns == 18e6  # processor time of both parts on one core, above the ideal of 10 ms
    assert replace(bench, cores=4).reachable_ns == bench.ideal_ns
    assert replace(bench, cores=None).reachable_ns is None
    assert bench.reachable_by == "processors"
    later = replace(bench, ordered_ns=tuple(2 * 18e6 for _ in bench.compute_ns))
    assert (later.reachable_by, later.reachable_ns) == ("order", 36e6)
    times = later.variant("overlap").times_ns
    reached = later.reached("overlap")
    assert reached is not None
    assert 1 + reached.relative == pytest.approx(36e6 / times[0])


class Alone:
    """One rank without peers."""

    rank, ranks = 0, 1

    def gathered(self, value: Any, kind: object) -> list[Any] | None:
        return [value]

    def barrier(self) -> None: ...
    def broadcast(self, decide: Any, kind: object) -> Any:
        return decide()

    def everywhere(self, value: Any, kind: object) -> list[Any]:
        return [value]


@pytest.mark.parametrize(
    ("compute_ms", "busy"), [((10, 10, 10, 10), False), ((10, 13, 10, 13), True), ((10, 20), False)]
)
def test_a_busy_machine_is_called_busy(compute_ms: tuple[float, ...], busy: bool) -> None:
    bench = replace(a_bench(sequential=20, overlap=16), compute_ns=tuple(1e6 * time for time in compute_ms))
    assert bench_data(bench)["busy"] == busy
    assert ("This machine is busy" in text(report_of(bench))) == busy
    assert replace(bench, origin="predicted").busy is None
