"""Models and clusters by name, or from a user's TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from makeway.values.cluster import Cluster, Jitter, Level
from makeway.values.device import load_device
from makeway.values.errors import DataFileError, InputError, UnknownNameError, suggestion
from makeway.values.facts import data_files, parse_toml, read_file, refuse_unknown, text
from makeway.values.model import Experts, LatentAttention, Model

_CLUSTER_KEYS = ("name", "device", "summary", "source", "level", "jitter")


def known_models() -> tuple[str, ...]:
    """Names of all models of the package."""
    return _names("models")


def known_clusters() -> tuple[str, ...]:
    """Names of all clusters of the package."""
    return _names("clusters")


@cache
def load_model(name_or_path: str) -> Model:
    """The model of that name, in any case, or of that TOML file (a path ending in .toml)."""
    content, where = _content(name_or_path, "models", "model")
    return parse_model(content, where=where)


@cache
def load_cluster(name_or_path: str) -> Cluster:
    """The cluster of that name, in any case, or of that TOML file (a path ending in .toml)."""
    content, where = _content(name_or_path, "clusters", "cluster")
    return parse_cluster(content, where=where)


def parse_model(content: bytes, *, where: str) -> Model:
    """The model that a file's content describes; the error of a bad file names the key."""
    document = parse_toml(content, where=where)
    parts: dict[str, Any] = {}
    for key, kind in (("experts", Experts), ("latent", LatentAttention)):
        if key in document:
            parts[key] = _built(kind, document[key], f"{where}: {key}")
    model: Model = _built(Model, document | parts, where)
    return model


def parse_cluster(content: bytes, *, where: str) -> Cluster:
    """The cluster that a file's content describes; the error of a bad file names the key."""
    document = parse_toml(content, where=where)
    refuse_unknown(document, _CLUSTER_KEYS, where=where)
    tables = document.get("level", [])
    if not isinstance(tables, list):
        raise DataFileError(f"{where}: write each network as a [[level]] table, the innermost first")
    levels = [
        _built(Level, {"gpus": None, **_table(table, where)}, f"{where}: level {number}")
        for number, table in enumerate(tables, 1)
    ]
    try:
        return Cluster(
            name=text(document, "name", where=where),
            device=load_device(text(document, "device", where=where)),
            levels=tuple(levels),
            jitter=_built(Jitter, document["jitter"], f"{where}: jitter") if "jitter" in document else None,
            source=str(document.get("source", where)),
            summary=str(document.get("summary", "")),
        )
    except InputError as error:
        raise _named(error, where) from None


def _names(directory: str) -> tuple[str, ...]:
    names = (entry.name for entry in data_files(directory).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def _content(name_or_path: str, directory: str, what: str) -> tuple[bytes, str]:
    """The bytes of a preset or of a user's file, and what to call it in messages."""
    if name_or_path.endswith(".toml"):
        return read_file(Path(name_or_path), f"{what} file"), name_or_path
    names = _names(directory)
    if name_or_path.lower() not in names:
        raise UnknownNameError(
            f"no {what} is known as {name_or_path!r}{suggestion(name_or_path, names)}\n"
            f"Known: {', '.join(names)}; or pass your own as FILE.toml."
        )
    file = f"{name_or_path.lower()}.toml"
    return data_files(directory).joinpath(file).read_bytes(), file


def _table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DataFileError(f"{where}: expected a table, got {value!r}")
    return value


def _built(kind: Any, given: object, where: str) -> Any:
    """A value from a table: every key is one of its fields, of the right type, and none is missing."""
    table = _table(given, where)
    known = {field.name: field for field in fields(kind)}
    refuse_unknown(table, known, where=where)
    for name, field in known.items():
        if name not in table:
            if field.default is MISSING:
                raise DataFileError(f"{where}: {name} is missing")
            continue
        value = table[name]
        accepted = _ACCEPTED.get(str(field.type).removesuffix(" | None"))
        if accepted and value is not None and type(value) not in accepted:
            raise DataFileError(f"{where}: {name} must be {_SAID[accepted]}, got {value!r}")
    try:
        return kind(**table)
    except InputError as error:
        raise _named(error, where) from None


_ACCEPTED: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
_SAID: dict[tuple[type, ...], str] = {
    (int,): "a whole number",
    (int, float): "a number",
    (bool,): "true or false",
    (str,): "a string",
}


def _named(error: InputError, where: str) -> InputError:
    return error if isinstance(error, DataFileError) else DataFileError(f"{where}: {error}")
