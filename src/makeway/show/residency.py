"""Room on an SM as a report: does the collective's block fit beside the compute kernel, and what makes it fit."""

from __future__ import annotations

from typing import Any

from makeway.model.residency import Shortage
from makeway.model.room import Fit, RoomAnswer, sentences
from makeway.show.blocks import Cell, Column, Headline, Notes, Paragraph, Report, Room, Section, Table
from makeway.show.data import plain, record
from makeway.show.numbers import count, number
from makeway.show.provenance import provenance

_JOINS = {
    "beside_full": "joins a full SM",
    "after_one_retires": "replaces one block",
    "whole_drain": "takes an SM that drains",
}


def report(answer: RoomAnswer, *, arguments: str = "") -> Report:
    """One SM with both kernels, and the options that make room."""
    first, *rest = sentences(answer)
    blocks = count(answer.alone.blocks, "block")
    alone = f"The compute kernel alone: {blocks} per SM, bound by {', '.join(answer.alone.binds)}."
    return Report(
        result="residency",
        over=f"makeway residency, {answer.device.name}",
        headline=Headline(sentence=first, origin="predicted"),
        lead=(Paragraph(text=" ".join(rest)),) if rest else (),
        sections=(
            Section(name="room", title="Room on an SM", blocks=(room(answer), Paragraph(text=alone))),
            *_options_section(answer),
            provenance(
                arguments,
                numbers="predicted: one kernel alone as NVIDIA's occupancy calculator, two side by side by our model",
            ),
        ),
        data=_data(answer),
        arguments=arguments,
    )


def room(answer: RoomAnswer) -> Room:
    """The picture of the SM, full and with one compute block."""
    device, block = answer.device, answer.comm.block
    return Room(
        name="room-picture",
        device=device.name,
        sm=device.sm,
        compute_name="compute",
        compute=answer.compute,
        comm_name=answer.comm.name if block else None,
        comm=block,
        most_pad_bytes=max(device.sm.smem_block_bytes - answer.compute.smem_bytes, 0),
        held=tuple(sorted({answer.alone.blocks, 1}, reverse=True)) if block else (),
    )


def _options_section(answer: RoomAnswer) -> tuple[Section, ...]:
    if answer.comm.block is None:
        return ()
    table = Table(
        name="options-table",
        caption="What lets the block in",
        origin="predicted",
        columns=(
            Column("option", "wide"),
            Column("pad per block"),
            Column("threads", "number", hint="of the collective's block"),
            Column("compute/SM", "number"),
            Column("comm/SM", "number"),
            Column("SMs", "number", hint="that must have this room at once"),
            Column("set by", brief=False),
        ),
        rows=tuple(
            (
                Cell(_JOINS[option.joins]),
                Cell(f"{option.pad_bytes:,}..{option.pad_most_bytes:,} B" if option.pad_bytes else "none"),
                number(option.comm_threads, 0),
                number(option.compute_blocks, 0),
                number(option.comm_blocks, 0),
                number(option.sms_at_once, 0),
                Cell(option.setting or ""),
            )
            for option in answer.options
        ),
        nothing="No pad and no thread count lets it in.",
    )
    unconfirmed = (f"unconfirmed {key}: {reason}" for key, reason in answer.comm.unconfirmed.items())
    doubts = (*answer.comm.assumed, *unconfirmed)
    return (Section(name="options", title="Options", blocks=(table, Notes(sentences=doubts))),)


def _data(answer: RoomAnswer) -> dict[str, Any]:
    block, alone = answer.comm.block, answer.alone
    return {
        "device": answer.device.name,
        "compute": record(answer.compute) | {"blocks_alone": alone.blocks, "binds": plain(alone.binds)},
        "comm": {
            "name": answer.comm.name,
            **(record(block) if block else dict.fromkeys(record(answer.compute))),
            "unconfirmed": answer.comm.unconfirmed,
        },
        "needs_sm": block is not None,
        "fits_beside_full": answer.beside_full.fits or block is None,
        "fits_beside_one": answer.beside_one.fits or block is None,
        "beside_full": _fit(answer.beside_full),
        "beside_one": _fit(answer.beside_one),
        "binds": plain(answer.binds),
        "short_of": _short_of(answer.short_of),
        "options": plain(answer.options),
        "explanation": " ".join(sentences(answer)[1:]),
    }


def _fit(fit: Fit) -> dict[str, Any]:
    binds = [shortage.resource.value for shortage in fit.short_of]
    return record(fit, without=("short_of",)) | {"binds": binds, "short_of": _short_of(fit.short_of)}


def _short_of(shortages: tuple[Shortage, ...]) -> dict[str, int]:
    return {shortage.key: shortage.amount for shortage in shortages}
