"""Text, page and JSON show the same figures, for every kind of result."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from html import escape
from itertools import islice
from pathlib import Path
from typing import cast

import msgspec
import pytest
from tests.certificates import steps as certificate_steps
from tests.unit.test_run_report import example_run

from makeway import (
    Bench,
    Demo,
    Job,
    Plan,
    analyze,
    bench,
    calibrate,
    compare,
    compare_plans,
    export,
    inspect,
    known_devices,
    load_cluster,
    load_device,
    load_model,
    load_plan,
    load_preset,
    make_room,
    parse_layout,
    parse_resources,
    plan,
    report_of,
    scale,
    scale_recorded,
    simulate,
    sweep,
    sweep_gpus,
    validate,
)
from makeway.act.doctor.certificate import sealed
from makeway.act.doctor.checkup import doctor
from makeway.act.launch.compare_run import RunComparison, StepBlock
from makeway.act.launch.record import RankRecording
from makeway.act.launch.record import Recording as JobRecording
from makeway.act.launch.run import dry_run
from makeway.act.launch.tuned import LossChange, Refused, RunTuning, Tried
from makeway.act.launch.tuning_so_far import SettingTime, TuningSoFar
from makeway.act.measure.calibrate import Calibration
from makeway.act.measure.demo import DeviceMap, GpuStory
from makeway.act.measure.demo_job import JobStory
from makeway.act.measure.experiment import Cell as ExperimentCell
from makeway.act.measure.experiment import Experiment
from makeway.act.measure.outcome import VariantResult
from makeway.decide.analysis.compare import parse_limit
from makeway.decide.analysis.many.analyze_job import Shard, ShardFile, analyze_job
from makeway.decide.analysis.many.map_rank import MapOptions
from makeway.decide.planning.recorded import NothingToPlan
from makeway.decide.scale.outcome import ScaleCurve
from makeway.decide.scale.shards import curve_shard
from makeway.decide.scale.sweep import SweepRequest
from makeway.decide.scale.validate import ScaleValidation, validate_rows
from makeway.model.validate.conccl import conccl_rows
from makeway.model.validate.rows import published_csv
from makeway.read.plan_file import dump_plan
from makeway.show.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Curves,
    Headline,
    HeatMap,
    Paragraph,
    Part,
    Report,
    Section,
    Table,
)
from makeway.show.json import json as as_json
from makeway.show.page import page
from makeway.show.report import _SHOWN_BY
from makeway.show.text import text
from makeway.values.collective import Collective
from makeway.values.control import CommBlocks, CommPriority, Compress, CopyEngine, OwnCores, SmPartition
from makeway.values.receipt import Receipt

H100 = load_device("H100-SXM5-80GB")
LLAMA, DGX = load_model("llama-3-8b"), load_cluster("dgx-h100")
EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDED = EXAMPLES / "recordings" / "tp-llama-70b"
WIDE = 1_000  # columns: nothing is left out of the text
SHOWN_AS = (1.0, 100.0, 1e-3, 1e3)  # a share as percent; milliseconds as seconds or microseconds


def calibrated() -> object:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "certificate.json")
        path.write_bytes(msgspec.json.encode(sealed({"date": "2026-01-02T03:04:05Z"}, certificate_steps())))
        return calibrate(path)


RESULTS: dict[str, Callable[[], object]] = {
    "Analysis": lambda: analyze([RECORDED], keep_spans=True, jobs=1),
    "Bench": lambda: bench_with(wrong="rank 1: gemm 0"),
    "CalibratedDevice": calibrated,
    "Calibration": lambda: Calibration(
        facts={"fp32_flops_per_s": 1.5e11, "copy_s_per_byte": 1.25e-10}, cores=2, rounds=7, machine="a host"
    ),
    "Checkup": doctor,
    "Comparison": lambda: compare(
        EXAMPLES / "recordings" / "ddp-gloo-2ranks", EXAMPLES / "recordings" / "ddp-gloo-2ranks-controlled", jobs=1
    ),
    "CurveShard": lambda: curve_shard(
        SweepRequest(model=LLAMA, cluster=DGX, layout=parse_layout("tp=8,sharding=zero1")), (8,), Shard(index=1, of=1)
    ),
    "Demo": lambda: small_demo(),  # noqa: PLW0108
    "Device": lambda: H100,
    "DeviceList": known_devices,
    "DryRun": lambda: dry_run(["torchrun", "train.py"], load_plan(EXAMPLES / "cpu-plan.toml")),
    "Experiments": lambda: bench(
        Job(workload="cb-ar", on="sim:A40", grids=((8, 8), (16, 8)), tiles=((64, 64, 32), (64, 64, 64)), steps=2)
    ),
    "Export": lambda: export(load_plan(EXAMPLES / "cpu-plan.toml"), "env"),
    "Inspection": lambda: inspect(EXAMPLES / "matmul.sm_90.cubin"),
    "JobAnalysis": lambda: analyze_job([RECORDED], jobs=1, options=MapOptions(cached=False)),
    "NothingToPlan": lambda: NothingToPlan(reason="no rank has a step", device="A40", notes=()),
    "Plan": lambda: plan(load_preset("gemm-ar", H100), H100, timelines=True),
    "PlanDifference": lambda: compare_plans(
        Plan(controls=(CommPriority(),)), Plan(controls=(SmPartition(24),)), load_preset("gemm-ar", H100), H100
    ),
    "Prediction": lambda: simulate(load_preset("gemm-ar", H100), H100),
    "Recording": lambda: recorded_job(),  # noqa: PLW0108  # defined below
    "RoomAnswer": lambda: make_room(
        H100, parse_resources("threads=256,registers=98,smem=48KiB"), "nccl-2.32.3/ring-simple"
    ),
    "Run": example_run,
    "RunComparison": lambda: compared_run(),  # noqa: PLW0108
    "RunTuning": lambda: tuned_run(),  # noqa: PLW0108
    "TuningSoFar": lambda: TuningSoFar(
        tuning=tuned_run(),
        times=(
            SettingTime(controls=(), steps=40, samples=30, median_ns=2e6, spread_ns=1e5, in_force=False),
            SettingTime(controls=tuned_run().plan, steps=12, samples=3, median_ns=1.5e6, spread_ns=None, in_force=True),
        ),
        running=True,
        ranks=2,
    ),
    "ScaleValidation": lambda: scale_validation(),  # noqa: PLW0108
    "ScaleCurve": lambda: sweep_gpus(
        SweepRequest(
            model=LLAMA, cluster=DGX, layout=parse_layout("tp=2,dp=4,mbs=1,gbs=8,sharding=zero1"), sequences_per_gpu=1.0
        ),
        (8, 64, 65),
    ),
    "Scaled": lambda: scale(LLAMA, DGX, gpus=16, global_batch=32),
    "ScaledRecording": lambda: scale_recorded(RECORDED, load_cluster("dgx-a100"), gpus=64),
    "ShardFile": lambda: ShardFile(
        shard=Shard(index=1, of=2), path=Path("s"), traces=1, all_traces=2, trace_bytes=9_000, summary_bytes=90
    ),
    "Sweep": lambda: sweep("comm-blocks", load_preset("gemm-ar", H100), H100),
    "Validation": lambda: validate(["dma"]),
}
WITHOUT_FIGURES = {"Checkup", "CurveShard", "DryRun", "Export", "NothingToPlan", "ShardFile"}  # they answer in words


def scale_validation() -> ScaleValidation:
    """A published table that has rows of both kinds and rows that are not covered, cut short."""
    rows = published_csv("scale/megatron_bridge.csv")
    chosen = [*rows[:12], *[row for row in rows if "LoRA" in row["model"]][:1]]
    steps = published_csv("scale/simumax_b200_node.csv")[:8]
    return validate_rows([("megatron_bridge.csv", chosen), ("simumax_b200_node.csv", steps)])


def recorded_job() -> JobRecording:
    """A rank with a file, and one without."""
    first = RankRecording(
        rank=0,
        file="makeway-recording/rank0.json.gz",
        steps=4,
        size_bytes=25_213,
        plain_step_ns=13.8e6,
        profiled_step_ns=14.9e6,
    )
    nothing = replace(first, rank=1, file=None, steps=0, size_bytes=None, plain_step_ns=None, profiled_step_ns=None)
    return JobRecording(
        program=("torchrun", "train.py"),
        directory="makeway-recording",
        asked_steps=5,
        ranks=(first, replace(nothing, problem="no step was seen")),
        exit_code=0,
        killed_by=None,
        problem=None,
        notes=("the program ended early",),
    )


def tuned_run() -> RunTuning:
    """A job that adopted a control, and what it tried before."""
    dropped = Tried(step=70, controls=(CopyEngine(),), what="dropped", rounds=1, difference_pct=7.5)
    adopted = Tried(
        step=140, controls=(CommPriority(),), what="adopted", rounds=9, difference_pct=-14.2,
        interval_pct=(-17.3, -11.6),
    )  # fmt: skip
    return RunTuning(
        program=("torchrun", "train.py"),
        plan=(CommPriority(),),
        difference_pct=-14.2,
        interval_pct=(-17.3, -11.6),
        tried=(dropped, adopted),
        candidates=((CopyEngine(),), (CommPriority(),), (OwnCores(),)),
        refused=(Refused(controls=(OwnCores(),), reason="own-cores: each of 4 ranks needs a core"),),
        steps=2000,
        explored_steps=89,
        explored_share=0.0445,
        share_limit=0.05,
        lost_share=0.006,
        lost_limit=0.008,
        start_s=0.21,
        controls=example_run().controls,
        allow_lossy=True,
        losses=(
            LossChange(
                controls=(Compress("bf16"),),
                pairs=2,
                loss_without=2.25,
                loss_with=2.5,
                difference=0.25,
                spread=(0.125, 0.375),
            ),
        ),
        exit_code=0,
        killed_by=None,
        notes=("small",),
    )


def test_the_plan_of_a_tuned_job_speaks_of_the_hardware_it_ran_on() -> None:
    kept = (SmPartition(1), CommBlocks(2), CopyEngine())
    on_cpu, on_gpu = (
        [
            line
            for line in dump_plan(replace(tuned_run(), plan=kept, platform=platform).as_plan).splitlines()
            if "# " in line
        ]
        for platform in (None, "cuda")
    )
    assert "# 1 processor set apart for communication" in on_cpu
    assert [line for line in on_cpu if re.search(r"\bSMs?\b|\bblocks?\b|launch|engine", line)] == []
    assert "# 1 SM set apart for communication" in on_gpu


def test_a_job_too_short_for_a_whole_round_says_so_and_names_both_limits() -> None:
    started = replace(tuned_run(), plan=(), tried=(), difference_pct=None, interval_pct=None)
    idle = replace(started, explored_steps=0, explored_share=0.0, lost_share=0.0)
    short, unused = (text(report_of(result)) for result in (started, idle))
    assert "No candidate ran long enough to be compared" in short
    assert "Nothing was tried: the job ended first" in unused
    without_any = tuple(Refused(controls=controls, reason="too few cores") for controls in idle.candidates)
    for cause in (replace(idle, refused=without_any), replace(idle, problem="the ranks stepped apart")):
        assert "ended first" not in text(report_of(cause))
    assert "0.6 % of the time (trials end beyond 0.8 %)" in " ".join(short.split())


def test_trials_that_were_faster_saved_time_and_cost_none() -> None:
    said = " ".join(text(report_of(replace(tuned_run(), lost_share=-0.017))).split())
    assert "and saved 1.7 % of the time." in said
    assert "cost" not in said
    assert "Before the first step, 0.21 s went to tuning." in said


def compared_run() -> RunComparison:
    """Blocks of both sides, and the receipts of a run."""
    block = StepBlock(
        number=0, side="without", noise=True, times_ns=(40_000_000, 41_000_000), step_ns=40.5e6, spread_ns=1e6
    )
    blocks = [replace(block, number=number, side="with" if number == 3 else "without") for number in range(4)]
    return RunComparison(
        program=("torchrun", "train.py"),
        by="blocks",
        verdict="faster",
        difference_pct=-12.3,
        interval_pct=(-15.1, -9.4),
        level_pct=99.5,
        without_step_ns=46.2e6,
        with_step_ns=40.5e6,
        steps=4,
        pairs=1,
        noise_pct=1.7,
        left="with",
        blocks=tuple(replace(block, noise=block.number < 2) for block in blocks),
        controls=example_run().controls,
        exit_code=0,
        killed_by=None,
        limit=parse_limit("slower"),
        notes=("small",),
    )


def bench_with(*, wrong: str | None) -> Bench:
    """Spread, a prediction, and receipts of two statuses."""
    times = {"sequential": 30.0, "overlap": 24.0, "overlap_torchrun": 22.0, "chunks=2": 21.0, "planned": 17.0}
    receipt = Receipt(control=CommPriority(), status="applied", detail="nice 5", carrier="torch on CPU")
    variants = tuple(
        VariantResult(
            name=name,
            times_ns=tuple(time * 1e6 + 2e5 * each**2 for each in range(5)),
            threads=1,
            controls=(CommPriority(),) if name == "planned" else (),
            overlap_rate=0.1 * place,
            predicted_ns=25.5e6 if name == "overlap" else None,
            wrong=wrong if name == "chunks=2" else None,
            receipts=(receipt, replace(receipt, status="refused")) if name == "planned" else (),
        )
        for place, (name, time) in enumerate(times.items())
    )
    return Bench(
        on="cpu", ranks=2, workload="gemm-ar", origin="measured", variants=variants, compute_ns=(15e6, 16e6),
        comm_ns=(13e6, 14e6), exchange=Collective(kind="all-gather", size_bytes=1 << 20, ranks=2), exchanges=4,
        choice="priority: clearly faster than overlap and overlap_torchrun", link="loopback", notes=("small",),
    )  # fmt: skip


def small_demo() -> Demo:
    """Every act, each as short as it can be."""
    cells = tuple(ExperimentCell(grid=(x, 2), t_sequential_ns=1e6, t_overlap_ns=8e5 + 1e4 * x) for x in (2, 8))
    experiment = Experiment(workload="cb-ar", on="sim:A40", origin="predicted", tile=(64, 64, 32), n=1, cells=cells)
    layer, tuned = load_preset("gemm-ar", H100), tuned_run()
    kernel = next(launch for launch in layer.kernels)
    return Demo(
        job=JobStory(
            program=tuned.program, recording=recorded_job(), analysis=analyze([RECORDED], keep_spans=True, jobs=1),
            tuning=tuned, comparison=compared_run(), compared=tuned.plan,
        ),
        gpu=GpuStory(
            device=H100, workload=layer, room=make_room(H100, kernel.resources, layer.collectives[0].library),
            plain=simulate(layer, H100), controlled=(((CommPriority(),), simulate(layer, H100, [CommPriority()])),),
            refused=((CopyEngine(), "an all-reduce needs arithmetic"),), plan=Plan(controls=(CommPriority(),)),
        ),
        maps=(DeviceMap(name="A40", experiment=experiment, published={(2, 2): 0.75, (8, 2): 0.9}),),
        ladder=tuple(islice(conccl_rows(), 2)),
        cluster=cast(ScaleCurve, RESULTS["ScaleCurve"]()),
        seconds=1.2,
    )  # fmt: skip


@cache
def report(kind: str) -> Report:
    return report_of(RESULTS[kind](), arguments=f"makeway {kind}")


def figures(shown: Report) -> Iterator[tuple[str, float, str]]:
    """Where each figure of the blocks is, its value, and how it is written."""
    for section in shown.sections:
        for block in section.blocks:
            match block:
                case Table():
                    for row in block.rows:
                        for column, cell in zip(block.columns, row, strict=True):
                            if cell.value is not None:
                                yield f"{block.name}: {column.title}", cell.value, cell.text
                case Bars():
                    for bar in block.bars:
                        for part in bar.parts:
                            yield (
                                f"{block.name}: {bar.label}",
                                part.amount / block.unit.per,
                                block.unit.text(part.amount),
                            )
                case Curves():
                    for curve in block.curves:
                        for value in curve.values:
                            if value is not None:
                                yield f"{block.name}: {curve.label}", value, f"{value:,.{block.digits}f}"
                case HeatMap():
                    for values in block.values:
                        for value in values:
                            if value is not None:
                                yield block.name, value, f"{value:z.{block.digits}f}"


def numbers(document: object) -> Iterator[float]:
    match document:
        case dict():
            for value in document.values():
                yield from numbers(value)
        case list():
            for value in document:
                yield from numbers(value)
        case bool() | None | str():
            return
        case int() | float():
            yield float(document)


def is_among(value: float, known: list[float]) -> bool:
    """Whether a figure is one of these numbers, in its own or a larger unit."""
    return any(
        math.isclose(value, number * scale, rel_tol=1e-6, abs_tol=6e-7 * scale)
        for number in known
        for scale in SHOWN_AS
    )


def test_every_kind_of_result_is_here() -> None:
    assert set(RESULTS) == set(_SHOWN_BY)


@pytest.mark.parametrize("kind", RESULTS)
def test_every_figure_is_in_text_page_and_json(kind: str) -> None:
    shown = report(kind)
    known = sorted(set(numbers(json.loads(as_json(shown)))))
    lines, markup = text(shown, width=WIDE, verbose=True), page(shown)
    assert list(figures(shown)) or kind in WITHOUT_FIGURES, "a report without figures shows nothing"
    assert shown.headline.value is None or is_among(shown.headline.value, known), "the headline's number"
    for where, value, words in figures(shown):
        assert is_among(value, known), f"{where}: {value} is not in the JSON"
        assert words in lines, f"{where}: {words} is not in the text"
        assert escape(words) in markup, f"{where}: {words} is not on the page"


@pytest.mark.parametrize("kind", RESULTS)
def test_text_leads_with_the_verdict_and_fits(kind: str) -> None:
    shown = report(kind)
    for width in (80, 120):
        lines = text(shown, width=width).splitlines()
        assert max(map(len, lines)) <= width
        begin = " ".join(" ".join(lines[:4]).replace("\N{NO-BREAK SPACE}", " ").split())
        assert begin.startswith(
            " ".join(shown.headline.sentence.replace("\N{NO-BREAK SPACE}", " ").split()).rstrip(".")
        )


def small_report(*blocks: Block) -> Report:
    headline = Headline(sentence="3 ms", origin="predicted")
    return Report(
        result="plan", over="", headline=headline, sections=(Section(name="all", title="All", blocks=blocks),)
    )


def test_text_names_an_origin_once_and_again_where_it_differs() -> None:
    lines = text(
        small_report(
            Paragraph(text="The same.", origin="predicted"), Paragraph(text="A measurement.", origin="measured")
        )
    ).split("\n")
    assert [line for line in lines if line] == ["3 ms (predicted).", "The same.", "A measurement (measured)."]


def test_a_command_to_type_next_stays_on_one_line() -> None:
    command = "makeway analyze " + "/a-long-name" * 10
    lines = text(small_report(Paragraph(text="Done.", command=command)), width=80).splitlines()
    assert f"Next: {command}" in lines
    assert command in page(small_report(Paragraph(text="Done.", command=command)))


def test_text_breaks_no_line_inside_a_figure_and_leaves_empty_columns_out() -> None:
    sentence = "x" * 30 + " saves 12\N{NO-BREAK SPACE}% here"
    table = Table(
        name="rows",
        caption="Rows",
        columns=(Column("name", "name"), Column("gain", "number"), Column("reason", "wide")),
        rows=((Cell("a" * 12), Cell("–"), Cell("word " * 12)),),
    )
    shown = small_report(Paragraph(text=sentence), table)
    lines = text(shown, width=40).split("\n")
    assert "12 % here" in lines
    assert "name          reason" in lines
    assert "gain" in text(shown, width=40, verbose=True)
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize("kind", RESULTS)
def test_json_names_its_schema_and_its_verdict(kind: str) -> None:
    document = json.loads(as_json(report(kind)))
    assert document["schema"] == f"makeway/{report(kind).result}/1"
    assert list(document)[:3] == ["schema", "makeway", "verdict"]
    assert document["verdict"] in page(report(kind)).replace("\N{NO-BREAK SPACE}", " ").replace("&#x27;", "'")


def test_a_bar_of_few_samples_shows_the_least_and_the_longest_and_its_own_colour() -> None:
    sides = ("with", "without")
    bars = tuple(
        Bar(label=side, parts=(Part(side, 2e6, colour),), reach_ns=(1e6, 5e6), samples=3)
        for side, colour in zip(sides, ("compute", "memory"), strict=True)
    )
    shown = small_report(Bars(name="times", caption="Times", bars=bars, mark_ns=3e6, mark="as it is"))
    assert "1.000 ms to 5.000 ms, n = 3" in text(shown)
    found = re.search(r'id="times-data"[^>]*>(.*?)</script>', page(shown), re.DOTALL)
    assert found is not None
    chart = json.loads(found[1])
    assert chart["spread"] == [[1.0, 3.0], [1.0, 3.0]]
    assert [set(trace["colours"]) for trace in chart["traces"]] == [{"compute"}, {"memory"}]
    assert chart["mark"] == "as it is: 3.000 ms"
