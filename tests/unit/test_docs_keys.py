"""Every key of a JSON document is defined in numbers.md, of a report in reports.md, every variable on its page."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.certificates import steps

from makeway.act.doctor.certificate import sealed
from makeway.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
SOURCES = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".c")]
RECORDING = "examples/recordings/tp-llama-70b"
H100 = "--device H100-SXM5-80GB"

DOCUMENTS = [
    "devices A40",
    "devices",
    "inspect examples/matmul.sm_90.cubin",
    f"residency {H100} --compute threads=256,registers=100,smem=48KiB --comm nccl-2.32.3/ring-simple",
    f"simulate gemm-ar {H100} --control priority",
    f"simulate gemm-ar {H100} --sweep priority",
    f"plan gemm-ar {H100}",
    f"plan --compare examples/cpu-plan.toml examples/cpu-plan.toml fsdp-llama-7b {H100}",
    "export examples/cpu-plan.toml --to env",
    pytest.param(f"plan {RECORDING}", marks=pytest.mark.long),
    f"analyze {RECORDING} --jobs 1",
    f"analyze {RECORDING} --no-what-if --fail-if exposed>1% --jobs 1",
    "compare examples/recordings/ddp-gloo-2ranks examples/recordings/ddp-gloo-2ranks-controlled --jobs 1",
    f"analyze {RECORDING} --on local --no-cache --jobs 1 --fail-if exposed>1%",
    f"analyze {RECORDING} --shard 1/2 --out s.summary --no-cache --jobs 1",
    "bench gemm-ar --on sim:H100-SXM5-80GB --control priority --no-plan",
    "bench cb-ar --on sim:A40 --grid 16x16 --tile 64x64x32,64x64x64",
    "run --plan examples/cpu-plan.toml --dry-run -- true",
    "run --plan examples/cpu-plan.toml -- true",
    "run --plan examples/cpu-plan.toml --compare --fail-if slower -- true",
    "record --out recording -- true",
    f"validate --data {ROOT}/src/makeway/data/validation/scale/simumax_b200_node.csv",
    "scale llama-3-8b --cluster dgx-h100 --gpus 16 --global-batch 32 --top 2",
    "scale llama-3-8b --cluster dgx-h100 --gpus 16 --layout tp=8,compression=top-k",
    "scale llama-3-8b --cluster dgx-h100 --sweep gpus=8,16 --layout tp=2,sharding=zero1",
    "scale llama-3-8b --cluster dgx-h100 --sweep gpus=8,16 --layout tp=2,sharding=zero1 --shard 1/2 --out part.json",
    f"scale --from-trace {RECORDING} --cluster dgx-a100 --gpus 64",
    "doctor",
    "calibrate certificate.json",
    "validate --only dma",
    pytest.param("demo --quick", marks=pytest.mark.long),
]
# Where the keys of an object are names of things, not of the schema.
MAPS = {
    "residency": {"short_of", "unconfirmed"},
    "devices": {"facts"},
    "simulate": {"blocks"},
    "plan": {"baselines"},
    "analyze": {"unmatched"},
    "bench": {"variants", "share_of_ideal", "overlap_rate", "against_baseline", "reached"},
    "demo": {"blocks", "evidence", "unmatched"},
    "calibrate": {"settled"},
    "doctor": {"platforms", "variables"},
    "run": {"evidence"},
    "validate": {"baselines", "uncovered"},
}


WITHIN = {
    "demo": ("analyze", "bench", "record", "run", "scale", "simulate")
}  # commands whose documents are part of another's


def sections() -> dict[str, set[str]]:
    """The keys in code of each section of numbers.md, by its title."""
    parts = re.split(r"^## (.+)$", (ROOT / "docs" / "numbers.md").read_text(encoding="utf-8"), flags=re.M)
    return {title: set(re.findall(r"`(\w+)`", text)) for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def keys(value: Any, maps: set[str], *, named: bool = False) -> Iterator[str]:
    """All keys of a document; those of a map are names, and what they lead to is looked into."""
    match value:
        case dict():
            for key, inner in value.items():
                if not named:
                    yield key
                yield from keys(inner, maps, named=not named and key in maps)
        case list():
            for inner in value:
                yield from keys(inner, maps)


@pytest.mark.parametrize("words", DOCUMENTS)
def test_every_key_of_a_document_is_defined(
    words: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "certificate.json").write_bytes(msgspec.json.encode(sealed({"date": "2026-01-02"}, steps())))
    before, rest, program = words.partition(" -- ")
    command, *_ = arguments = [*shlex.split(before), "--json", *shlex.split(rest + program)]
    if command in ("run", "record"):  # they end every descendant of their process: here also a helper of other tests
        ended = subprocess.run([sys.executable, "-m", "makeway", *arguments], timeout=100, check=False)
        unmeasured = command == "record" or "--fail-if" in words  # nothing was recorded, no limit was checked
        assert ended.returncode == (2 if unmeasured else 0)
    else:
        assert main(arguments) == (1 if "--fail-if" in words else 0)
    found = set(keys(json.loads(capfd.readouterr().out), MAPS.get(command, set())))
    defined = sections()
    assert found
    known = [defined[name] for name in (command, "In several documents", *WITHIN.get(command, ()))]
    assert not found.difference(*known)


def test_every_command_that_prints_numbers_has_a_section_and_every_defined_key_is_in_the_code() -> None:
    defined = sections()
    assert set(COMMANDS) == set(defined) - {"In several documents"}
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    known = set(re.findall(r"\w+", code))
    known |= {f"{name.removesuffix('_ns')}_ms" for name in known if name.endswith("_ns")}  # as show/data.py names them
    assert not {key for section in defined.values() for key in section} - known


def test_every_variable_of_makeway_is_on_its_page_and_in_the_code() -> None:
    page = set(re.findall(r"MAKEWAY_[A-Z_]+", (ROOT / "docs" / "reference" / "environment.md").read_text()))
    files = [*SOURCES, ROOT / "tests" / "conftest.py", ROOT / "tests" / "recordings.py"]
    read = {name for path in files for name in re.findall(r"MAKEWAY_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))}
    assert page == read
