"""Patterns of communication kernels as globs for the shim.

The bundled patterns are regular expressions. The shim matches globs (`*`, `?`, `[a-z]`, `[!a-z]`) with alternatives in
braces (`{Dev,}Kernel`), which need no compiler and no memory. A glob matches every name that its expression matches,
and more where a class repeats (`\\d+`, `{0,40}`). A glob that starts with `!` names compute kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from makeway.read.traces.classify import CommNames
from makeway.values.errors import DataFileError

_CLASSES = {"d": "[0-9]", "w": "[A-Za-z0-9_]", "s": "[ ]"}
_SPECIAL = frozenset("*?[]{},!")


def comm_globs(names: CommNames) -> tuple[str, ...]:
    """One glob per pattern, in the same order: the first match decides."""
    return tuple(
        f"{'' if pattern.means is not None else '!'}{glob_of(pattern.match.pattern)}" for pattern in names.patterns
    )


def glob_of(expression: str) -> str:
    """The glob for a regular expression that may match anywhere in a name."""
    reader = _Reader(expression)
    behind = "(?<!["
    if expression.startswith(behind):
        reader.at = len(behind) - 1
        start = f"{{,*{_negated(reader.bracket())}}}"
        reader.expect(")")
    elif expression.startswith("^"):
        reader.at = 1
        start = ""
    else:
        start = "*"
    body = reader.choices()
    if reader.at != len(expression):
        raise reader.refusal()
    return f"{start}{body}*"


def _negated(bracket: str) -> str:
    return f"[{bracket[2:]}" if bracket.startswith("[!") else f"[!{bracket[1:]}"


@dataclass(slots=True)
class _Reader:
    text: str
    at: int = 0

    def refusal(self) -> DataFileError:
        return DataFileError(
            f"cannot turn the name pattern {self.text!r} into a glob at character {self.at}; the launch shim knows "
            "literals, classes, \\d, \\w, (?:a|b), ?, *, + and {m,n}, and ^ or (?<![...]) at the start"
        )

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def expect(self, what: str) -> None:
        if not self.text.startswith(what, self.at):
            raise self.refusal()
        self.at += len(what)

    def choices(self) -> str:
        alternatives = [self.sequence()]
        while self.peek() == "|":
            self.at += 1
            alternatives.append(self.sequence())
        return alternatives[0] if len(alternatives) == 1 else f"{{{','.join(alternatives)}}}"

    def sequence(self) -> str:
        parts: list[str] = []
        while self.peek() not in ("", "|", ")"):
            atom = self.atom()
            match self.peek():
                case "?":
                    self.at += 1
                    atom = f"{{{atom},}}"
                case "*":
                    self.at += 1
                    atom = "*"
                case "+":
                    self.at += 1
                    atom = f"{atom}*"
                case "{":
                    self.at = self.text.find("}", self.at) + 1 or len(self.text)
                    atom = "*"
            parts.append(atom)
        return "".join(parts)

    def atom(self) -> str:
        match self.peek():
            case "(":
                self.expect("(?:")
                inner = self.choices()
                self.expect(")")
                return inner
            case "[":
                return self.bracket()
            case "\\":
                char = self.text[self.at + 1 : self.at + 2]
                if (char.isalnum() and char not in _CLASSES) or not char:
                    raise self.refusal()
                self.at += 2
                return _CLASSES.get(char) or _literal(char)
            case ".":
                self.at += 1
                return "?"
            case char if char in "^$?*+{}":
                raise self.refusal()
            case char:
                self.at += 1
                return _literal(char)

    def bracket(self) -> str:
        end = self.text.find("]", self.at + 2)
        inside = self.text[self.at + 1 : end]
        if end < 0 or "\\" in inside or "[" in inside or inside.startswith("!"):
            raise self.refusal()
        self.at = end + 1
        return f"[!{inside[1:]}]" if inside.startswith("^") else f"[{inside}]"


def _literal(char: str) -> str:
    return f"[{char}]" if char in _SPECIAL else char
