"""Settings that published recipes make and tables of results do not print: dispatcher of experts, graphs, overlap.

data/recipes.toml has them with their source. A row whose table names no such recipe keeps the layout's defaults.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_args

from makeway.values.errors import DataFileError
from makeway.values.facts import data_files, parse_toml, refuse_unknown
from makeway.values.layout import Dispatcher, Gradients

_RELEASE = re.compile(r"release (\d{1,4}(?:\.\d{1,4}){0,3})")
_SETTINGS = ("dispatcher", "gradients", "graphs", "overlap_ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of the rows that all of its conditions name."""

    rows: tuple[str, ...]
    models: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    experts: bool | None = None
    since: str = ""
    before: str = ""
    dispatcher: Dispatcher | None = None
    gradients: Gradients | None = None
    graphs: bool | None = None
    overlap_ep: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a row says that recipes depend on."""

    where: str  # id, source, system and flags, lower case
    model: str  # lower case, letters and digits only
    device: str
    precision: str  # lower case
    experts: bool


@cache
def known_recipes() -> tuple[Recipe, ...]:
    """All recipes, in the order in which they apply."""
    where = "recipes.toml"
    document = parse_toml(data_files(where).read_bytes(), where=where)
    refuse_unknown(document, ("source", "recipe"), where=where)
    return tuple(_recipe(entry, where=where) for entry in document["recipe"])


def _recipe(entry: dict[str, Any], *, where: str) -> Recipe:
    refuse_unknown(entry, tuple(item.name for item in fields(Recipe)), where=where)
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    for key, choices in (("dispatcher", Dispatcher), ("gradients", Gradients)):
        if given.get(key) not in (None, *get_args(choices)):
            raise DataFileError(f"{where}: {key} {given[key]!r}")
    return Recipe(**given)


def recipe_settings(asked: Asked) -> dict[str, Any]:
    """The settings of a row's recipe; empty where no recipe is known."""
    settings: dict[str, Any] = {}
    for recipe in known_recipes():
        if _applies(recipe, asked):
            settings |= {name: value for name in _SETTINGS if (value := getattr(recipe, name)) is not None}
    return settings


def _applies(recipe: Recipe, asked: Asked) -> bool:
    return (
        any(mark in asked.where for mark in recipe.rows)
        and (recipe.experts is None or recipe.experts == asked.experts)
        and (not recipe.models or asked.model.startswith(recipe.models))
        and (not recipe.devices or asked.device in recipe.devices)
        and (not recipe.precisions or any(part in asked.precision for part in recipe.precisions))
        and _released(recipe, asked.where)
    )


def _released(recipe: Recipe, where: str) -> bool:
    if not (recipe.since or recipe.before):
        return True
    named = _RELEASE.search(where)
    if named is None:
        return not recipe.before  # no release is named: the newest
    release = _numbers(named[1])
    return (not recipe.since or release >= _numbers(recipe.since)) and (
        not recipe.before or release < _numbers(recipe.before)
    )


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))
