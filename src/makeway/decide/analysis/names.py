"""Kernel names short enough for a sentence or a table."""

from __future__ import annotations

import re
from functools import lru_cache

_LONGEST = 56
_LONGEST_WITH_PARAMETERS = 160
_BRACKETS = {"<": ">", "(": ")", "{": "}"}


@lru_cache(maxsize=8192)
def short_name(name: str) -> str:
    """The name without return type, arguments and template parameters: "void at::foo<int>(char*)" is "at::foo"."""
    plain = name.replace("(anonymous namespace)::", "").replace("operator()", "operator")
    plain = _without_brackets(plain).strip() or name
    plain = re.sub(r"^(?:void|static|__global__)\s+", "", plain)
    plain = re.sub(r"\s+", " ", plain)
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 14]}...{plain[-11:]}"


def without_arguments(name: str) -> str:
    """The name with its template parameters, which distinguish kernels: "void foo<int>(char*)" is "foo<int>"."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    head, bracket, _ = plain.partition(">(")
    plain = (head + ">" if bracket else plain.partition("(")[0]) or name
    return plain if len(plain) <= _LONGEST_WITH_PARAMETERS else f"{plain[: _LONGEST_WITH_PARAMETERS - 1]}…"


def _without_brackets(name: str) -> str:
    kept: list[str] = []
    closing: list[str] = []
    for char in name:
        if char in _BRACKETS:
            closing.append(_BRACKETS[char])
        elif closing and char == closing[-1]:
            closing.pop()
        elif not closing:
            kept.append(char)
    return "".join(kept)
