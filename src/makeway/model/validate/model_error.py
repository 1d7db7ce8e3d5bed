"""The error of differences between settings, by class of device: what a plan's gain must exceed to mean anything.

Computed from published tables, with the device's own table left out of every choice; `scripts/model-error` writes the
result to data/model-error.toml, which planning reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from makeway.model.validate.grid import GridCell, cells, published_device, time_ratio
from makeway.model.validate.grid_errors import by_blocks, by_device, difference_errors, left_out_error, warps_without
from makeway.model.validate.rows import published_csv
from makeway.values.facts import data_files, parse_toml

FILE = "model-error.toml"
SPREADS = (0.0, 0.02, 0.06, 0.10, 0.20)  # of all blocks, for the sensitivity
SENSITIVE = (64, 256, 512)  # blocks at which the spread matters most, and that take seconds
_TABLE = "grid_time_ratio.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassError:
    """The mean absolute error of differences on devices of some architectures, in sequential times."""

    name: str
    archs: tuple[str, ...]
    error: float
    basis: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """Errors by class of device, and the one for devices that nobody published."""

    classes: tuple[ClassError, ...]
    widest: float
    widest_basis: str
    left_out: dict[str, float]  # error of Fig. 2 by device, its map left out
    spread: dict[str, dict[str, float]]  # its error at some grids, by device and spread of all blocks


def class_error(name: str, table: Sequence[GridCell]) -> ClassError:
    """The error of differences on one device of Fig. 2 of arXiv 2606.09200, its own map left out."""
    known, device = by_device(table), published_device(name)
    errors = difference_errors(device, known[name], warps_without(name, known))
    return ClassError(
        name=f"{name} class",
        archs=(device.arch,),
        error=round(fmean(errors), 4),
        basis=f"leave-one-device-out, every two of {len(by_blocks(known[name], fmean))} grids of {len(known[name])} "
        "cells, Fig. 2 of arXiv 2606.09200",
        rows=len(errors),
    )


def model_error() -> ModelError:
    """All errors, computed: a minute or two."""
    table = cells(published_csv(_TABLE))
    known = by_device(table)
    classes = tuple(class_error(name, table) for name in known)
    worst = max(classes, key=lambda each: each.error)
    return ModelError(
        classes=classes,
        widest=worst.error,
        widest_basis=f"no published table of this class: the {worst.name}'s, the widest known",
        left_out={name: round(left_out_error(name, known), 4) for name in known},
        spread={name: {f"{spread:g}": round(spread_error(name, group, spread), 4) for spread in SPREADS} for name, group in known.items()},
    )


def spread_error(name: str, group: Sequence[GridCell], spread: float) -> float:
    """The error at some grids if all blocks spread so much, whatever their length."""
    device = published_device(name)
    kept = [cell for cell in group if cell.blocks in SENSITIVE]
    return fmean(abs(time_ratio(device, cell.blocks, jitter=spread) - cell.ratio) for cell in kept)


def as_toml(errors: ModelError) -> str:
    """The file's text."""
    lines = [
        "# The error of differences between settings, as a fraction of the sequential time. Written by",
        "# scripts/model-error; tests/oracle/test_model_error.py recomputes it. docs/model.md, section 7.",
        "",
    ]
    for each in errors.classes:
        archs = ", ".join(f'"{arch}"' for arch in each.archs)
        lines += ["[[class]]", f'name = "{each.name}"', f"archs = [{archs}]", f"error = {each.error}"]
        lines += [f'basis = "{each.basis}"', f"rows = {each.rows}", ""]
    lines += ["[widest]", f"error = {errors.widest}", f'basis = "{errors.widest_basis}"', ""]
    lines += ["# Mean absolute error of Fig. 2 of arXiv 2606.09200, the device's own map left out of every choice.", "[left_out]"]
    lines += [f"{name} = {value}" for name, value in errors.left_out.items()]
    grids = ", ".join(map(str, SENSITIVE))
    for name, values in errors.spread.items():
        lines += ["", f"# Its error at {grids} blocks if all blocks spread so much.", f"[spread.{name}]"]
        lines += [f'"{spread}" = {value}' for spread, value in values.items()]
    return "\n".join(lines) + "\n"


@cache
def written_error() -> ModelError:
    """The errors as scripts/model-error last wrote them."""
    document = parse_toml(data_files("").joinpath(FILE).read_text(), where=FILE)
    return ModelError(
        classes=tuple(ClassError(**{**each, "archs": tuple(each["archs"])}) for each in document["class"]),
        widest=document["widest"]["error"],
        widest_basis=document["widest"]["basis"],
        left_out=document["left_out"],
        spread=document["spread"],
    )
