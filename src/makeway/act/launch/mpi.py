"""Starters of ranks that do not hand their environment on by themselves, and what makes them.

Sources: mpirun(1) of Open MPI (`-x`); pmodels/mpich, src/pm/hydra/mpiexec/options.c (`-genv` adds a variable, while
`-genvlist` stops the inheritance of all others); srun(1) (`--export`, ALL by default).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

MPI_STARTERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
_OPEN_MPI = ("Open MPI", "OpenRTE", "PRRTE", "prterun")
_HYDRA = ("HYDRA", "Intel(R) MPI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to start, and what must be said about how the environment reaches its ranks."""

    words: tuple[str, ...]
    note: str | None = None


def handing_on(
    words: Sequence[str], settings: Mapping[str, str], environ: Mapping[str, str], version: Callable[[str], str]
) -> Command:
    """The command with the options that its starter needs to hand `settings` on to ranks on other hosts.

    `version` gives what a program prints for --version; only starters of MPI are asked.
    """
    starter = os.path.basename(words[0])
    if starter == "srun":
        return Command(words=tuple(words), note=_srun_note(words, environ))
    if starter not in MPI_STARTERS:
        return Command(words=tuple(words))
    printed = version(words[0])
    if any(mark in printed for mark in _HYDRA):
        return _with(words, [option for name, value in settings.items() for option in ("-genv", name, value)])
    if any(mark in printed for mark in _OPEN_MPI):
        theirs = _exported(words)
        added = [name for name in settings if name not in theirs]
        note = ", ".join(name for name in settings if theirs.get(name) is not None)
        return Command(
            words=_with(words, [option for name in added for option in ("-x", name)]).words,
            note=f"{starter} itself sets {note}: kept" if note else None,
        )
    return Command(
        words=tuple(words),
        note=f"{starter} is neither Open MPI nor Hydra: whether ranks on other hosts get the variables is not known; "
        "to be sure, start makeway on each rank (mpirun ... makeway run --plan ... -- program)",
    )


def _with(words: Sequence[str], options: Sequence[str]) -> Command:
    return Command(words=(words[0], *options, *words[1:]))


def _exported(words: Sequence[str]) -> dict[str, str | None]:
    """What the user's own `-x NAME` and `-x NAME=VALUE` export."""
    found: dict[str, str | None] = {}
    for option, argument in pairwise(words):
        if option == "-x":
            name, equals, value = argument.partition("=")
            found[name] = value if equals else None
    return found


def _srun_note(words: Sequence[str], environ: Mapping[str, str]) -> str | None:
    asked = [word.removeprefix("--export=") for word in words if word.startswith("--export=")]
    asked += [value for option, value in pairwise(words) if option == "--export"]
    asked += [environ[name] for name in ("SLURM_EXPORT_ENV",) if name in environ]
    if asked and "ALL" not in asked[0].split(","):
        return (
            f"srun exports {asked[0]} only: the plan does not reach the ranks; add ALL, as in --export=ALL,NAME=VALUE"
        )
    return None
