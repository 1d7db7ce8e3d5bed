"""How long shaping a CUDA graph takes, with the real cuda-bindings on the stand-in driver. Goal: 0.5 s, 10,000 nodes.

The stand-in answers at once and launches nothing: the time is that of makeway and cuda-bindings, not of a real driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import line

ROOT = Path(__file__).parents[1]
ORACLE = ROOT / "tests" / "oracle"
DEVICE, ARCH = "H100-SXM5-80GB", "sm_90"
NODES, ROUNDS = 10_000, 15


def on_the_standin(where: Path) -> None:
    """Start this file again, in a process whose driver is the stand-in."""
    from tests.standin.build import cuda_driver, environment

    for script in (["compile_kernels.py"], ["test_graph_standin.py", "compile"]):
        subprocess.run([sys.executable, str(ORACLE / script[0]), *script[1:], str(where)], check=True)
    env = environment(cuda_driver(where / "standin"), device=DEVICE, record=None)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run([sys.executable, __file__, str(where)], env={**env, "PYTHONPATH": path}, check=True)


def rounds(kernels: Path) -> None:
    from tests.oracle.test_graph_standin import COMM, FILES, Program

    from makeway.act.cuda.graph import shape_graph, undo
    from makeway.values.control import CommPriority, SmemPad
    from makeway.values.plan import Plan

    figures = json.loads((kernels / "figures.json").read_text())
    found = {
        key: {"file": str(kernels / f"{file}.{ARCH}.cubin"), "name": key, **figures.get(f"{file}.{ARCH}.cubin", {})}
        for key, file in FILES.items()
    }
    found["comm"] |= {"name": COMM, "threads": 128, "shared": 0}
    program = Program(found, clusters=True)
    graph = program.graph(copies=NODES, children=False)
    executable = program.instantiated(graph)
    plan = Plan(controls=(SmemPad(8192, "matmul"), CommPriority()))
    seconds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for case, target in (("before instantiation", None), ("graph and instantiated graph", int(executable))):
            started, used = time.perf_counter(), time.process_time()
            receipt = shape_graph(int(graph), plan, executable=target)
            seconds.setdefault(f"shape, {case}", []).append(time.perf_counter() - started)
            seconds.setdefault(f"shape, {case}, CPU", []).append(time.process_time() - used)
            started = time.perf_counter()
            undo(receipt)
            seconds.setdefault(f"undo, {case}", []).append(time.perf_counter() - started)
    padded = sum(node.before.smem_bytes != node.after.smem_bytes for node in receipt.nodes)
    print(f"{len(receipt.nodes):,} kernel nodes, {padded:,} of them padded ({DEVICE})")
    for name, values in seconds.items():
        print(line(name, values))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if len(sys.argv) > 1:
        rounds(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            on_the_standin(Path(scratch))
