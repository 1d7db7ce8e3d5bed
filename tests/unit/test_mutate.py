"""scripts/mutate: its hand-written faults still match the sources, and drawing is the same every time."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "makeway"


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    """The script as a module."""
    loader = SourceFileLoader("mutate", str(ROOT / "scripts" / "mutate"))
    spec = spec_from_loader("mutate", loader)
    assert spec is not None
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mutate", module)  # where dataclasses look for it
        patch.setattr(sys, "dont_write_bytecode", True)
        loader.exec_module(module)
    return module


def test_every_fault_changes_one_place_of_the_sources_into_code(mutate: ModuleType) -> None:
    faults = tomllib.loads((ROOT / "scripts" / "faults.toml").read_text())["fault"]
    mutants = mutate.faults("")
    assert len(mutants) == len(faults) >= 40
    assert len({(fault["file"], fault["before"]) for fault in faults}) == len(faults)
    for mutant in mutants:
        source = (PACKAGE / mutant.path).read_text()
        assert ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source)), mutant


@pytest.mark.parametrize(
    ("only", "parts"),
    [
        ("decide/planning/", {"planning"}),
        pytest.param("", {"simulate", "planning", "analysis"}, marks=pytest.mark.long),
    ],
)
def test_drawn_mutants_are_the_same_every_time_and_parse(only: str, parts: set[str], mutate: ModuleType) -> None:
    mutants = mutate.drawn(60, 1, only)
    assert mutants == mutate.drawn(60, 1, only) != mutate.drawn(60, 2, only)
    assert len(set(mutants)) == 60
    assert {mutant.path.split("/")[1] for mutant in mutants} >= parts
    for mutant in mutants:
        source = (PACKAGE / mutant.path).read_text()
        assert ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source)), mutant


def test_messages_annotations_and_defaults_are_left_alone(mutate: ModuleType) -> None:
    source = """
def half(x: int = 7, *, y: 'a < b' = 3) -> float:
    if x > 5:
        raise ValueError(f"{x + 1} is more than {2 + 3}")
    return x / 2
"""
    places = mutate._Places("half.py", source)
    places.visit(ast.parse(source))
    assert [(place.before, place.after) for place in places.found] == [(">", "<"), ("5", "6"), ("/", "*"), ("2", "3")]


def test_every_file_that_is_broken_has_tests(mutate: ModuleType) -> None:
    for path in mutate._paths(""):
        assert all((ROOT / test).is_file() for test in mutate.tests_of(path)), path
