"""A training step at scale as a report: the ledger, stages, memory, ranked layouts, controls, compression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from makeway.decide.scale.outcome import ControlTrial, LayoutSearch, Scaled
from makeway.model.compression import MOST_RANKS, Payoff
from makeway.show.blocks import (
    GIBIBYTES,
    Bar,
    Bars,
    Block,
    Cell,
    Column,
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
from makeway.show.numbers import number, percent, time_text
from makeway.show.provenance import provenance
from makeway.show.scale_data import gain_percent, scaled_data, seconds
from makeway.show.scale_names import LINE_NAMES
from makeway.show.tracks import rank_tracks
from makeway.values.control import Control, control_word
from makeway.values.layout import Layout
from makeway.values.layout_word import compression_word, layout_word
from makeway.values.step import StageMemory, StepLine, StepLineKind
from makeway.values.units import GIB

COLOURS: dict[StepLineKind, str] = {  # no two kinds look alike
    "compute": "compute",
    "recompute": "copy",
    "contention": "contention",
    "exposed-tp": "exposed",
    "exposed-cp": "no-room",
    "exposed-ep": "serialised",
    "exposed-dp": "comm",
    "exposed-pp": "dependency",
    "bubble": "idle",
    "host": "launch-bound",
    "optimizer": "memory",
    "stragglers": "straggler",
    "compression": "overlapped",
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


def report(result: Scaled, *, arguments: str = "") -> Report:
    """One step: its ledger, stages, memory, the layouts of a search, controls and compression."""
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
            *_long_run(result),
            _conditions(result),
            provenance(arguments, numbers=NUMBERS),
        ),
        data=scaled_data(result),
        notes=result.notes,
        arguments=arguments,
    )


def _lead(result: Scaled) -> tuple[Paragraph, ...]:
    step = result.step
    lines = [f"Layout: {spaced(step.layout)}."]
    if step.layout.controls and result.gain is not None:
        taken = f"{percent(100 * abs(result.gain), '.1f')} {'less' if result.gain >= 0 else 'more'} than without"
        lines.append(f"With {controls_text(step.layout.controls)}: {taken}.")
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
        tracks = rank_tracks([step.timeline], ())
        stages = tuple(replace(track, label=f"stage {track.rank.rank}") for track in tracks)
        caption = "What runs when on one GPU of each pipeline stage; gaps are bubbles."
        blocks += [Paragraph(text=caption, origin="predicted"), Lines(name="pipeline", ranks=stages)]
    return (Section(name="pipeline-stages", title="Pipeline", blocks=tuple(blocks), detail=True),) if blocks else ()


def _part(line: StepLine) -> Part:
    return Part(LINE_NAMES[line.kind], line.ns, COLOURS[line.kind])


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
        "in full), without controls; * no other is both faster and smaller",
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
                Cell(spaced(item.layout)),
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
            (number(item.layouts, 0), Cell(item.reason), Cell(spaced(item.example))) for item in search.turned_down
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
            Column("why none", "wide"),
        ),
        rows=tuple(
            (
                Cell(controls_text(trial.controls)),
                number(trial.step_ns, scale=1e6),
                number(gain_percent(trial.gain), 2),
                Cell(trial.reason),
            )
            for trial in trials
        ),
    )
    return (Section(name="controls", title="Controls", blocks=(table,)),)


def spaced(layout: Layout) -> str:
    """A layout's word with places to break it; --layout takes it in quotes."""
    return layout_word(layout).replace(",", ", ")


def controls_text(controls: Sequence[Control]) -> str:
    """Controls as they are written together."""
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


def _long_run(result: Scaled) -> tuple[Section, ...]:
    """What failures and checkpoints leave of the rate."""
    run = result.goodput
    if run is None:
        return ()
    kept = number(result.useful_tokens_per_s_per_gpu, 1)
    shares = (
        ("steps that count", run.useful, kept),
        ("checkpoints", run.checkpoints, Cell("")),
        ("lost work and restarts", run.lost, Cell("")),
    )
    table = Table(
        name="goodput",
        caption=f"A long run: a failure every {run.between_failures_s / 3600:,.1f} h, a checkpoint after every "
        f"{run.interval_s / 60:,.1f} min of work (the best interval)",
        origin="predicted",
        columns=(Column("share of the time", "name"), Column(_PERCENT, "number"), Column("tokens/s/GPU", "number")),
        rows=tuple((Cell(name), number(round(100 * share, 4), 2), rate) for name, share, rate in shares),
    )
    said = f"{run.reliability.source}: {run.reliability.gpu_hours_per_failure:,.0f} GPU hours per failure, "
    said += f"{run.reliability.checkpoint_s:g} s per checkpoint, {run.reliability.restart_s:g} s per restart."
    blocks = (table, Paragraph(text=said[0].upper() + said[1:]))
    return (Section(name="long-run", title="A long run", blocks=blocks, detail=True),)


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
    blocks: tuple[Block, ...] = (facts, assumptions(step.assumed))
    return Section(name="conditions", title="Conditions", blocks=blocks, detail=True)


def assumptions(assumed: Sequence[str]) -> Notes:
    """What a prediction assumes."""
    return Notes(sentences=tuple(f"assumed: {text}" for text in assumed))
