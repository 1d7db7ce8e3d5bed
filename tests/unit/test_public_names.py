"""The public names resolve, are listed once, and cost nothing until they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import makeway
import makeway.torch

HEAVY = ("torch", "plotly", "numpy", "rich", "triton", "cuda", "msgspec")
MODULES = ("makeway", "makeway.torch")
NAMES = [(module, name) for module in MODULES for name in import_module(module).__all__]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=".".join)
def test_a_public_name_resolves(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_has_one_home(module: str) -> None:
    public = import_module(module)
    names = [name for name in public.__all__ if name != "__version__"]
    assert len(set(names)) == len(names)
    assert set(public._HOMES) == set(names)


@pytest.mark.parametrize("module", MODULES)
def test_type_checkers_see_the_same_names_from_the_same_homes(module: str) -> None:
    public = import_module(module)
    assert public.__file__ is not None
    prefix = "makeway." if module == "makeway" else "makeway.act.torch."
    seen = {}
    for node in ast.parse(Path(public.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            imports = [statement for statement in node.body if isinstance(statement, ast.ImportFrom)]
            seen = {alias.name: statement.module for statement in imports for alias in statement.names}
    assert seen == {name: prefix + home for name, home in public._HOMES.items()}


@pytest.mark.parametrize("module", MODULES)
def test_an_unknown_name_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = import_module(module).no_such_name


def test_a_lazy_name_is_listed_for_people_who_explore() -> None:
    assert set(makeway.__all__) <= set(dir(makeway))


def test_importing_makeway_loads_nothing_heavy() -> None:
    code = f"import makeway, sys; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_makeway_loads_no_band() -> None:
    code = "import makeway, sys; print(sorted(name for name in sys.modules if name.startswith('makeway.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
