"""What counts as communication in a report: the rules that matched, and the candidates that none claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from makeway.decide.analysis.analyze import Analysis
from makeway.show.blocks import Cell, Column, Section, Table
from makeway.show.data import milliseconds
from makeway.show.numbers import number
from makeway.values.timeline import CommRule

if TYPE_CHECKING:
    from makeway.decide.analysis.many.job import JobAnalysis

_MS = 1e6


def rule_text(rule: CommRule | None) -> str:
    """How a rule is shown: "name: deepep"."""
    if rule is None:
        return "not recorded"
    return rule.by if rule.library is None else f"{rule.by}: {rule.library}"


def communication_sections(analysis: Analysis | JobAnalysis) -> tuple[Section, ...]:
    """The rules that matched, and the candidates; nothing where there is neither."""
    evidence = analysis.communication
    if not evidence.matched and not evidence.unclaimed:
        return ()
    return (
        Section(
            name="communication",
            title="What counts as communication",
            blocks=(_matched_table(analysis), *((_candidate_table(analysis),) if evidence.unclaimed else ())),
            folded=not evidence.unclaimed,
        ),
    )


def _matched_table(analysis: Analysis | JobAnalysis) -> Table:
    return Table(
        name="comm-rules",
        caption=f"{analysis.wording.counted} that count as communication, by the rule that says so.",
        origin=analysis.origin,
        columns=(
            Column("rule"),
            Column(analysis.wording.kernels, "number"),
            Column("ms", "number", None, f"the sum over {analysis.wording.kernels} and ranks"),
            Column("names", "wide"),
        ),
        rows=tuple(
            (
                Cell(rule_text(item.rule)),
                number(item.kernels, 0),
                number(item.time_ns, scale=_MS),
                Cell(", ".join(item.names)),
            )
            for item in analysis.communication.matched
        ),
        nothing="No kernel or copy counts as communication.",
        brief_rows=4,
    )


def _candidate_table(analysis: Analysis | JobAnalysis) -> Table:
    wording = analysis.wording
    return Table(
        name="comm-candidates",
        caption=f"Compute {wording.kernels} whose names speak of communication; --comm-names counts them as such.",
        origin=analysis.origin,
        columns=(
            Column(wording.kernel, "name"),
            Column(wording.kernels, "number"),
            Column("ms", "number", None, f"the sum over {wording.kernels} and ranks"),
            Column("likely"),
        ),
        rows=tuple(
            (
                Cell(item.name),
                number(item.kernels, 0),
                number(item.time_ns, scale=_MS),
                Cell("yes" if item.likely else "perhaps"),
            )
            for item in analysis.communication.unclaimed
        ),
        brief_rows=3,
    )


def communication_data(analysis: Analysis | JobAnalysis) -> dict[str, Any]:
    """The key `communication` of `makeway analyze --json`."""
    evidence = analysis.communication
    return {
        "matched": [
            {
                "rule": item.rule.by if item.rule else None,
                "library": item.rule.library if item.rule else None,
                "names": list(item.names),
                "kernels": item.kernels,
                "ms": milliseconds(item.time_ns),
            }
            for item in evidence.matched
        ],
        "unclaimed": [
            {"name": item.name, "kernels": item.kernels, "ms": milliseconds(item.time_ns), "likely": item.likely}
            for item in evidence.unclaimed
        ],
        "world": evidence.world,
        "suggestion": evidence.suggestion,
    }
