"""This rank's place on its host, and the division of the host's cores between compute and communication."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    cores = sorted(cores)
    each = len(cores) // ranks
    if 1 <= comm_cores < each:
        share = cores[rank * each : (rank + 1) * each]
        return _division(share, comm_cores, sharing=1)
    if 1 <= comm_cores < len(cores):
        return _division(cores, comm_cores, sharing=ranks)
    return None


def _division(cores: Sequence[int], comm_cores: int, *, sharing: int) -> Division:
    compute = tuple(cores[comm_cores:])
    return Division(
        comm=tuple(cores[:comm_cores]), compute=compute, threads=max(len(compute) // sharing, 1), sharing=sharing
    )
