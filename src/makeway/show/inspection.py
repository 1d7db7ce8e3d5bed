"""The kernels of a binary as a report."""

from __future__ import annotations

from makeway.read.binaries import BinaryKernel, Inspection
from makeway.show.blocks import Cell, Column, Headline, Notes, Report, Section, Table
from makeway.show.data import record
from makeway.show.numbers import count, number
from makeway.show.provenance import provenance

_UNKNOWN = (
    "Dynamic shared memory and the launch shape are launch values: no file holds them.",
    "smem is the file's figure, as cuobjdump prints it; from sm_90 on it includes 1,024 B that the system reserves.",
)


def report(inspection: Inspection, *, arguments: str = "") -> Report:
    """What one block of each kernel takes, as far as the file says."""
    kernels = inspection.kernels
    amd = any(kernel.scalar_registers is not None for kernel in kernels)
    table = Table(
        name="kernel-table",
        caption="What one block takes, as far as the file says",
        origin="imported",
        columns=(
            Column("arch"),
            Column("registers", "number"),
            Column("threads"),
            Column("smem B", "number", hint="static shared memory"),
            Column("system B", "number", hint="of it reserved by the system", brief=False),
            Column("barriers", "number"),
            Column("cluster", "number"),
            *((Column("SGPRs", "number"),) if amd else ()),
            Column("kernel", "name"),
        ),
        rows=tuple(_row(kernel, amd=amd) for kernel in kernels),
        nothing="The file holds no kernels.",
        filtered=len(kernels) > 20,
        brief_rows=20,
    )
    return Report(
        result="inspection",
        over=f"makeway inspect {inspection.file}",
        headline=Headline(
            sentence=f"{count(len(kernels), 'kernel')} in {inspection.file}", origin="imported", value=len(kernels)
        ),
        sections=(
            Section(name="kernels", title="Kernels", blocks=(table, Notes(sentences=_UNKNOWN))),
            provenance(arguments, numbers="read from the file"),
        ),
        data=record(inspection),
        arguments=arguments,
    )


def _row(kernel: BinaryKernel, *, amd: bool) -> tuple[Cell, ...]:
    return (
        Cell(kernel.arch),
        number(kernel.registers, 0),
        Cell(_threads(kernel)),
        number(kernel.smem_static_bytes, 0),
        number(kernel.smem_system_bytes, 0),
        number(kernel.barriers, 0),
        number(kernel.cluster, 0),
        *((number(kernel.scalar_registers, 0),) if amd else ()),
        Cell(kernel.name),
    )


def _threads(kernel: BinaryKernel) -> str:
    if kernel.threads is None:
        return "unknown"
    return f"{kernel.threads}" if kernel.threads_required else f"at most {kernel.threads}"
