"""The limits of this process's control group (Linux kernel, admin-guide/cgroup-v2 and cgroup-v1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from makeway.act.doctor.gpus import text, whole

_UNLIMITED_V1_BYTES = 2**60  # version 1 writes the largest multiple of a page for "no limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The tightest limits between the process and the root group; None: not set, or not readable."""

    cpus: float | None = None  # in cores: 1.5 is one and a half cores' time
    cpuset: str | None = None  # such as "0-3,8"
    memory_bytes: int | None = None


def cgroup_limits(root: Path = Path("/")) -> Limits:
    """The limits of both control-group versions, where they are mounted in their usual places."""
    mount = root / "sys/fs/cgroup"
    paths = dict(_memberships(text(root / "proc/self/cgroup")))
    unified = [*_upwards(mount, paths.get("", "/")), *_upwards(mount / "unified", paths.get("", "/"))]
    cpu, memory, cpuset = (list(_upwards(mount / name, paths.get(name, "/"))) for name in ("cpu", "memory", "cpuset"))
    cpus = [
        *(_quota(*_two(text(place / "cpu.max"))) for place in unified),
        *(_quota(text(place / "cpu.cfs_quota_us"), text(place / "cpu.cfs_period_us")) for place in cpu),
    ]
    sizes = [
        *(whole(text(place / "memory.max")) for place in unified),
        *(whole(text(place / "memory.limit_in_bytes")) for place in memory),
    ]
    sets = [
        *(text(place / "cpuset.cpus.effective").strip() for place in unified),
        *(text(place / "cpuset.cpus").strip() for place in cpuset),
    ]
    return Limits(
        cpus=min((quota for quota in cpus if quota is not None), default=None),
        cpuset=next(filter(None, sets), None),
        memory_bytes=min((size for size in sizes if size is not None and size < _UNLIMITED_V1_BYTES), default=None),
    )


def _memberships(listing: str) -> Iterator[tuple[str, str]]:
    """Controller ("" in version 2) and path of each line of /proc/self/cgroup."""
    for line in listing.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for controller in controllers.split(","):
            yield controller, path


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The group's directory and all above it; a container's own group is at the mount itself."""
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _two(line: str) -> tuple[str, str]:
    quota, _, period = line.strip().partition(" ")
    return quota, period


def _quota(quota: str, period: str) -> float | None:
    quota_us, period_us = whole(quota), whole(period)
    return quota_us / period_us if quota_us and period_us else None
