"""What the control group of this process leaves it of the host (Linux kernel, admin-guide/cgroup-v2 and cgroup-v1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from makeway.act.doctor.gpus import text, whole

_UNLIMITED_V1_BYTES = 2**60  # version 1 writes the largest multiple of a page where there is no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The tightest limit on the way from the process to the root; None: none set, or none to be seen."""

    cpus: float | None = None  # processor time per time: 1.5 is one and a half cores
    cpuset: str | None = None  # such as "0-3,8"
    memory_bytes: int | None = None


def cgroup_limits(root: Path = Path("/")) -> Limits:
    """The limits of both versions of control groups, whichever of them are mounted where they usually are."""
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
        cpus=min((found for found in cpus if found is not None), default=None),
        cpuset=next((found for found in sets if found), None),
        memory_bytes=min((size for size in sizes if size is not None and size < _UNLIMITED_V1_BYTES), default=None),
    )


def _memberships(listing: str) -> Iterator[tuple[str, str]]:
    """Controller (version 2: "") and path of every line of /proc/self/cgroup."""
    for line in listing.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for controller in controllers.split(","):
            yield controller, path


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The group's directory and every one above it; a container's own group is at the mount itself."""
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _two(line: str) -> tuple[str, str]:
    quota, _, period = line.strip().partition(" ")
    return quota, period


def _quota(quota: str, period: str) -> float | None:
    allowed, out_of = whole(quota), whole(period)
    return allowed / out_of if allowed and out_of else None
