"""Nothing in the sources unpickles, evaluates, starts a shell or listens on every interface."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.attack.running import ROOT

SOURCES = sorted((ROOT / "src" / "makeway").rglob("*.py"))

# What is found, by the name of the file; each with the reason why it may stay.
ALLOWED = {
    ("ranks.py", "import multiprocessing"): "pickles only what passes through a socket pair to our own child process",
    ("fanout.py", "import multiprocessing"): "a pool of our own child processes, which pickles through its pipes only",
}

_PICKLERS = ("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "multiprocessing")
_CALLS = {
    "eval": "evaluates text",
    "exec": "executes text",
    "os.system": "starts a shell",
    "os.popen": "starts a shell",
    "subprocess.getoutput": "starts a shell",
    "subprocess.getstatusoutput": "starts a shell",
    "torch.load": "unpickles",
    "tempfile.mktemp": "gives a name that another user can take",
}
_PICKLING_METHODS = ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list")
_EVERY_INTERFACE = ("0.0.0.0", "::", "[::]")


def forbidden(source: str) -> Iterator[tuple[int, str]]:
    """Line and description of everything that must not be in a source text."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, what) for what in _of_imports([alias.name for alias in names]))
            case ast.ImportFrom(module=str(module), names=names):
                whole = [module, *(f"{module}.{alias.name}" for alias in names)]
                yield from ((node.lineno, what) for what in _of_imports(whole))
            case ast.Call():
                yield from ((node.lineno, what) for what in _of_call(node))
            case ast.Constant(value=value) if value in _EVERY_INTERFACE:
                yield node.lineno, f"the address {value}"


def _of_imports(modules: list[str]) -> Iterator[str]:
    yield from (f"import {name}" for name in sorted({module.partition(".")[0] for module in modules} & set(_PICKLERS)))
    yield from (f"import {name}" for name in modules if name in _CALLS)


def _of_call(call: ast.Call) -> Iterator[str]:
    name = _dotted(call.func)
    if name in _CALLS or name.removeprefix("builtins.") in ("eval", "exec"):
        yield f"call of {name}"
    if name.rpartition(".")[2] in _PICKLING_METHODS:
        yield f"call of {name}"
    for keyword in call.keywords:
        if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False):
            yield "shell="
    if name.rpartition(".")[2] in ("bind", "create_server") and call.args:
        match call.args[0]:
            case ast.Tuple(elts=[ast.Constant(value=""), *_]):
                yield "a socket on every interface"


def _dotted(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            return f"{_dotted(owner)}.{name}"
        case _:
            return ""


@cache
def in_sources() -> list[tuple[Path, int, str]]:
    return [(path, line, what) for path in SOURCES for line, what in forbidden(path.read_text())]


def test_no_source_file_has_any_of_it() -> None:
    left = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path, line, what in in_sources()
        if (path.name, what) not in ALLOWED
    ]
    assert left == []


def test_what_is_allowed_is_still_there() -> None:
    present = {(path.name, what) for path, _, what in in_sources()}
    assert set(ALLOWED) <= present


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import multiprocessing.connection",
        "eval(text)",
        "builtins.exec(text)",
        "import os\nos.system('ls')",
        "from os import system",
        "subprocess.run(text, shell=True)",
        "subprocess.run(text, shell=wanted)",
        "torch.load(path)",
        "dist.all_gather_object(out, value)",
        "server.bind(('', 80))",
        "socket.create_server(('', 0))",
        "HOST = '0.0.0.0'",
    ],
)
def test_each_of_it_is_seen(source: str) -> None:
    assert list(forbidden(source))


@pytest.mark.parametrize(
    "source",
    ["subprocess.run(words, shell=False)", "server.bind(('127.0.0.1', 0))", "import pickled", "loader.exec_module(m)"],
)
def test_nothing_else_is(source: str) -> None:
    assert list(forbidden(source)) == []
