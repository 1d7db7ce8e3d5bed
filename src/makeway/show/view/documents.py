"""A result that some command wrote with --json, or a log of JSON lines, as a report: tables of what is in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from makeway.show.blocks import Block, Cell, Column, Facts, Headline, Lines, Notes, Report, Section, Table
from makeway.show.tracks import compared_tracks
from makeway.values.errors import InputError, printable
from makeway.values.timeline import Origin, Span, SpanKind, Timeline

MOST_BYTES = 64 << 20
_SCHEMA = "makeway/"
_MOST_ROWS, _MOST_COLUMNS, _MOST_CHARACTERS = 1_000, 14, 400
_MOST_SPANS = 100_000
_MOST_TABLES = 40
_DEEPEST = 3
_ABOVE = ("schema", "makeway", "verdict", "notes")


def load_document(path: Path) -> dict[str, Any]:
    """The JSON document of a makeway command, or the lines of `run --tune --log` under one key."""
    name = printable(path.name)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{name} is larger than {MOST_BYTES >> 20} MiB; no result of makeway is")
        content = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            lines = [json.loads(line) for line in content.splitlines() if line.strip()]
            document: Any = {
                "schema": f"{_SCHEMA}run-tuning-log/1",
                "verdict": f"{len(lines)} decisions",
                "tried": lines,
            }
        else:
            document = json.loads(content)
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not JSON: {error or 'it nests too deeply'}") from None
    if not is_document(document):
        raise InputError(f"{name} is JSON, but not a result of makeway: it has no schema that begins with {_SCHEMA}")
    assert isinstance(document, dict)
    return document


def is_document(value: object) -> bool:
    """Whether this is what a command of makeway prints with --json."""
    return isinstance(value, dict) and isinstance(value.get("schema"), str) and value["schema"].startswith(_SCHEMA)


def document_report(document: Mapping[str, Any], name: str) -> Report:
    """Every figure of a document: facts, tables, and its timeline where it has spans."""
    blocks = list(_blocks(document, "", 0))
    kind = str(document["schema"]).removeprefix(_SCHEMA).partition("/")[0]
    notes = tuple(str(note)[:_MOST_CHARACTERS] for note in _list(document.get("notes")))
    facts = [block for block in blocks if isinstance(block, Facts)]
    tables = [block for block in blocks if isinstance(block, Table)]
    left = f"{len(tables) - _MOST_TABLES} more tables are in the file." if len(tables) > _MOST_TABLES else ""
    origin = str(document.get("origin") or "from a file")
    return Report(
        result="document",
        over=f"{kind} from {name}, written by makeway {document.get('makeway', '?')}",
        headline=Headline(sentence=str(document.get("verdict") or kind)[:_MOST_CHARACTERS], origin=origin[:40]),
        sections=(
            *((Section(name="facts", title="Figures", blocks=tuple(facts[:1])),) if facts else ()),
            *_timeline(document),
            *(
                Section(name=f"part-{number}", title=table.caption, blocks=(table,))
                for number, table in enumerate(tables[:_MOST_TABLES])
            ),
            Section(name="about", title="About", blocks=(Notes(sentences=tuple(filter(None, (*notes, left)))),)),
        ),
        data=dict(document),
    )


def _blocks(value: Mapping[str, Any], path: str, depth: int) -> Iterable[Block]:
    """The facts of an object, then a table for each list in it, and the same for the objects in it."""
    shown = {key: item for key, item in value.items() if depth or key not in _ABOVE}
    pairs = tuple((f"{path}{key}", _text(item)) for key, item in shown.items() if not _nested(item))
    if pairs:
        yield Facts(pairs=pairs)
    for key, item in shown.items():
        if isinstance(item, dict) and depth < _DEEPEST:
            if item and all(not _nested(inner) for inner in item.values()):
                yield _table(f"{path}{key}", [{"key": name, "value": inner} for name, inner in item.items()])
            else:
                yield from (block for block in _blocks(item, f"{path}{key}.", depth + 1) if isinstance(block, Table))
        elif isinstance(item, list) and item and all(isinstance(row, dict) for row in item):
            yield _table(f"{path}{key}", item)


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    keys = list(dict.fromkeys(key for row in rows[:_MOST_ROWS] for key in row))[:_MOST_COLUMNS]
    numbers = {key for key in keys if all(_number(row.get(key)) for row in rows[:_MOST_ROWS])}
    wide = {key for key in keys if any(len(_text(row.get(key))) > 40 for row in rows[:_MOST_ROWS])}
    more = f" (the first {_MOST_ROWS:,} of {len(rows):,})" if len(rows) > _MOST_ROWS else ""
    return Table(
        name=f"table-{_slug(title)}",
        caption=f"{title[:80]}{more}",
        columns=tuple(Column(key[:60], "number" if key in numbers else "wide" if key in wide else "") for key in keys),
        rows=tuple(
            tuple(Cell(_text(row.get(key)), row.get(key) if key in numbers else None) for key in keys)
            for row in rows[:_MOST_ROWS]
        ),
        filtered=len(rows) > 12,
    )


def _slug(title: str) -> str:
    """A name that is unique and safe as an anchor, whatever the keys are."""
    return title.encode().hex()[:120]


def _timeline(document: Mapping[str, Any]) -> tuple[Section, ...]:
    spans = [span for item in _list(document.get("spans"))[:_MOST_SPANS] if (span := _span(item)) is not None]
    if not spans:
        return ()
    known: dict[str, Origin] = {name: name for name in get_args(Origin)}
    timeline = Timeline(
        spans=tuple(spans),
        origin=known.get(str(document.get("origin")), "imported"),
        device=str(document.get("device") or "")[:80] or None,
    )
    tracks = compared_tracks((("from the file", timeline),), rank=min(span.rank for span in spans))
    return (Section(name="timeline", title="Timeline", blocks=(Lines(name="spans", ranks=tracks),)),)


def _span(item: Any) -> Span | None:
    match item:
        case {"name": str(name), "kind": str(kind), "stream": str(stream), "start_ms": start, "end_ms": end}:
            if kind in get_args(SpanKind) and _number(start) and _number(end) and 0 <= start <= end < 1e12:
                rank = item.get("rank", 0)
                return Span(
                    name=name,
                    kind=kind,  # type: ignore[arg-type]
                    stream=stream,
                    rank=rank if type(rank) is int else 0,
                    start_ns=round(start * 1e6),
                    end_ns=round(end * 1e6),
                )
    return None


def _nested(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    match value:
        case None:
            return "–"
        case str():
            return value[:_MOST_CHARACTERS]
        case _:
            return json.dumps(value, ensure_ascii=False)[:_MOST_CHARACTERS]
