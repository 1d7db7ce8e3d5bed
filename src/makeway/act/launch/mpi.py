"""Launchers that do not pass their environment on to all ranks, and the options that make them.

Sources: mpirun(1) of Open MPI (`-x`); pmodels/mpich, src/pm/hydra/mpiexec/options.c (`-genv` adds a variable, while
`-genvlist` stops the inheritance of all others); srun(1) (`--export`, ALL by default).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

MPI_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
_OPEN_MPI = ("Open MPI", "OpenRTE", "PRRTE", "prterun")
_HYDRA = ("HYDRA", "Intel(R) MPI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to start, and a note where the environment may not reach its ranks."""

    arguments: tuple[str, ...]
    note: str | None = None


def with_exports(
    command: Sequence[str], settings: Mapping[str, str], environ: Mapping[str, str], version: Callable[[str], str]
) -> Command:
    """The command with the options that its launcher needs to pass `settings` on to ranks on other hosts.

    `version` returns what a program prints for --version; it is called for MPI launchers only.
    """
    command = tuple(command)
    launcher = os.path.basename(command[0])
    if launcher == "srun":
        return Command(arguments=command, note=_srun_note(command, environ))
    if launcher not in MPI_LAUNCHERS:
        return Command(arguments=command)
    printed = version(command[0])
    if any(mark in printed for mark in _HYDRA):
        options = [option for name, value in settings.items() for option in ("-genv", name, value)]
        return Command(arguments=(command[0], *options, *command[1:]))
    if any(mark in printed for mark in _OPEN_MPI):
        own = _exported(command)
        options = [option for name in settings if name not in own for option in ("-x", name)]
        kept = ", ".join(name for name in settings if own.get(name) is not None)
        note = f"{launcher} itself sets {kept}: kept" if kept else None
        return Command(arguments=(command[0], *options, *command[1:]), note=note)
    return Command(
        arguments=command,
        note=f"{launcher} is neither Open MPI nor Hydra: ranks on other hosts may not get the variables; to be sure, "
        "start makeway on each rank (mpirun ... makeway run --plan ... -- program)",
    )


def _exported(command: Sequence[str]) -> dict[str, str | None]:
    """What the user's own `-x NAME` and `-x NAME=VALUE` export."""
    exported: dict[str, str | None] = {}
    for option, argument in pairwise(command):
        if option == "-x":
            name, equals, value = argument.partition("=")
            exported[name] = value if equals else None
    return exported


def _srun_note(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    exports = [argument.removeprefix("--export=") for argument in command if argument.startswith("--export=")]
    exports += [value for option, value in pairwise(command) if option == "--export"]
    exports += [environ[name] for name in ("SLURM_EXPORT_ENV",) if name in environ]
    if exports and "ALL" not in exports[0].split(","):
        return (
            f"srun exports {exports[0]} only: the plan does not reach the ranks; add ALL, as in --export=ALL,NAME=VALUE"
        )
    return None
