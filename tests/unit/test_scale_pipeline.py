"""Pipeline schedules: published bubble rates, bubble formulas as laws, exact extrapolation over micro batches."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from makeway.decide.scale.greedy import Room, StageTimes, greedy_orders
from makeway.decide.scale.pipeline import ByStage, PipelineCosts, run_pipeline, step_pipeline
from makeway.decide.scale.schedules import SPLIT_SCHEDULES, Task, check_schedule, schedule
from makeway.values.errors import InputError
from makeway.values.layout import TWO_CHUNK_SCHEDULES, Layout, Schedule

# arXiv 2401.10241, Table 5, with the profiled times of its Table 6: stages, chunks of 1F1B-I, micro batches, forward,
# backward of the input, of the weights, hop; bubble rates of 1F1B, 1F1B-I, ZB-H1 (and ZB-1p), ZB-H2, ZB-2p.
PUBLISHED = (
    (8, 3, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 0.1585, 0.1083, 0.0433),
    (8, 3, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 0.1242, 0.0837, 0.0039),
    (8, 3, 64, 18.546, 18.097, 9.321, 0.762, 0.124, 0.0443, 0.0674, 0.0444, 0.0026),
    (8, 4, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.0808, 0.1323, 0.0698, 0.0029),
    (8, 4, 32, 29.802, 29.428, 19.53, 0.577, 0.1898, 0.0628, 0.1045, 0.0559, 0.0022),
    (8, 4, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.032, 0.0554, 0.0294, 0.001),
    (16, 3, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1104, 0.1397, 0.0672, 0.0066),
    (16, 3, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.0852, 0.1088, 0.0516, 0.0054),
    (16, 3, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0445, 0.0576, 0.0266, 0.0028),
    (32, 2, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1493, 0.1421, 0.0641, 0.0038),
    (32, 2, 128, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1164, 0.1106, 0.049, 0.0029),
    (32, 2, 256, 10.402, 10.248, 7.698, 0.46, 0.1352, 0.0624, 0.0594, 0.0257, 0.0018),
)  # fmt: skip
# Hidden size and heads of those models by stages and chunks; activations by Table 1 of the paper, sequence 1,024.
PUBLISHED_MODELS = {(8, 3): (2304, 24), (8, 4): (4096, 32), (16, 3): (5120, 40), (32, 2): (6144, 48)}
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


def layout_of(name: Schedule, stages: int, micro_batches: int, chunks: int = 1) -> Layout:
    return Layout(pp=stages, vp=chunks, global_batch=micro_batches, schedule=name)


def even_costs(
    layout: Layout, forward: float, grad: float, weight: float, hop: float = 0.0, pair: float | None = None
) -> PipelineCosts:
    def spread(time: float) -> ByStage:
        return ((time,) * layout.chunks,) * layout.pp

    return PipelineCosts(
        forward_ns=spread(forward),
        input_ns=spread(grad),
        weight_ns=spread(weight),
        hop_ns=hop,
        pair_ns=None if pair is None else spread(pair),
    )


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0]}-stages-{row[2]}-micro-batches")
def test_published_bubble_rates(row: tuple[float, ...]) -> None:
    stages, chunks, micro_batches = (int(number) for number in row[:3])
    forward, grad, weight, hop, plain, interleaved, zb_h1, zb_h2, zb_2p = row[3:]
    work = micro_batches * (forward + grad + weight)
    hidden, heads = PUBLISHED_MODELS[stages, chunks]
    kept = 32 / (34 + 5 * heads * 1024 / hidden)

    def rate(name: Schedule, parts: int = 1, *, validated_later: bool = False) -> float:
        layout = layout_of(name, stages, micro_batches, parts)
        costs = even_costs(layout, forward / parts, grad / parts, weight / parts, hop)
        run = step_pipeline(layout, replace(costs, kept_for_weights=kept))
        return 1 - work / (run.longest_stage_ns if validated_later else run.makespan_ns)

    assert round(rate("1f1b"), 4) == plain
    assert round(rate("zb-h1"), 4) == zb_h1
    assert round(rate("zb-h2", validated_later=True), 4) == zb_h2
    assert round(rate("zb-2p", validated_later=True), 4) == zb_2p
    assert rate("interleaved", chunks) == pytest.approx(interleaved, abs=0.004)


times = st.floats(1.0, 20.0)


@settings(deadline=None)
@given(st.data(), st.integers(2, 6), st.integers(1, 80), st.floats(0.3, 1.0))
def test_zb_2p_keeps_to_its_memory_and_is_never_slower_than_zb_h2(
    data: st.DataObject, stages: int, micro_batches: int, kept: float
) -> None:
    row = st.tuples(*[times] * stages)
    forward, grad, weight = (data.draw(row) for _ in range(3))
    hop = data.draw(st.sampled_from((0.0, 0.5, 5.0)))
    limit = 2 * stages
    orders, repeats = greedy_orders(
        StageTimes(forward_ns=forward, input_ns=grad, weight_ns=weight, hop_ns=hop),
        micro_batches,
        Room(limit=limit, kept_for_weights=kept),
    )
    for order in orders:
        held = 0.0
        for task in order.unrolled(repeats):
            held += {"F": 1.0, "B": kept - 1, "W": -kept}[task.kind]
            assert held <= limit + 1e-6
        assert held == pytest.approx(0.0, abs=1e-6)
    costs = PipelineCosts(
        forward_ns=tuple((time,) for time in forward),
        input_ns=tuple((time,) for time in grad),
        weight_ns=tuple((time,) for time in weight),
        hop_ns=hop,
        kept_for_weights=kept,
    )
    made, by_hand = (step_pipeline(layout_of(name, stages, micro_batches), costs) for name in ("zb-2p", "zb-h2"))
    assert made.longest_stage_ns <= by_hand.longest_stage_ns * (1 + 1e-9)  # rounding decides nothing


@given(times, times, st.integers(2, 6), st.integers(0, 9))
def test_bubble_of_1f1b_is_stages_less_one_times_forward_and_backward(
    forward: float, backward: float, stages: int, more: int
) -> None:
    layout = layout_of("1f1b", stages, stages + more)
    run = step_pipeline(layout, even_costs(layout, forward, backward / 2, backward / 2))
    assert run.makespan_ns - run.busy_ns[0] == pytest.approx((stages - 1) * (forward + backward))


@given(times, st.floats(0.3, 1.0), st.integers(2, 6), st.integers(0, 9))
def test_bubble_of_zb_h1_loses_two_weights_per_stage(forward: float, share: float, stages: int, more: int) -> None:
    # ZB1P: (stages - 1)(F + B - 2W) with the full backward pass B; it holds where W <= F <= B - W, as in practice.
    weight, grad = share * forward, forward
    layout = layout_of("zb-h1", stages, 2 * stages + more)
    run = step_pipeline(layout, even_costs(layout, forward, grad, weight))
    assert run.makespan_ns - run.busy_ns[0] == pytest.approx((stages - 1) * (forward + grad - weight))


@given(st.integers(1, 4), st.integers(0, 4), times, st.floats(0.3, 1.0), st.floats(0.0, 1.0), st.floats(1.0, 1.3))
def test_bubble_of_dualpipe(half: int, more: int, grad: float, share: float, overlapped: float, longer: float) -> None:
    # Its README says (stages / 2 - 1)(F&B + B - 3W) with the full backward pass B. That holds on the middle stages,
    # whose bubble is the largest, where F = B - W; for longer forward passes it is (stages / 2 - 1)(F&B + F - 2W).
    forward, weight = longer * grad, share * grad
    backward = grad + weight
    pair = max(forward, backward) + (1 - overlapped) * min(forward, backward)  # no overlap beats the longer of the two
    layout = layout_of("dualpipe", 2 * half, 4 * half + 2 * more)
    for first, together in ((forward, pair), (grad, backward + (1 - overlapped) * grad)):
        run = step_pipeline(layout, even_costs(layout, first, grad, weight, pair=together))
        bubbles = [run.makespan_ns - busy for busy in run.busy_ns]
        assert max(bubbles) == pytest.approx(bubbles[half], abs=1e-9)
        assert bubbles[half] == pytest.approx((half - 1) * (together + first - 2 * weight), abs=1e-9)
        if first == grad:
            assert bubbles[half] == pytest.approx((half - 1) * (together + backward - 3 * weight), abs=1e-9)


@st.composite
def uneven(draw: st.DrawFn) -> tuple[Layout, PipelineCosts]:
    name = draw(st.sampled_from(SCHEDULES))
    stages = draw(st.sampled_from((2, 4, 6) if name == "dualpipe" else (1, 2, 3, 5)))
    chunks = draw(st.integers(2, 3)) if name == "interleaved" else 1
    micro_batches = draw(st.integers(1, 60))
    if name == "interleaved":
        micro_batches = stages * max(1, micro_batches // stages)
    elif name.startswith("dualpipe"):
        micro_batches = 2 * (stages + micro_batches // 2)
    layout = layout_of(name, stages, micro_batches, chunks)
    low, high = draw(st.sampled_from(((1.0, 20.0), (10.0, 10.1))))  # far apart, and nearly alike

    def by_stage() -> ByStage:
        row = st.tuples(*[st.floats(low, high)] * layout.chunks)
        return draw(st.tuples(*[row] * stages))

    return layout, PipelineCosts(
        forward_ns=by_stage(),
        input_ns=by_stage(),
        weight_ns=by_stage(),
        hop_ns=draw(st.sampled_from((0.0, 0.5, 7.0))),
        hop_overlapped=draw(st.booleans()),
        pair_ns=by_stage() if draw(st.booleans()) else None,
    )


@settings(max_examples=150, deadline=None)
@given(uneven())
def test_extrapolation_over_micro_batches_is_exact_on_uneven_stages(case: tuple[Layout, PipelineCosts]) -> None:
    layout, costs = case
    short, full = step_pipeline(layout, costs), run_pipeline(layout, costs)
    assert short.end_ns == pytest.approx(full.end_ns, rel=1e-9)
    assert short.busy_ns == pytest.approx(full.busy_ns, rel=1e-9)
    assert short.start_ns == pytest.approx(full.start_ns, rel=1e-9, abs=1e-9)


def test_a_slow_stage_that_binds_only_after_many_micro_batches_is_not_missed() -> None:
    layout = layout_of("1f1b", 4, 3000)
    forward = ((10.01,), (10.0,), (10.0,), (10.0,))
    costs = PipelineCosts(forward_ns=forward, input_ns=((10.0,),) * 4, weight_ns=((10.0,),) * 4)
    run = step_pipeline(layout, costs)
    assert run.makespan_ns == pytest.approx(run_pipeline(layout, costs).makespan_ns, rel=1e-12)


@settings(deadline=None)
@given(uneven())
def test_no_step_is_shorter_than_its_busiest_stage_and_each_task_runs_once(case: tuple[Layout, PipelineCosts]) -> None:
    layout, costs = case
    run = run_pipeline(layout, costs)
    assert run.makespan_ns >= max(run.busy_ns) * (1 - 1e-12)
    seen = [(span.stage, span.task.kind[0], span.task.micro_batch, span.task.chunk) for span in run.spans]
    assert len(seen) == len(set(seen))
    places = layout.pp * layout.chunks
    passes = layout.micro_batches * places // (2 if layout.schedule == "dualpipe" else 1)
    assert sum(kind == "F" for _, kind, _, _ in seen) == passes
    assert sum(kind == "B" for _, kind, _, _ in seen) == passes


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "gpipe"])
def test_a_stage_ends_with_nothing_left_to_do(name: Schedule) -> None:
    chunks = 2 if name in (*TWO_CHUNK_SCHEDULES, "interleaved") else 1
    for order in schedule(name, 4, chunks, 12):
        forward = {task[1:3] for task in order if task.kind == "F"}
        weights = {task[1:3] for task in order if task.kind in ("W", "BW")}
        assert forward == weights
        assert ("W" in {task.kind for task in order}) == (name in SPLIT_SCHEDULES)


def test_orders_that_wait_for_each_other_are_refused() -> None:
    layout = layout_of("1f1b", 2, 1)
    stuck = ((Task("BW", 0), Task("F", 0)), (Task("F", 0), Task("BW", 0)))
    with pytest.raises(InputError, match="never end"):
        run_pipeline(layout, even_costs(layout, 1, 1, 1), stuck)


@pytest.mark.parametrize(
    ("name", "stages", "chunks", "micro_batches", "message"),
    [
        ("interleaved", 4, 2, 10, "8 would work"),
        ("dualpipe", 3, 2, 12, "even number of stages"),
        ("dualpipev", 4, 2, 6, "8 for 4 stages"),
        ("zbv", 4, 3, 8, "2 chunks per stage"),
        ("1f1b", 4, 2, 8, "interleaved"),
    ],
)
def test_impossible_schedules_say_what_works(
    name: Schedule, stages: int, chunks: int, micro_batches: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_schedule(name, stages, chunks, micro_batches)
