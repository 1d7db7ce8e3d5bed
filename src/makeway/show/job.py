"""A job of many ranks as a report: one screen whatever the number of ranks; JSON has a row for each."""

from __future__ import annotations

from typing import Any

from makeway.decide.analysis.many.analyze_job import ShardFile
from makeway.decide.analysis.many.job import JobAnalysis, JobRank
from makeway.decide.analysis.wording import Wording
from makeway.show.analysis_evidence import communication_data, communication_sections
from makeway.show.analysis_ledger import gate_data, headline, ledger_data, ledger_sections
from makeway.show.blocks import Cell, Column, Facts, Headline, Paragraph, Report, Section, Table
from makeway.show.data import milliseconds, record, rounded
from makeway.show.numbers import count, number, percent, time_text
from makeway.show.provenance import provenance
from makeway.values.errors import printable

_MS = 1e6
MOST_RANKS = 64  # rows on a page; JSON has them all
MOST_COMMUNICATORS = 64
MOST_LATE = 16


def report(result: JobAnalysis | ShardFile, *, arguments: str = "") -> Report:
    """What a job, or one shard of its summaries, shows a reader."""
    return _shard(result, arguments) if isinstance(result, ShardFile) else _job(result, arguments)


def _job(job: JobAnalysis, arguments: str) -> Report:
    worst = worst_ranks(job)
    return Report(
        result="job",
        over=f"makeway analyze, {count(len(job.ranks), 'rank')}",
        headline=headline(job),
        lead=(_lead(job),),
        sections=(
            *ledger_sections(job),
            Section(name="late", title="Ranks that others wait for", blocks=(_late_table(job),)),
            Section(name="worst", title="Ranks with most exposed communication", blocks=(_rank_table(job, worst),)),
            Section(name="spread", title="Spread over the ranks", blocks=(_spread_table(job),)),
            Section(name="communicators", title="Communicators", blocks=(_communicator_table(job),)),
            Section(name="causes", title="Causes", blocks=(_cause_table(job),), detail=True),
            Section(name="kernels", title=job.wording.kernels.capitalize(), blocks=(_kernel_table(job),), detail=True),
            *communication_sections(job),
            provenance(
                arguments,
                numbers=job.origin,
                facts=(
                    (
                        job.wording.device,
                        ", ".join(sorted({rank.device for rank in job.ranks if rank.device})) or "not recorded",
                    ),
                    ("library", ", ".join(job.libraries) or "not recorded"),
                    ("spans", f"{job.spans:,}"),
                ),
                notes=(*job.notes, "What each number means: makeway's docs/numbers.md."),
            ),
        ),
        data=_data(job),
        notes=job.notes,
        arguments=arguments,
    )


def worst_ranks(job: JobAnalysis) -> list[JobRank]:
    """The ranks with most exposed communication, the most first."""
    return sorted(job.ranks, key=lambda rank: (-rank.figures.exposed_ns, rank.rank))[:MOST_RANKS]


def _lead(job: JobAnalysis) -> Paragraph:
    sentences = [f"This is the most of {len(job.ranks):,} ranks; the median is {time_text(job.spreads[0].median_ns)}."]
    if job.straggler_rank is not None and job.straggler_share is not None:
        sentences.append(
            f"Rank {job.straggler_rank} arrives last: {percent(100 * job.straggler_share)} of all waiting inside "
            "collectives is for it."
        )
    elif job.late_ranks:
        most = ", ".join(f"{rank} ({percent(100 * share)})" for rank, share in job.late_ranks[:3])
        sentences.append(f"No rank stands out; most waiting is for ranks {most}.")
    if job.matched and job.mean_waiting_ns is not None:
        sentences.append(
            f"{job.matched:,} collectives in {count(len(job.communicators), 'communicator')} match: "
            f"{time_text(job.transfer_ns)} of transfer and {time_text(job.mean_waiting_ns)} of waiting per rank."
        )
    return Paragraph(text=" ".join(sentences), origin=job.origin)


def _share(part_ns: float, whole_ns: float) -> float | None:
    return rounded(100.0 * part_ns / whole_ns) if whole_ns else None


def _late_table(job: JobAnalysis) -> Table:
    caused = {rank.rank: rank for rank in job.ranks}
    return Table(
        name="late-ranks",
        caption="Waiting inside collectives, by the rank that arrived last.",
        origin=job.origin,
        columns=(
            Column("rank", "number"),
            Column("others wait ms", "number", None, "all ranks together"),
            Column("% of waiting", "number"),
            Column("its compute ms", "number"),
            Column("its idle ms", "number"),
            Column("its file", "name", brief=False),
        ),
        rows=tuple(
            (
                Cell(str(rank), rank),
                number(caused[rank].caused_ns, scale=_MS),
                number(100 * share, 1),
                number(caused[rank].figures.compute_ns, scale=_MS),
                number(caused[rank].figures.idle_ns, scale=_MS),
                Cell(caused[rank].source),
            )
            for rank, share in job.late_ranks[:MOST_LATE]
        ),
        nothing="No collective is matched across ranks, or nobody waits.",
        brief_rows=5,
    )


def _rank_table(job: JobAnalysis, ranks: list[JobRank]) -> Table:
    return Table(
        name="worst-ranks",
        caption=f"The first {len(ranks)} of {len(job.ranks):,} ranks; JSON has all.",
        origin=job.origin,
        columns=(
            Column("rank", "number"),
            Column("exposed ms", "number"),
            Column("exposed %", "number", None, "of the recorded time", brief=False),
            Column("waiting ms", "number", None, "inside collectives, for the last rank"),
            Column("exposed waiting ms", "number", None, "of it: without compute beside it", brief=False),
            Column("comm ms", "number"),
            Column("compute ms", "number"),
            Column("idle ms", "number"),
            Column("span ms", "number"),
        ),
        rows=tuple(
            (
                Cell(str(rank.rank), rank.rank),
                number(rank.figures.exposed_ns, scale=_MS),
                number(rank.figures.exposed_percent, 1),
                number(rank.waiting_ns, scale=_MS),
                number(rank.exposed_waiting_ns, scale=_MS),
                number(rank.figures.comm_ns, scale=_MS),
                number(rank.figures.compute_ns, scale=_MS),
                number(rank.figures.idle_ns, scale=_MS),
                number(rank.figures.span_ns, scale=_MS),
            )
            for rank in ranks
        ),
        filtered=True,
        brief_rows=5,
    )


def _spread_table(job: JobAnalysis) -> Table:
    return Table(
        name="spreads",
        caption="Quantiles over the ranks, in milliseconds.",
        origin=job.origin,
        columns=(
            Column("figure"),
            Column("least", "number"),
            Column("25 %", "number", brief=False),
            Column("median", "number"),
            Column("75 %", "number", brief=False),
            Column("99 %", "number"),
            Column("most", "number"),
            Column("on rank", "number"),
        ),
        rows=tuple(
            (
                Cell(item.figure),
                number(item.least_ns, scale=_MS),
                number(item.lower_quartile_ns, scale=_MS),
                number(item.median_ns, scale=_MS),
                number(item.upper_quartile_ns, scale=_MS),
                number(item.percentile_99_ns, scale=_MS),
                number(item.most_ns, scale=_MS),
                Cell(str(item.most_rank), item.most_rank),
            )
            for item in job.spreads
        ),
    )


def _communicator_table(job: JobAnalysis) -> Table:
    return Table(
        name="communicator-table",
        caption="Groups of ranks, those with most waiting per rank first.",
        origin=job.origin,
        columns=(
            Column("group", "name"),
            Column("ranks", "number"),
            Column("from", "number", None, "lowest rank"),
            Column("to", "number", None, "highest rank"),
            Column("collectives", "number"),
            Column("transfer ms", "number"),
            Column("waiting ms", "number", None, "per rank"),
            Column("late rank", "number", None, "most of the waiting is for it"),
        ),
        rows=tuple(
            (
                Cell(printable(item.name)),
                number(item.size, 0),
                Cell(str(item.lowest_rank), item.lowest_rank),
                Cell(str(item.highest_rank), item.highest_rank),
                number(item.collectives, 0),
                number(item.transfer_ns, scale=_MS),
                number(item.mean_waiting_ns, scale=_MS),
                number(item.late_rank, 0),
            )
            for item in job.communicators[:MOST_COMMUNICATORS]
        ),
        nothing="No collective is matched across ranks.",
        filtered=True,
        brief_rows=4,
    )


def _cause_table(job: JobAnalysis) -> Table:
    return Table(
        name="cause-times",
        caption="Why communication is late, exposed or slowed; the analysis of one trace has the evidence.",
        origin=job.origin,
        columns=(
            Column("cause"),
            Column("time is"),
            Column("all ranks ms", "number", None, "what it costs"),
            Column("delay ms", "number", None, "late: from ready to start; most of it costs nothing"),
            Column("ranks", "number"),
            Column("worst rank", "number"),
            Column("its ms", "number"),
        ),
        rows=tuple(
            (
                Cell(job.wording.cause(cause.kind)),
                Cell(cause.of),
                number(cause.time_ns, scale=_MS),
                number(cause.delay_ns, scale=_MS),
                number(cause.ranks, 0),
                Cell(str(cause.worst_rank), cause.worst_rank),
                number(cause.worst_ns, scale=_MS),
            )
            for cause in job.causes
        ),
        nothing="Nothing is late, exposed or slowed.",
    )


def _kernel_table(job: JobAnalysis) -> Table:
    return Table(
        name="kernel-classes",
        caption=f"{job.wording.kernels.capitalize()} by name, all ranks together.",
        origin=job.origin,
        columns=(Column(job.wording.kernel, "name"), Column("kind"), Column("times", "number"), Column("ms", "number")),
        rows=tuple(
            (Cell(item.name), Cell(item.kind), number(item.count, 0), number(item.time_ns, scale=_MS))
            for item in job.kernels
        ),
    )


# --- data ------------------------------------------------------------------------------------------


def _data(job: JobAnalysis) -> dict[str, Any]:
    """The keys of `makeway analyze --on ENGINE --json` and `makeway merge --json` (docs/numbers.md)."""
    caused = {rank.rank: rank.caused_ns for rank in job.ranks}
    data: dict[str, Any] = {
        "ranks": [_rank_data(rank, job.wording) for rank in job.ranks],
        "collectives": {
            "matched": job.matched,
            "unmatched": job.unmatched,
            "transfer_ms": milliseconds(job.transfer_ns) if job.matched else None,
            "waiting_ms": milliseconds(job.mean_waiting_ns),
            "straggler_rank": job.straggler_rank,
            "straggler_share": job.straggler_share,
        },
        "late_ranks": [
            {"rank": rank, "share": share, "percent": 100 * share, "caused_ms": milliseconds(caused[rank])}
            for rank, share in job.late_ranks[:MOST_LATE]
        ],
        "ledger": ledger_data(job.ledger, job.wording),
        "communication": communication_data(job),
        "spans": job.spans,
        "spreads": [record(item) for item in job.spreads],
        "communicators": [record(item) for item in job.communicators],
        "causes": [record(cause) for cause in job.causes],
        "kernels": [record(item) for item in job.kernels],
    }
    return data | gate_data(job.gate)


def _rank_data(rank: JobRank, wording: Wording) -> dict[str, Any]:
    return {
        **record(rank, without=("figures", "ledger")),
        **record(rank.figures),
        "ledger": ledger_data(rank.ledger, wording),
    }


# --- one shard -------------------------------------------------------------------------------------


def _shard(shard: ShardFile, arguments: str) -> Report:
    percent_of = _share(shard.summary_bytes, shard.trace_bytes)
    return Report(
        result="shard",
        over="makeway analyze, one shard",
        headline=Headline(
            sentence=f"Shard {shard.shard} is summarised: {shard.traces:,} of {shard.all_traces:,} traces in "
            f"{printable(shard.path)}",
            origin="imported",
        ),
        sections=(
            Section(
                name="next",
                title="Next",
                blocks=(
                    Facts(
                        pairs=(
                            ("summaries", f"{shard.summary_bytes:,} bytes, {percent_of or 0:.2f} % of the traces"),
                            ("when all shards are there", "makeway merge FILE..."),
                        )
                    ),
                ),
            ),
        ),
        data={
            "shard": str(shard.shard),
            "out": str(shard.path),
            "traces": shard.traces,
            "all_traces": shard.all_traces,
            "trace_bytes": shard.trace_bytes,
            "summary_bytes": shard.summary_bytes,
            "summary_percent": percent_of,
        },
        notes=shard.notes,
        arguments=arguments,
    )
