"""`validate`: published results beside the model's, of one GPU or of many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from makeway.decide.scale.validate import ScaleValidation, is_scale_table, validate_scale
from makeway.model.validate import PARTS as ONE_GPU_PARTS
from makeway.model.validate import Validation
from makeway.model.validate import validate as validate_one_gpu
from makeway.model.validate.rows import parse_csv
from makeway.values.errors import InputError
from makeway.values.facts import read_file

SCALE = "scale"
PARTS = (*ONE_GPU_PARTS, SCALE)


def validate(names: Sequence[str] | None = None, *, data: Path | None = None) -> Validation | ScaleValidation:
    """Published results beside the model's: the named parts, all parts of one GPU, or a table of your own.

    `scale` stands alone: training steps on many GPUs, with `data` from your own table or directory of tables.
    """
    if names and SCALE in names:
        if set(names) != {SCALE}:
            raise InputError("ask for scale alone: its rows are training steps, the other parts are kernels")
        return validate_scale(data)
    if data is not None and not names and (data.is_dir() or _is_steps(data)):
        return validate_scale(data)
    return validate_one_gpu(names, data=data)


def _is_steps(path: Path) -> bool:
    """Whether a file is a table of training steps; what it is otherwise is another reader's question."""
    try:
        table = parse_csv(read_file(path, "table").decode())
    except UnicodeDecodeError:
        return False
    return bool(table) and is_scale_table(table[0])
