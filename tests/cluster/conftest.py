"""Slurm's daemons on loopback, started once for all tests that a worker runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.daemons import no_slurm, slurm_cluster


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables with which srun and sbatch reach them."""
    if no_slurm is not None:
        pytest.skip(no_slurm)
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables
