"""The table "one NCCL block beside one compute block", cell by cell, through the command itself."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from makeway.cli.main import main

COLUMNS = ("640", "544", "288", "160", "128")
LETTERS = {"registers": "R", "registers_in_a_partition": "Rsub", "smem_bytes": "S"}


def rows() -> list[dict[str, str]]:
    lines = Path(__file__).with_name("nccl_beside_compute.csv").read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def cell(document: dict[str, Any]) -> str:
    if document["fits_beside_one"]:
        return "yes"
    return "+".join(LETTERS[key] for key in document["beside_one"]["short_of"])


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['device']}-{row['compute']}")
def test_each_cell_comes_out_of_the_command(row: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for threads in COLUMNS:
        path = "tree-simple" if threads == "640" else f"ring-simple,threads={threads}"
        arguments = ["--device", row["device"], "--compute", row["compute"], "--comm", f"nccl-2.32.3/{path}", "--json"]
        assert main(["residency", *arguments]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["comm"]["threads"] == int(threads)
        found[threads] = cell(document)
    assert found == {threads: row[threads] for threads in COLUMNS}
