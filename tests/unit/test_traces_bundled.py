"""The bundled traces: what they hold, who made them, and that they can be made again."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from makeway.read.traces.classify import load_comm_names

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "tests" / "data" / "traces"
COMM = load_comm_names()

# Kernels and communication among them, counted in the original files by an independent script.
COUNTS = {
    "hta/a100_w2_rank0_collective_args": (2_700, 21),
    "hta/a100_w8_rank3": (8_568, 60),
    "hta/v100_w1_ns_resolution_no_nccl": (4_350, 0),
    "hta/v100_w2_rank1": (19_370, 2_020),
    "hta/w128_sampled_rank0": (1_154, 10),
    "hta/w128_sampled_rank1": (1_104, 10),
    "param-dlrm8/rank3": (315, 8),
    "torchrec/a2a_opt4_w4/rank2": (606, 30),
    "torchrec/a2a_opt5_w4/rank0": (616, 32),
    "torchrec/straggler_sleep_w4/rank2": (204, 12),
    "torchrec/tiny_w2/rank0": (177, 12),
    "tracelens/b200_w8_rank0_vllm": (768, 74),
    "tracelens/h100_w1_owlv2_no_nccl": (4_330, 0),
    "tracelens/mi300x_w8_rank0_rccl": (2_995, 17),
    **{f"astra-megatron-tp8/rank{rank}": (690, 84) for rank in range(8)},
}


class Event(msgspec.Struct, gc=False):
    cat: str = ""
    name: str = ""


class Trace(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents")


def files() -> list[Path]:
    """All recordings; those that the package carries itself are here by a link."""
    return [
        Path(where, name)
        for where, _, names in os.walk(TRACES, followlinks=True)
        for name in names
        if name.endswith(".gz")
    ]


@pytest.mark.parametrize("name", COUNTS)
def test_communication_is_found_in_real_traces_as_counted_by_hand(name: str) -> None:
    trace = msgspec.json.decode(gzip.decompress((TRACES / f"{name}.json.gz").read_bytes()), type=Trace)
    kernels = [event.name for event in trace.events if event.cat == "kernel"]
    assert (len(kernels), sum(COMM.find(kernel) is not None for kernel in kernels)) == COUNTS[name]


def test_the_readme_names_every_file() -> None:
    text = (TRACES / "README.md").read_text()
    expanded = set()
    for pattern in re.findall(r"^\| ([\w./{},-]+\.gz) \|", text, re.MULTILINE):
        names = [pattern]
        while braces := re.search(r"\{([^{}]*)\}", names[0]):
            low, dots, high = braces[1].partition("..")
            choices = [str(number) for number in range(int(low), int(high) + 1)] if dots else braces[1].split(",")
            names = [name.replace(braces[0], choice, 1) for name in names for choice in choices]
        expanded |= set(names)
    assert expanded == {str(file.relative_to(TRACES)) for file in files()}


def test_the_bundled_traces_stay_small() -> None:
    assert sum(file.stat().st_size for file in files()) < 8_000_000


def test_no_bundled_trace_names_a_host_or_user() -> None:
    personal = re.compile(rb"compute\.internal|facebook\.com|/home/|/Users/|\"host_?name\"|\"username\"|\"tw_|\"mast_")
    for file in files():
        assert personal.findall(gzip.decompress(file.read_bytes())) == [], file


@pytest.mark.parametrize(
    "name",
    ["param-dlrm8/rank0.json.gz", "tracelens/b200_w8_rank0_vllm.json.gz", "nsys-ai/h100_2gpu_1s.sqlite.gz"],
)
def test_trimming_a_trimmed_trace_changes_nothing(tmp_path: Path, name: str) -> None:
    source = TRACES / name
    if name.endswith(".sqlite.gz"):
        source = tmp_path / "source.sqlite"
        source.write_bytes(gzip.decompress((TRACES / name).read_bytes()))
    again = tmp_path / "again.gz"
    subprocess.run([sys.executable, ROOT / "scripts" / "trim-trace", source, again], check=True)
    small = gzip.decompress((TRACES / name).read_bytes())
    if name.endswith(".sqlite.gz"):  # SQLite counts its writes and names its version in the header
        assert gzip.decompress(again.read_bytes())[100:] == small[100:]
    else:
        assert gzip.decompress(again.read_bytes()) == small
