"""Exports read by the programs that they are for, where those are installed: XLA's flags, Megatron's reader."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from makeway.act.export.frameworks import DEFAULT_GROUPS
from makeway.act.export.targets import export
from makeway.values.control import CommBlocks, CommPriority, CopyEngine, LaunchOrder
from makeway.values.plan import MadeFor, Plan

PLAN = Plan(controls=(CommPriority(), LaunchOrder(), CommBlocks(16, cluster=2), CopyEngine()))


# --- XLA: jaxlib for CPUs parses the flags of all platforms ------------------------------------------


def _with_flags(flags: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "flags.sh").write_text(flags)
    program = "import jaxlib.xla_client as xla; print(len(xla.make_cpu_client().devices()))"
    shell = f". {tmp_path}/flags.sh; exec {sys.executable} -c '{program}'"
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.run(["sh", "-c", shell], env=environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(find_spec("jaxlib") is None, reason="jaxlib is not installed")
def test_xla_knows_the_flags_and_refuses_others(tmp_path: Path) -> None:
    text = export(PLAN, "xla").text
    assert text.count("--xla_gpu_") >= 5
    done = _with_flags(text, tmp_path)
    assert done.returncode == 0, done.stderr[-500:]
    done = _with_flags(text.replace("max_nchannels=16", "max_channels=16"), tmp_path)
    assert "Unknown flag" in done.stderr


# --- Megatron: its own function, taken from its source, since the package wants GPUs -----------------


def _megatron() -> str:
    spec = find_spec("megatron.core") if find_spec("megatron") else None
    if spec is None or spec.origin is None:
        pytest.skip("megatron-core is not installed")
    return Path(spec.origin).with_name("parallel_state.py").read_text()


def _reader(source: str) -> Any:
    (function,) = (
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == "get_nccl_options"
    )

    class Options:
        def __init__(self, *, is_high_priority_stream: bool) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.config = SimpleNamespace()

    nccl = SimpleNamespace(Options=Options)
    names: dict[str, Any] = {"torch": SimpleNamespace(distributed=SimpleNamespace(ProcessGroupNCCL=nccl))}
    exec(compile(ast.Module([function], []), "parallel_state.py", "exec"), names)
    return names["get_nccl_options"]


def test_megatron_reads_every_setting_of_every_group() -> None:
    source = _megatron()
    yaml = pytest.importorskip("yaml")  # which Megatron itself reads the file with
    settings = yaml.safe_load(export(PLAN, "megatron").text)
    read = _reader(source)
    for group in DEFAULT_GROUPS:
        assert f'get_nccl_options("{group}"' in source, "Megatron has no such group"
        options = read(group, settings)
        assert options.is_high_priority_stream is True
        assert vars(options.config) == {"min_ctas": 16, "max_ctas": 16, "cga_cluster_size": 2}
    assert read("embd", settings) is None


# --- NCCL's example tuner: its grammar and its look-up, written anew from its README -----------------

COLLECTIVES = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"}
ALGORITHMS = {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"}
PROTOCOLS = {"ll", "ll128", "simple"}
LONGEST_LINE = 256  # the plugin reads with fgets into so many bytes
Row = tuple[str, int, int, str, str, int, int, int]


def plugin_rows(text: str) -> list[Row]:
    """The rows as the plugin reads them; where it would skip or guess, this fails."""
    rows = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        assert len(line) < LONGEST_LINE
        fields = line.split(",")
        assert 8 <= len(fields) <= 10, line
        collective, least, most, algorithm, protocol, channels, nodes, ranks = fields[:8]
        assert collective in COLLECTIVES
        assert algorithm in ALGORITHMS
        assert protocol in PROTOCOLS
        assert 0 <= int(least) <= int(most) < 2**64
        rows.append((collective, int(least), int(most), algorithm, protocol, int(channels), int(nodes), int(ranks)))
    return rows


def plugin_answer(rows: list[Row], collective: str, size: int, available: set[str]) -> Row | None:
    """The first row for a call whose algorithm and protocol NCCL can use; -1 fits any number of nodes and ranks."""
    return next(
        (
            row
            for row in rows
            if row[0] == collective
            and row[1] <= size <= row[2]
            and row[6:] == (-1, -1)
            and f"{row[3]}-{row[4]}" in available
        ),
        None,
    )


@pytest.mark.parametrize("path", ["ring-simple", "nvls-simple", "tree-ll128"])
@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_the_example_tuner_takes_the_rows_for_large_calls_only(path: str, collective: str) -> None:
    plan = Plan(controls=(CommBlocks(16, cluster=2),), made_for=MadeFor(library=f"nccl-2.32.3/{path}"))
    rows = plugin_rows(export(plan, "nccl-tuner").text)
    large, everything = 16 * 32 * 1024, {"ring-simple", "ring-ll", "nvls-simple", "tree-ll128"}
    assert plugin_answer(rows, collective, large - 1, everything) is None
    answer = plugin_answer(rows, collective, large, everything)
    assert answer is not None
    assert (f"{answer[3]}-{answer[4]}", answer[5]) == (path, 16)
    fallback = plugin_answer(rows, collective, large, {"ring-simple"})
    assert fallback is not None
    assert fallback[3:6] == ("ring", "simple", 16)
