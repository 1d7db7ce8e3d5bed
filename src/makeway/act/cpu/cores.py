"""This rank's place on its host, its share of the host's cores, and their division for compute and communication."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LOCAL = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def place_on_host(environ: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """This rank's number on its host and the ranks there, from the launcher; None where it does not say."""
    for pair in _LOCAL:
        rank, ranks = (environ.get(name, "") for name in pair)
        if rank.isdigit() and ranks.isdigit() and int(rank) < int(ranks):
            return int(rank), int(ranks)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a rank runs: its host, and the cores that it may use there."""

    host: str
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A rank among those that may use the same cores."""

    rank: int
    ranks: int
    unclear: str | None = None  # why these cores cannot be divided


def launched_seat(otherwise: tuple[int, int]) -> Seat:
    """The seat among all ranks that the launcher started on this host; `otherwise`: rank and ranks without its word."""
    rank, ranks = place_on_host() or otherwise
    return Seat(rank=rank, ranks=ranks)


def seat_of(rank: int, placements: Sequence[Placement]) -> Seat:
    """The seat of one of several ranks; a launcher may have bound each to cores of its own."""
    mine = placements[rank]
    sharing = [
        number
        for number, other in enumerate(placements)
        if other.host == mine.host and not {*other.cores}.isdisjoint(mine.cores)
    ]
    unlike = next((number for number in sharing if {*placements[number].cores} != {*mine.cores}), None)
    unclear = None
    if unlike is not None:
        unclear = (
            f"ranks {rank} and {unlike} may use different cores of their host, and some of the same; let the launcher "
            "bind every rank to cores of its own, or none"
        )
    return Seat(rank=sharing.index(rank), ranks=len(sharing), unclear=unclear)


def neighbouring(cores: Sequence[int], root: Path = Path("/sys/devices/system/cpu")) -> tuple[int, ...]:
    """Cores in the order of the machine: those of a memory node together, and the threads of one core."""

    def number(path: Path) -> int:
        with suppress(OSError, ValueError):
            return int(path.read_text())
        return 0

    def place(core: int) -> tuple[int, int, int, int]:
        directory = root / f"cpu{core}"
        nodes = [int(name) for node in directory.glob("node*") if (name := node.name.removeprefix("node")).isdigit()]
        topology = directory / "topology"
        return min(nodes, default=0), number(topology / "physical_package_id"), number(topology / "core_id"), core

    return tuple(sorted(cores, key=place))


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The cores of one rank."""

    comm: tuple[int, ...]
    compute: tuple[int, ...]
    threads: int  # compute threads for this rank
    sharing: int  # ranks that use these same cores


def divided(cores: Sequence[int], comm_cores: int, *, rank: int, ranks: int) -> Division | None:
    """`comm_cores` of a rank's cores for its communication and the rest for its compute; None when there are too few.

    The host's cores are first divided among its `ranks`. Where a rank's share is too small to be divided again (two
    ranks on two cores), all ranks use the same `comm_cores` cores for communication and the same others for compute.
    """
    share = share_of(cores, rank=rank, ranks=ranks) or ()
    if 1 <= comm_cores < len(share):
        return _division(share, comm_cores, sharing=1)
    if 1 <= comm_cores < len(cores):
        return _division(tuple(cores), comm_cores, sharing=ranks)
    return None


def share_of(cores: Sequence[int], *, rank: int, ranks: int) -> tuple[int, ...] | None:
    """A rank's own cores, in their order and as many as every other rank has; None when there are fewer than ranks."""
    each = len(cores) // ranks
    return tuple(cores[rank * each : (rank + 1) * each]) or None


def _division(cores: Sequence[int], comm_cores: int, *, sharing: int) -> Division:
    compute = tuple(cores[comm_cores:])
    return Division(
        comm=tuple(cores[:comm_cores]), compute=compute, threads=max(len(compute) // sharing, 1), sharing=sharing
    )
