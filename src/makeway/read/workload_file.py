"""Workload files: TOML that describes kernels and collectives (docs/workloads.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from makeway.values.collective import Collective, CollectiveKind
from makeway.values.errors import DataFileError, InputError, suggestion
from makeway.values.facts import parse_toml, read_file, refuse_unknown
from makeway.values.kernel import KernelResources
from makeway.values.units import parse_bytes
from makeway.values.workload import BlockWork, CollectiveOp, Gemm, KernelOp, Measured, Operation, Work, Workload

_KERNEL_KEYS = (
    "name", "stream", "after", "threads", "registers", "smem", "cluster", "gemm", "blocks", "flops_per_block",
    "hbm_bytes_per_block", "dtype", "time_ms", "hbm_bytes", "share", "persistent",
)  # fmt: skip
_COLLECTIVE_KEYS = ("name", "stream", "after", "kind", "size", "library", "blocks", "time_ms", "dtype")


def load_workload(path: Path) -> Workload:
    """The workload in a TOML file (docs/workloads.md)."""
    return parse_workload(read_file(path, "workload"), where=str(path))


def parse_workload(content: bytes, *, where: str) -> Workload:
    """The workload that a file's content describes; the error of a bad file names the operation."""
    document = parse_toml(content, where=where)
    if "operation" not in document and ("control" in document or "version" in document):
        raise DataFileError(f"{where}: this is a plan file, not a workload; pass it with --plan")
    refuse_unknown(document, ("name", "ranks", "streams", "operation"), where=where)
    tables = document.get("operation", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DataFileError(f"{where}: write each operation as an [[operation]] table")
    ranks = document.get("ranks", 1)
    streams = document.get("streams")
    try:
        operations = tuple(_operation(table, ranks, where) for table in tables)
        for operation in operations:
            if streams is not None and operation.stream not in streams:
                raise InputError(
                    f"{operation.name} is on unknown stream {operation.stream!r}{suggestion(operation.stream, streams)}"
                )
        return Workload(name=str(document.get("name", Path(where).stem)), operations=operations, ranks=ranks)
    except (InputError, TypeError, ValueError) as error:
        raise error if isinstance(error, DataFileError) else DataFileError(f"{where}: {error}") from None


def _operation(table: Mapping[str, Any], ranks: int, where: str) -> Operation:
    name = str(table.get("name", "?"))
    shared: dict[str, Any] = {"name": name, "after": tuple(table.get("after", ()))}
    if "stream" in table:
        shared["stream"] = table["stream"]
    if "kind" in table:
        refuse_unknown(table, _COLLECTIVE_KEYS, where=f"{where}: {name}")
        for key in ("size", "library"):
            if key not in table:
                raise InputError(f"{name}: {key} is missing")
        if table["kind"] not in get_args(CollectiveKind):
            raise InputError(
                f"{name}: unknown collective {table['kind']!r}; known: {', '.join(get_args(CollectiveKind))}"
            )
        exchange = Collective(kind=table["kind"], size_bytes=_size(table["size"]), ranks=ranks)
        time_ns = float(table["time_ms"]) * 1e6 if "time_ms" in table else None
        return CollectiveOp(
            **shared,
            collective=exchange,
            library=table["library"],
            blocks=table.get("blocks"),
            time_ns=time_ns,
            dtype=table.get("dtype"),
        )
    refuse_unknown(table, _KERNEL_KEYS, where=f"{where}: {name}")
    for key in ("threads", "registers"):
        if key not in table:
            raise InputError(f"{name}: {key} is missing (a collective needs kind=)")
    resources = KernelResources(
        threads=table["threads"],
        registers_per_thread=table["registers"],
        smem_bytes=_size(table.get("smem", 0)),
        cluster=table.get("cluster", 1),
    )
    persistent = bool(table.get("persistent", False))
    return KernelOp(**shared, resources=resources, work=_work(table), share=table.get("share"), persistent=persistent)


def _work(table: Mapping[str, Any]) -> Work:
    if "gemm" in table:
        options = dict(table["gemm"])
        for key in ("tile", "grid"):
            if key in options:
                options[key] = tuple(options[key])
        return Gemm(**options)
    if "blocks" not in table:
        raise InputError(
            f"{table.get('name')}: give gemm, or blocks with flops_per_block, hbm_bytes_per_block or time_ms"
        )
    if "time_ms" in table:
        return Measured(
            time_ns=float(table["time_ms"]) * 1e6, blocks=table["blocks"], hbm_bytes=float(table.get("hbm_bytes", 0))
        )
    return BlockWork(
        blocks=table["blocks"],
        flops_per_block=float(table.get("flops_per_block", 0)),
        hbm_bytes_per_block=float(table.get("hbm_bytes_per_block", 0)),
        dtype=table.get("dtype", "fp32"),
    )


def _size(value: object) -> int:
    return value if type(value) is int else parse_bytes(str(value))
