"""Training steps at scale as reports: the ledger, stages, memory, ranked layouts, controls, compression; and curves."""

from __future__ import annotations

from collections.abc import Sequence

from makeway.decide.scale.compression import MOST_RANKS, Payoff
from makeway.decide.scale.outcome import ControlTrial, LayoutSearch, ScaleCurve, Scaled
from makeway.decide.scale.shards import CurveShard
from makeway.show.blocks import (
    GIBIBYTES,
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Curve,
    Curves,
    Facts,
    Headline,
    Lines,
    Notes,
    Paragraph,
    Part,
    Report,
    Section,
    Table,
)
from makeway.show.numbers import count, number, percent, time_text
from makeway.show.provenance import provenance
from makeway.show.scale_data import curve_data, gain_percent, scaled_data, seconds, share_percent
from makeway.show.scale_names import LINE_NAMES
from makeway.show.tracks import rank_tracks
from makeway.values.control import Control, control_word
from makeway.values.layout import Layout
from makeway.values.layout_word import compression_word, layout_word
from makeway.values.step import StageMemory, StepLine, StepLineKind
from makeway.values.units import GIB

_COLOURS: dict[StepLineKind, str] = {
    "compute": "compute",
    "recompute": "copy",
    "contention": "contention",
    "bubble": "idle",
    "host": "launch-bound",
    "optimizer": "memory",
    "stragglers": "straggler",
    "compression": "dependency",
}
_MEMORY_PARTS = (
    ("weights", "compute"),
    ("gradients", "comm"),
    ("optimizer", "memory"),
    ("activations", "waiting"),
    ("logits", "dependency"),
    ("buffers", "idle"),
)
_PERCENT = "%"
NUMBERS = "predicted by the model of docs/scale.md, not measured"


def report(result: Scaled | ScaleCurve | CurveShard, *, arguments: str = "") -> Report:
    """One step, a curve over GPUs, or a part of one."""
    match result:
        case Scaled():
            return _step_report(result, arguments)
        case ScaleCurve():
            return _curve_report(result, arguments)
        case CurveShard():
            return _shard_report(result, arguments)


# --- one step ---------------------------------------------------------------------------------------


def _step_report(result: Scaled, arguments: str) -> Report:
    step, layout = result.step, result.step.layout
    where = f"{layout.gpus:,} {result.cluster.device.name} ({result.cluster.name})"
    return Report(
        result="scale",
        over=f"makeway scale, {result.model.name} on {where}",
        headline=Headline(
            sentence=f"{result.model.name} takes {time_text(step.step_ns)} a step on {where}: "
            f"{step.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, {percent(100 * step.mfu, '.1f')} MFU",
            origin="predicted",
            value=seconds(step.step_ns),
            unit="s",
        ),
        lead=_lead(result),
        sections=(
            Section(name="time", title="Where the time goes", blocks=(_ledger(step.ledger, step.step_ns),)),
            *_stages(result),
            *_memory(result),
            *_layouts(result.search),
            *controls_section(result.trials),
            *_compression(result.payoffs),
            _conditions(result),
            provenance(arguments, numbers=NUMBERS),
        ),
        data=scaled_data(result),
        notes=result.notes,
        arguments=arguments,
    )


def _lead(result: Scaled) -> tuple[Paragraph, ...]:
    step = result.step
    lines = [f"Layout: {_spaced(step.layout)}."]
    if step.layout.controls and result.gain is not None:
        taken = f"{percent(100 * abs(result.gain), '.1f')} {'less' if result.gain >= 0 else 'more'} than without"
        lines.append(f"With {_controls_text(step.layout.controls)}: {taken}.")
    if result.recorded_from is not None:
        lines.append(f"Kernel times come from the recording {result.recorded_from}.")
    return tuple(Paragraph(text=line) for line in lines)


def _ledger(lines: Sequence[StepLine], step_ns: float) -> Table:
    return Table(
        name="ledger",
        caption="The step on its slowest stage; the lines add up to it",
        origin="predicted",
        columns=(Column("line", "name"), Column("ms", "number"), Column(_PERCENT, "number")),
        rows=tuple(
            (Cell(LINE_NAMES[line.kind]), number(line.ns, scale=1e6), number(100 * line.ns / step_ns, 1))
            for line in lines
        ),
        brief_rows=len(LINE_NAMES),
    )


def _stages(result: Scaled) -> tuple[Section, ...]:
    """Each stage's ledger as a bar, and what runs when on each."""
    step, blocks = result.step, list[Block]()
    if len(step.stage_ledgers) > 1:
        bars = tuple(
            Bar(label=f"stage {stage}", parts=tuple(_part(line) for line in lines))
            for stage, lines in enumerate(step.stage_ledgers)
        )
        blocks.append(Bars(name="stages", caption="The step on each pipeline stage", bars=bars, origin="predicted"))
    if step.timeline is not None:
        caption = "What runs when: one rank for each pipeline stage; gaps are bubbles."
        blocks += [
            Paragraph(text=caption, origin="predicted"),
            Lines(name="pipeline", ranks=rank_tracks([step.timeline], ())),
        ]
    return (Section(name="pipeline-stages", title="Pipeline", blocks=tuple(blocks), detail=True),) if blocks else ()


def _part(line: StepLine) -> Part:
    return Part(LINE_NAMES[line.kind], line.ns, _COLOURS.get(line.kind, "exposed"))


def _memory(result: Scaled) -> tuple[Section, ...]:
    if not result.step.memory:
        return ()
    room = result.memory_bytes_per_gpu
    bars = tuple(_memory_bar(stage) for stage in result.step.memory)
    block = Bars(
        name="memory-by-stage",
        caption="Memory of one GPU of each pipeline stage",
        bars=bars,
        origin="predicted",
        unit=GIBIBYTES,
        mark_ns=float(room) if room else None,
        mark="the device has" if room else "",
    )
    return (Section(name="memory", title="Memory", blocks=(block,)),)


def _memory_bar(stage: StageMemory) -> Bar:
    parts = tuple(Part(name, float(getattr(stage, name)), colour) for name, colour in _MEMORY_PARTS)
    return Bar(label=f"stage {stage.stage}", parts=parts)


def _layouts(search: LayoutSearch | None) -> tuple[Section, ...]:
    if search is None:
        return ()
    ranked = Table(
        name="ranked",
        caption=f"The fastest of {search.considered:,} layouts ({search.fitting:,} fit, {search.simulated:,} predicted "
        "in full); * no other is both faster and smaller",
        origin="predicted",
        columns=(
            Column("", "number"),
            Column("layout", "wide"),
            Column("step s", "number"),
            Column("tokens/s/GPU", "number", brief=False),
            Column("MFU %", "number"),
            Column("GiB", "number"),
            Column("*"),
        ),
        rows=tuple(
            (
                number(item.place, 0),
                Cell(_spaced(item.layout)),
                number(item.step_ns, scale=1e9),
                number(item.tokens_per_s_per_gpu, 1),
                number(100 * item.mfu, 1),
                number(item.memory_gib, 1),
                Cell("*" if item.pareto else ""),
            )
            for item in search.ranked
        ),
        filtered=True,
    )
    dropped = Table(
        name="turned-down",
        caption="Layouts that were turned down",
        origin="predicted",
        columns=(Column("layouts", "number"), Column("reason", "wide"), Column("nearest", "wide", brief=False)),
        rows=tuple(
            (number(item.layouts, 0), Cell(item.reason), Cell(_spaced(item.example))) for item in search.turned_down
        ),
        nothing="No layout was turned down.",
    )
    return (Section(name="layouts", title="Layouts", blocks=(ranked, dropped)),)


def controls_section(trials: Sequence[ControlTrial]) -> tuple[Section, ...]:
    """The step under each set of controls that was tried."""
    if not trials:
        return ()
    table = Table(
        name="controls-tried",
        caption="The same layout under makeway's controls; a gain below 0 is a loss",
        origin="predicted",
        columns=(
            Column("controls", "name"),
            Column("step ms", "number"),
            Column("gain %", "number"),
            Column("", "wide"),
        ),
        rows=tuple(
            (
                Cell(_controls_text(trial.controls)),
                number(trial.step_ns, scale=1e6),
                number(gain_percent(trial.gain), 2),
                Cell(trial.reason),
            )
            for trial in trials
        ),
    )
    return (Section(name="controls", title="Controls", blocks=(table,)),)


def _spaced(layout: Layout) -> str:
    """A layout's word with places to break it; --layout takes it in quotes."""
    return layout_word(layout).replace(",", ", ")


def _controls_text(controls: Sequence[Control]) -> str:
    return " + ".join(control_word(control) for control in controls) or "none"


def _compression(payoffs: Sequence[Payoff]) -> tuple[Section, ...]:
    if not payoffs:
        return ()
    first = payoffs[0]
    table = Table(
        name="compression",
        caption=f"Gradients of one GPU among {first.ranks:,} replicas at {first.link_bytes_per_s / 1e9:,.1f} GB/s, "
        f"alone; 32-bit sums take {time_text(first.plain_ns)}",
        origin="predicted",
        columns=(
            Column("compression"),
            Column("encode ms", "number", brief=False),
            Column("send ms", "number", brief=False),
            Column("decode ms", "number", brief=False),
            Column("all ms", "number"),
            Column("pays below GB/s", "number"),
            Column("pays up to ranks", "number"),
        ),
        rows=tuple(
            (
                Cell(compression_word(item.compression)),
                number(item.encode_ns, scale=1e6),
                number(item.sent_ns, scale=1e6),
                number(item.decode_ns, scale=1e6),
                number(item.compressed_ns, scale=1e6),
                Cell("–") if item.pays_below_bytes_per_s is None else number(item.pays_below_bytes_per_s, 1, scale=1e9),
                Cell("any") if item.pays_up_to_ranks == MOST_RANKS else number(item.pays_up_to_ranks, 0),
            )
            for item in payoffs
        ),
    )
    said = Paragraph(text="Whether training converges with them is not predicted.")
    return (Section(name="compression-payoff", title="Compression", blocks=(table, said), detail=True),)


def _conditions(result: Scaled) -> Section:
    model, step = result.model, result.step
    facts = Facts(
        pairs=(
            ("model", f"{model.parameters / 1e9:,.1f} billion parameters, {model.active_parameters / 1e9:,.1f} active"),
            ("batch", f"{step.layout.global_batch:,} sequences of {model.seq:,} tokens"),
            ("MFU counts", step.flops_formula),
            ("fullest GPU", f"{result.memory_bytes / GIB:,.1f} GiB"),
        )
    )
    blocks: tuple[Block, ...] = (facts, Notes(sentences=tuple(f"assumed: {text}" for text in step.assumed)))
    return Section(name="conditions", title="Conditions", blocks=blocks, detail=True)


# --- a curve ----------------------------------------------------------------------------------------


def _curve_report(curve: ScaleCurve, arguments: str) -> Report:
    where = f"{curve.model} on {curve.cluster}"
    known = [point for point in curve.points if point.tokens_per_s_per_gpu is not None]
    value = None
    if known:
        first, last = known[0], known[-1]
        value = 100 * (last.tokens_per_s_per_gpu or 0.0) / (first.tokens_per_s_per_gpu or 1.0)
        sentence = f"{where} keeps {percent(value)} of its tokens/s per GPU from {first.gpus:,} to {last.gpus:,} GPUs"
    else:
        sentence = f"{where}: no number of GPUs has a layout that fits"
    return Report(
        result="scale-curve",
        over=f"makeway scale --sweep, {where}",
        headline=Headline(sentence=sentence, origin="predicted", value=value, unit="%" if known else None),
        sections=(
            Section(
                name="scaling",
                title="Scaling",
                blocks=(_throughput(curve), _gains(curve), *_compressed_curve(curve), _points(curve)),
            ),
            Section(
                name="conditions",
                title="Conditions",
                blocks=(Notes(sentences=tuple(f"assumed: {text}" for text in curve.assumed)),),
                detail=True,
            ),
            provenance(arguments, numbers=NUMBERS),
        ),
        data=curve_data(curve) | ({"kept_percent": value} if known else {"kept_percent": None}),
        arguments=arguments,
    )


def _throughput(curve: ScaleCurve) -> Curves:
    """Tokens/s per GPU without and with the best controls."""
    controlled = tuple(point.controlled_tokens_per_s_per_gpu for point in curve.points)
    return Curves(
        name="throughput",
        caption="Tokens/s per GPU",
        places=tuple(point.gpus for point in curve.points),
        place_title="GPUs",
        value_title="tokens/s per GPU",
        curves=(
            Curve("no controls", tuple(point.tokens_per_s_per_gpu for point in curve.points)),
            Curve("best controls", controlled),
        ),
        origin="predicted",
    )


def _gains(curve: ScaleCurve) -> Curves:
    """What each set of controls gains over GPUs."""
    sets = dict.fromkeys(trial.controls for point in curve.points for trial in point.trials if trial.controls)
    gains = [{trial.controls: gain_percent(trial.gain) for trial in point.trials} for point in curve.points]
    return Curves(
        name="gains",
        caption="Gain of each control in % of the step",
        places=tuple(point.gpus for point in curve.points),
        place_title="GPUs",
        value_title="gain %",
        curves=tuple(Curve(_controls_text(controls), tuple(row.get(controls) for row in gains)) for controls in sets),
        origin="predicted",
        digits=2,
    )


def _compressed_curve(curve: ScaleCurve) -> tuple[Curves, ...]:
    names = dict.fromkeys(item.compression for point in curve.points for item in point.compressed)
    if not names:
        return ()
    rows = [{item.compression: gain_percent(item.gain) for item in point.compressed} for point in curve.points]
    plain = tuple(gain_percent(point.best.gain) if point.best else None for point in curve.points)
    return (
        Curves(
            name="gains-compressed",
            caption="Gain of the best controls in % of the step, by compression of gradients",
            places=tuple(point.gpus for point in curve.points),
            place_title="GPUs",
            value_title="gain %",
            curves=(
                Curve("no compression", plain),
                *(Curve(name, tuple(row.get(name) for row in rows)) for name in names),
            ),
            origin="predicted",
            digits=2,
        ),
    )


def _points(curve: ScaleCurve) -> Table:
    return Table(
        name="points",
        caption="Every number of GPUs, without controls",
        origin="predicted",
        columns=(
            Column("GPUs", "number"),
            Column("layout", "wide"),
            Column("step s", "number"),
            Column("MFU %", "number"),
            Column("exposed %", "number"),
            Column("bubble %", "number", brief=False),
            Column("contention %", "number", brief=False),
            Column("best controls", brief=False),
        ),
        rows=tuple(
            (
                number(point.gpus, 0),
                Cell(point.reason or "" if point.layout is None else _spaced(point.layout)),
                number(point.step_ns, scale=1e9),
                number(share_percent(point.mfu), 1),
                number(share_percent(point.exposed_share), 1),
                number(share_percent(point.bubble_share), 1),
                number(share_percent(point.contention_share), 1),
                Cell(_controls_text(point.best.controls) if point.best else "–"),
            )
            for point in curve.points
        ),
        brief_rows=64,
    )


# --- a shard of a curve -----------------------------------------------------------------------------


def _shard_report(part: CurveShard, arguments: str) -> Report:
    return Report(
        result="scale-shard",
        over="makeway scale --shard",
        headline=Headline(
            sentence=f"Shard {part.shard} holds {count(len(part.gpus), 'number')} of GPUs of {part.all_gpus}",
            origin="predicted",
        ),
        sections=(
            Section(
                name="next",
                title="Next",
                blocks=(Paragraph(text="When all shards are written, `makeway merge FILES` gives the curve."),),
            ),
            provenance(arguments, numbers=NUMBERS),
        ),
        data={"shard": str(part.shard), "gpus": list(part.gpus), "all_gpus": part.all_gpus},
        arguments=arguments,
    )
