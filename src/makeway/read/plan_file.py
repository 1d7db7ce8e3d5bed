"""Plan files: a plan as TOML that people read, edit and keep beside their code.

`parse_plan(dump_plan(plan)) == plan`, and the same plan always gives the same bytes. Comments in a written file
repeat what the tables say; they are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

from makeway.values.control import Control, control_word, parse_control
from makeway.values.errors import DataFileError, InputError, printable, suggestion
from makeway.values.facts import STDIN, parse_toml, read_file, refuse_unknown, text, texts
from makeway.values.plan import Forecast, MadeFor, Plan, Rejected

PLAN_VERSION = 2
PREDICTED = "predicted"

KINDS: dict[str, type[Control]] = {kind.name: kind for kind in get_args(Control)}
_OLD_NAMES = {kind.__name__: kind.name for kind in get_args(Control)}  # version 1 named the classes
_OLD_KEYS = {"gpus": "ranks"}  # of [for] in version 1

_TABLES = ("version", "for", "predicted", "control", "rejected")
_TEXT_FIELDS = ("kernel", "variant", "method")  # numbers check themselves when the control is made
_TIMES = ("t_naive_ms", "t_plan_ms", "t_ideal_ms", "t_sequential_ms")
_SHARES = ("share_of_ideal_naive", "share_of_ideal_plan")
_NS_PER_MS = 1_000_000
_MOST_MS = 1e9  # up to here milliseconds of six digits are whole nanoseconds


# --- reading -----------------------------------------------------------------------------------


def load_plan(path: Path) -> Plan:
    """The plan in a TOML file, or on stdin for "-"."""
    content = read_file(path, "plan", instead="`makeway plan ... --out FILE` writes one")
    return parse_plan(content, where="stdin" if path == STDIN else printable(path))


def parse_plan(document: str | bytes, *, where: str) -> Plan:
    """The plan in a TOML document: `version = 2`, and one `[[control]]` table per control."""
    tables = parse_toml(document, where=where)
    _check_version(tables.get("version"), where)
    refuse_unknown(tables, _TABLES, where=where)
    controls = _list_of_tables(tables, "control", where)
    try:
        return Plan(
            controls=tuple(_control(table, where) for table in controls),
            reasons=tuple(_reason(table, f"{where}: [[control]]") for table in controls),
            made_for=_made_for(tables["for"], f"{where}: [for]") if "for" in tables else None,
            predicted=_forecast(tables["predicted"], f"{where}: [predicted]") if "predicted" in tables else None,
            rejected=tuple(
                _rejected(table, f"{where}: [[rejected]]") for table in _list_of_tables(tables, "rejected", where)
            ),
        )
    except DataFileError:
        raise
    except InputError as error:
        raise DataFileError(f"{where}: {error}") from None


def _check_version(version: object, where: str) -> None:
    """Refuse other versions before anything else: a newer file may have keys that are unknown here."""
    if type(version) is int and 1 <= version <= PLAN_VERSION:
        return
    newer = type(version) is int and version > PLAN_VERSION
    next_step = "it comes from a newer makeway: use that one" if newer else f"write version = {PLAN_VERSION}"
    given = "missing" if version is None else repr(version)
    raise DataFileError(f"{where}: version is {given}; this makeway reads versions 1 to {PLAN_VERSION}; {next_step}")


def _list_of_tables(document: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    tables = document.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DataFileError(f"{where}: write each {key} as a [[{key}]] table")
    return tables


def _control(table: dict[str, Any], where: str) -> Control:
    kind = table.get("kind")
    name = _OLD_NAMES.get(kind, kind) if isinstance(kind, str) else ""
    if name not in KINDS:
        raise DataFileError(
            f"{where}: unknown control kind {kind!r}{suggestion(str(kind), KINDS)}\nKnown: {', '.join(KINDS)}"
        )
    known = {field.name: field.default is MISSING for field in fields(KINDS[name])}
    refuse_unknown(table, ("kind", "reason", *known), where=f"{where}: {name}")
    if missing := [key for key, required in known.items() if required and key not in table]:
        raise DataFileError(f"{where}: {name}: {missing[0]} is missing")
    given = {key: table[key] for key in known if key in table}
    for key, value in given.items():
        if key in _TEXT_FIELDS and not isinstance(value, str):
            raise DataFileError(f"{where}: {name}: {key} must be a string, got {value!r}")
        if key == "prelaunch" and not isinstance(value, bool):
            raise DataFileError(f"{where}: {name}: prelaunch must be true or false, got {value!r}")
    try:
        return KINDS[name](**given)
    except InputError as error:
        raise DataFileError(f"{where}: {name}: {error}") from None


def _reason(table: dict[str, Any], where: str) -> str:
    reason = table.get("reason", "")
    if not isinstance(reason, str):
        raise DataFileError(f"{where}: reason must be a string, got {reason!r}")
    return reason


def _made_for(table: object, where: str) -> MadeFor:
    if isinstance(table, dict):
        table = {_OLD_KEYS.get(key, key): value for key, value in table.items()}
    given = _table(table, [field.name for field in fields(MadeFor)], where)
    for key, value in given.items():
        if key != "ranks" and not isinstance(value, str):
            raise DataFileError(f"{where}: {key} must be a string, got {value!r}")
    return MadeFor(**given)


def _forecast(table: object, where: str) -> Forecast:
    given = _table(table, ("origin", *_TIMES, *_SHARES, "dispatchers"), where)
    if (origin := given.get("origin", PREDICTED)) != PREDICTED:
        raise DataFileError(f"{where}: origin is {origin!r}; a plan holds predicted times only: write {PREDICTED!r}")
    times = {_ns_key(key): _nanoseconds(given[key], f"{where}: {key}") for key in _TIMES if key in given}
    if missing := [key for key in _TIMES[:3] if key not in given]:
        raise DataFileError(f"{where}: {missing[0]} is missing; it must be a number of milliseconds")
    shares = {key: float(_number(given[key], f"{where}: {key}")) for key in _SHARES if key in given}
    return Forecast(**times, **shares, dispatchers=texts(given, "dispatchers", where=where))  # type: ignore[arg-type]


def _rejected(table: dict[str, Any], where: str) -> Rejected:
    given = _table(table, ("control", "reason"), where)
    word = text(given, "control", where=where)
    try:
        return Rejected(parse_control(word), _reason(given, where))
    except InputError as error:
        raise DataFileError(f"{where}: {error}") from None


def _table(table: object, known: Iterable[str], where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise DataFileError(f"{where} must be a table, got {table!r}")
    refuse_unknown(table, known, where=where)
    return table


def _nanoseconds(value: object, what: str) -> int:
    time_ms = _number(value, what)
    time_ns = round(time_ms * _NS_PER_MS) if 0 < time_ms < _MOST_MS else 0
    if not time_ns:
        raise DataFileError(f"{what} must be a number above 0 and below {_MOST_MS:g}, got {value!r}")
    return time_ns


def _number(value: object, what: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataFileError(f"{what} must be a number, got {value!r}")
    return value


# --- writing -----------------------------------------------------------------------------------


def dump_plan(plan: Plan) -> str:
    """The plan as TOML: keys in a fixed order, each control under a comment that describes it."""
    return "\n\n".join("\n".join(block) for block in _blocks(plan)) + "\n"


def _blocks(plan: Plan) -> Iterator[list[str]]:
    yield [
        "# A plan of makeway: the controls to apply, and why. docs/plan-files.md lists the keys.",
        _line("version", PLAN_VERSION),
    ]
    if plan.made_for is not None:
        yield ["[for]", *_lines(plan.made_for)]
    if plan.predicted is not None:
        yield ["# Simulated, not measured.", "[predicted]", _line("origin", PREDICTED), *_lines(plan.predicted)]
    for control, reason in zip(plan.controls, plan.reasons, strict=True):
        kind = _line("kind", control.name)
        yield [f"# {one_line(plan.describe(control))}", "[[control]]", kind, *_lines(control), *_reason_lines(reason)]
    for rejected in plan.rejected:
        word = _line("control", control_word(rejected.control))
        title = f"# rejected: {one_line(plan.describe(rejected.control))}"
        yield [title, "[[rejected]]", word, *_reason_lines(rejected.reason)]


def one_line(sentence: str) -> str:
    """The sentence as a comment: whatever would end the line, or is not printable, becomes a question mark."""
    return "".join(character if character.isprintable() else "?" for character in sentence)


def _lines(value: MadeFor | Forecast | Control) -> list[str]:
    values = ((field.name, getattr(value, field.name)) for field in fields(value))
    return [
        _line(_ms_key(key), content / _NS_PER_MS) if key.endswith("_ns") else _line(key, content)
        for key, content in values
        if content is not None
    ]


def _ms_key(key: str) -> str:
    return key.removesuffix("_ns") + "_ms"


def _ns_key(key: str) -> str:
    return key.removesuffix("_ms") + "_ns"


def _reason_lines(reason: str) -> list[str]:
    return [_line("reason", reason)] if reason else []


def _line(key: str, value: object) -> str:
    return f"{key} = {_toml(value)}"


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _quoted(value)
        case tuple():
            return f"[{', '.join(_toml(item) for item in value)}]"
        case _:
            raise TypeError(f"no TOML for {value!r}")


_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def _quoted(string: str) -> str:
    """A TOML basic string; invisible characters are written as escapes."""
    return '"' + "".join(_character(character) for character in string) + '"'


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        raise InputError(f"half a surrogate pair ({character!r}) cannot be written to a file")
    if character.isprintable():
        return character
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
