"""What rank 0 sends back, as plain data, and the bench that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from makeway.act.measure.outcome import Applied, Bench, VariantResult
from makeway.act.measure.variants import COMM, COMPUTE
from makeway.values.collective import Collective
from makeway.values.control import parse_control
from makeway.values.timeline import Rank, Span, Step, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRecord:
    """All rounds of one setting; controls as words of the command line."""

    name: str
    times_ns: list[float]
    controls: list[str]
    threads: int | None  # None on a GPU
    overlap_rate: float | None
    wrong: str | None
    applied: list[tuple[str, str, str]]  # control, status, detail


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """A span of the last round of a setting."""

    setting: str
    rank: int
    name: str
    kind: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All that the ranks found."""

    words: str
    ranks: int
    settings: list[SettingRecord]
    exchange: tuple[str, int] | None
    exchanges: int
    choice: str | None
    spans: list[SpanRecord]
    notes: list[str]


def plain(record: Record) -> Any:
    return msgspec.to_builtins(record)


def record_from(data: Any) -> Record:
    return msgspec.convert(data, Record)


def bench(record: Record, *, workload: str, link: str, on: str = "cpu") -> Bench:
    """The bench that a record describes."""
    by_name = {one.name: one for one in record.settings}
    exchange = record.exchange
    return Bench(
        on=on,
        ranks=record.ranks,
        workload=workload,
        origin="measured",
        variants=tuple(_variant(one) for name, one in by_name.items() if name not in (COMPUTE, COMM)),
        compute_ns=tuple(by_name[COMPUTE].times_ns),
        comm_ns=tuple(by_name[COMM].times_ns),
        exchange=exchange and Collective(kind=exchange[0], size_bytes=exchange[1], ranks=record.ranks),  # type: ignore[arg-type]
        exchanges=record.exchanges,
        link=link,
        choice=record.choice,
        timeline=timeline(record.spans, record.ranks),
        notes=(record.words, *record.notes),
    )


def _variant(one: SettingRecord) -> VariantResult:
    return VariantResult(
        name=one.name,
        times_ns=tuple(one.times_ns),
        controls=tuple(parse_control(word) for word in one.controls),
        threads=one.threads,
        overlap_rate=one.overlap_rate,
        wrong=one.wrong,
        applied=tuple(
            Applied(control=parse_control(word), status=status, detail=detail) for word, status, detail in one.applied
        ),
    )


def timeline(spans: list[SpanRecord], ranks: int) -> Timeline:
    """The last round of every setting as it was, one after the other; a step of the timeline is one setting."""
    rounds: dict[tuple[str, int], list[SpanRecord]] = {}
    for span in spans:
        rounds.setdefault((span.setting, span.rank), []).append(span)
    numbers: Mapping[str, int] = {name: number for number, name in enumerate(dict.fromkeys(key[0] for key in rounds))}
    return Timeline(
        spans=tuple(
            Span(
                name=f"{span.setting}: {span.name}",
                kind=span.kind,  # type: ignore[arg-type]
                stream="compute" if span.kind == "compute" else "comm",
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                rank=span.rank,
            )
            for span in spans
        ),
        origin="measured",
        ranks=tuple(Rank(rank=rank, world=ranks) for rank in range(ranks)),
        steps=tuple(
            Step(
                number=numbers[setting],
                rank=rank,
                start_ns=min(span.start_ns for span in found),
                end_ns=max(span.end_ns for span in found),
            )
            for (setting, rank), found in rounds.items()
        ),
    )
