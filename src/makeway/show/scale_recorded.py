"""A recorded step on more GPUs as a report."""

from __future__ import annotations

from makeway.decide.scale.from_trace import ScaledRecording
from makeway.show.blocks import Cell, Column, Headline, Notes, Paragraph, Report, Section, Table
from makeway.show.data import record, rounded
from makeway.show.numbers import number, percent, time_text
from makeway.show.provenance import provenance
from makeway.show.scale import controls_section
from makeway.show.scale_data import seconds, trial_data


def report(result: ScaledRecording, *, arguments: str = "") -> Report:
    """The step, what became of its exchanges, and what controls gain there."""
    longer = 100 * (result.step_ns / result.recorded_ns - 1)
    exchanges = Table(
        name="exchanges",
        caption="Exchanges in the replayed part of the step",
        columns=(
            Column("kind"),
            Column("bytes", "number"),
            Column("count", "number"),
            Column("ranks recorded", "number"),
            Column("ranks", "number"),
            Column("recorded ms", "number", origin="imported"),
            Column("ms", "number", origin="predicted"),
        ),
        rows=tuple(
            (
                Cell(item.kind),
                number(item.size_bytes, 0),
                number(item.count, 0),
                number(item.recorded_ranks, 0),
                number(item.ranks, 0),
                number(item.recorded_ns, scale=1e6),
                number(item.scaled_ns, scale=1e6),
            )
            for item in result.exchanges
        ),
        origin="predicted",
    )
    return Report(
        result="scale-recording",
        over=f"makeway scale --from-trace, {result.device}",
        headline=Headline(
            sentence=f"The recorded step takes {time_text(result.step_ns)} on {result.gpus:,} {result.device} "
            f"({result.cluster}), {percent(longer, '+.1f')} against {time_text(result.recorded_ns)} on "
            f"{result.recorded_gpus:,}",
            origin="predicted",
            value=seconds(result.step_ns),
            unit="s",
        ),
        lead=(
            Paragraph(
                text="Kernels take their recorded times. The replay of the recorded step is off by "
                f"{percent(100 * result.replay_error, '+.1f')}."
            ),
        ),
        sections=(
            Section(name="communication", title="Communication", blocks=(exchanges,)),
            *controls_section(result.trials),
            Section(
                name="conditions",
                title="Conditions",
                blocks=(Notes(sentences=tuple(f"assumed: {text}" for text in result.assumed)),),
                detail=True,
            ),
            provenance(arguments, numbers="recorded kernels, predicted communication"),
        ),
        data={
            "origin": "predicted",
            "device": result.device,
            "cluster": result.cluster,
            "recorded_from": result.path,
            "recorded_gpus": result.recorded_gpus,
            "gpus": result.gpus,
            "recorded_step_s": seconds(result.recorded_ns),
            "step_s": seconds(result.step_ns),
            "replay_error": rounded(result.replay_error),
            "exchanges": [record(item) for item in result.exchanges],
            "trials": [trial_data(trial) for trial in result.trials],
            "assumed": list(result.assumed),
        },
        notes=result.notes,
        arguments=arguments,
    )
