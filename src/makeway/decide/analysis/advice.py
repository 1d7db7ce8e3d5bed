"""What to change, derived from the ledger: no advice promises more than the line that it would shorten holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from makeway.decide.analysis.advice_texts import Texts, texts_for
from makeway.decide.analysis.findings import Advice, Cause, Matching, RankFindings
from makeway.decide.analysis.ledger import LedgerLine, LineKind
from makeway.decide.analysis.ledger_entries import line_of
from makeway.decide.analysis.names import short_name
from makeway.decide.analysis.streams import milliseconds
from makeway.decide.analysis.wording import Wording, wording_for

# Advice about less than this part of a rank's step is noise.
WORTH = 0.005


def advice(ranks: Sequence[RankFindings], causes: Iterable[Cause], matching: Matching) -> tuple[Advice, ...]:
    """What to change, the most time first; time without a known cause asks for a better recording."""
    texts = texts_for(ranks)
    wording = wording_for(rank.device for rank in ranks)
    items = [*_by_causes(ranks, causes, matching, texts, wording), *_by_lines(ranks, texts, wording)]
    return tuple(sorted(items, key=lambda item: (-item.at_most_ns, item.text)))


@dataclass(slots=True)
class _Item:
    """One piece of advice while its causes are added up."""

    longest: Cause
    line: LineKind
    by_rank: Counter[int] = field(default_factory=Counter)


def _by_causes(
    ranks: Sequence[RankFindings], causes: Iterable[Cause], matching: Matching, texts: Texts, wording: Wording
) -> Iterable[Advice]:
    """Advice on exposed communication and on compute that communication slows down."""
    items: dict[tuple[str, str], _Item] = {}
    for cause in causes:
        line, text = line_of(cause), _text(cause, texts)
        if line is None or text is None or cause.cost_ns <= 0:
            continue
        name = wording.line_of(line, cause.waits_for if line == "waiting" else None)
        item = items.setdefault((text, name), _Item(cause, line))
        item.by_rank[cause.rank] += cause.cost_ns
        item.longest = max(item.longest, cause, key=lambda other: other.cost_ns)
    for (text, name), item in items.items():
        at_most = _at_most(ranks, name, item.by_rank, wording)
        if at_most:
            yield Advice(
                text=text,
                why=_why(item.longest, matching, ranks, wording),
                at_most_ns=at_most,
                line=name,
                cause=item.longest.kind,
                controls=texts.controls.get((item.longest.kind, item.longest.of), ()),
            )


def _text(cause: Cause, texts: Texts) -> str | None:
    if cause.kind == "undetermined":
        return f"record more: {cause.record_next}"
    text = texts.by_cause.get((cause.kind, cause.of))
    return None if text is None else text.format(rank=cause.waits_for)


def _at_most(ranks: Sequence[RankFindings], name: str, by_rank: Counter[int], wording: Wording) -> int:
    """The most that one rank can gain, never more than its line; 0 if it is noise on every rank."""
    most = 0
    for rank in ranks:
        held = sum(line.ns for line in rank.ledger.lines if wording.line(line) == name)
        time_ns = min(by_rank[rank.rank], held)
        if time_ns >= WORTH * rank.ledger.total_ns:
            most = max(most, time_ns)
    return most


def _why(cause: Cause, matching: Matching, ranks: Sequence[RankFindings], wording: Wording) -> str:
    if cause.kind == "straggler":
        share = dict(matching.late_ranks).get(cause.waits_for if cause.waits_for is not None else -1, 0.0)
        own = next((rank.ledger for rank in ranks if rank.rank == cause.waits_for), None)
        lines = [line for line in own.lines if line.kind not in ("compute", "waiting")] if own else []
        longest = max(lines, key=lambda line: line.ns, default=None)
        beside = f"{milliseconds(longest.ns)} {wording.line(longest)}" if longest else ""
        itself = f"; most of its own time beside compute: {beside}" if longest else ""
        return f"{share:.0%} of all waiting inside collectives is for this rank{itself}"
    if cause.kind == "no-room" and cause.kernel:
        return f"{short_name(cause.kernel)} leaves a block of the collective short of {cause.short_by or 'room'}"
    if cause.kind == "undetermined":
        return f"this trace does not show the cause of this time: {cause.evidence}"
    return cause.evidence


def _by_lines(ranks: Sequence[RankFindings], texts: Texts, wording: Wording) -> Iterable[Advice]:
    """Advice on copies and on idle time."""
    longest: dict[LineKind, LedgerLine] = {}
    for rank in ranks:
        for line in rank.ledger.lines:
            if line.kind in texts.line_evidence and line.ns >= WORTH * rank.ledger.total_ns:
                longest[line.kind] = max(longest.get(line.kind, line), line, key=lambda item: item.ns)
    for kind, line in longest.items():
        top = ", ".join(dict.fromkeys(short_name(kernel) for kernel, _ in line.top)) or "nothing"
        yield Advice(
            text=texts.by_line.get(kind, texts.record_idle),
            why=texts.line_evidence[kind].format(top=top),
            at_most_ns=line.ns,
            line=wording.line(line),
            cause="undetermined" if kind == "other" else kind,
        )
