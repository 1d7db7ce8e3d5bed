"""The graph rewriter with the real cuda-bindings and real cubins, on the stand-in driver.

The programs that run on the stand-in are at the end of this file: they are started in processes of their own, so that
the driver is the stand-in there and nowhere else.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from makeway.model.residency import pad_range, resident_blocks
from makeway.read.binaries import inspect_file
from makeway.values.device import Device, load_device
from makeway.values.kernel import KernelResources

DEVICES = ("A40", "A100-SXM4-80GB", "H100-SXM5-80GB")
COMM = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
FILES = {"matmul": "matmul_small", "scale": "scale", "comm": COMM}  # the large tile fits once on an SM, so no pad helps
ROOT = Path(__file__).parents[2]
STREAMS = ("as captured", "shaped", "undone")  # the graph is launched into one after the other

Run = Callable[..., "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What a program printed, and what the driver recorded of its three launches of the graph."""

    said: dict[str, Any]
    launches: dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def cubins(triton_kernels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Triton's cubins and one with the name of a collective."""
    out = tmp_path_factory.mktemp("comm")
    subprocess.run([sys.executable, __file__, "compile", str(out)], cwd=ROOT, check=True, timeout=300)
    for file in triton_kernels.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    return out


@pytest.fixture
def run(cubins: Path, tmp_path: Path) -> Run:
    from tests.standin.build import cuda_driver, environment, shared_place

    driver = cuda_driver(shared_place())

    def start(device: str, *, refuse: str | None = None, **asked: Any) -> Outcome:
        arch = load_device(device).arch
        figures = json.loads((cubins / "figures.json").read_text())
        kernels = {
            key: {
                "file": str(cubins / f"{file}.{arch}.cubin"),
                "name": COMM if key == "comm" else key,
                **({"threads": 128, "shared": 0} if key == "comm" else figures[f"{file}.{arch}.cubin"]),
            }
            for key, file in FILES.items()
        }
        record = tmp_path / "record"
        record.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, __file__, "shape", json.dumps({"kernels": kernels, "device": device, **asked})],
            env={**environment(driver, device=device, record=record, refuse=refuse), "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        rows = [json.loads(line) for line in record.read_text().splitlines()]
        launches = [row["launch"] for row in rows if "launch" in row and row["launch"]["via"] == "graph"]
        streams = list(dict.fromkeys(launch["stream"] for launch in launches))
        assert len(streams) == len(STREAMS)
        by_stream = {
            name: [launch for launch in launches if launch["stream"] == stream]
            for name, stream in zip(STREAMS, streams, strict=True)
        }
        return Outcome(said, by_stream)

    return start


def pad_for(device: Device, kernel: KernelResources) -> tuple[int, int]:
    """(residency, pad) one block below what fits without."""
    wanted = resident_blocks(device, kernel) - 1
    found = pad_range(device, kernel, wanted)
    assert found is not None
    return wanted, found.smallest_bytes


def matmul(cubins: Path, device: Device) -> KernelResources:
    file = cubins / f"{FILES['matmul']}.{device.arch}.cubin"
    (kernel,) = inspect_file(file, reader="native")
    figures = json.loads((cubins / "figures.json").read_text())[file.name]
    return kernel.resources(threads=figures["threads"], smem_dynamic_bytes=figures["shared"])


def other_than(launch: dict[str, Any], *keys: str) -> dict[str, Any]:
    """All that was recorded of a launch, but what is named and what no two launches share."""
    left = {key: value for key, value in launch.items() if key not in (*keys, "stream", "pid", "thread")}
    return {**left, "attributes": {key: value for key, value in launch["attributes"].items() if key not in keys}}


def same(one: list[dict[str, Any]], other: list[dict[str, Any]], *keys: str) -> bool:
    return [other_than(launch, *keys) for launch in one] == [other_than(launch, *keys) for launch in other]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(
    ("executable", "children"),
    [(False, True), (True, False), (True, True)],
    ids=["before instantiation", "instantiated", "instantiated with child graphs"],
)
def test_padded_nodes_have_the_planned_residency_and_all_else_is_as_captured(
    run: Run, cubins: Path, name: str, executable: bool, children: bool
) -> None:
    device = load_device(name)
    kernel = matmul(cubins, device)
    wanted, pad = pad_for(device, kernel)
    outcome = run(name, pad=pad, pattern="matmul", executable=executable, children=children)
    before, after, undone = (outcome.launches[stream] for stream in STREAMS)
    # one by CUfunction, one by CUkernel, one in a child graph, one in its child
    assert [launch["kernel"] for launch in before].count("matmul") == (4 if children else 2)
    for was, now in zip(before, after, strict=True):
        if was["kernel"] == "matmul":
            assert now["smem_bytes"] == was["smem_bytes"] + pad
            assert now["resident_blocks"] == resident_blocks(device, kernel.padded(pad)) == wanted
            assert was["resident_blocks"] == resident_blocks(device, kernel) == wanted + 1
            changed = ("smem_bytes", "resident_blocks", "carve_out", "preferred_shared_memory_carveout")
            assert other_than(was, *changed) == other_than(now, *changed)
            carved = {} if executable else {"preferred_shared_memory_carveout": 100}
            assert now["attributes"] == was["attributes"] | carved
        elif was["kernel"] == COMM:
            assert now["smem_bytes"] == was["smem_bytes"]
            assert now["priority"] == (was["priority"] if executable else -5)
            assert other_than(was, "priority") == other_than(now, "priority")
        else:
            assert other_than(was) == other_than(now)
    assert same(before, undone, "priority")
    assert [launch["priority"] for launch in undone] == [launch["priority"] for launch in before]
    comm = "refused" if executable else "applied"
    assert outcome.said["statuses"] == {"matmul": ["applied"], "scale": ["untouched"], COMM: [comm]}
    assert outcome.said["undone"] == ["applied"]
    assert outcome.said["limits"] == outcome.said["limits before"]


@pytest.mark.parametrize("executable", [False, True], ids=["before instantiation", "instantiated"])
@pytest.mark.parametrize(
    ("refuse", "pad", "words"),
    [
        ("func-attribute", 60_000, "cuFuncSetAttribute returned"),
        ("smem-above:49152", 60_000, "cuGraphKernelNodeSetParams returned"),
        (None, 400_000, "the device allows this kernel"),
    ],
)
def test_what_the_driver_refuses_leaves_the_graph_as_captured(
    run: Run, refuse: str | None, pad: int, words: str, executable: bool
) -> None:
    outcome = run("A100-SXM4-80GB", refuse=refuse, pad=pad, pattern="matmul", executable=executable)
    before, after, _ = (outcome.launches[stream] for stream in STREAMS)
    assert same(before, after, "priority")
    assert outcome.said["statuses"]["matmul"] == ["refused"]
    assert words in outcome.said["details"]["matmul"]
    assert outcome.said["limits"] == outcome.said["limits before"]


def test_a_refused_priority_leaves_comm_as_captured_and_pads_apply(run: Run) -> None:
    outcome = run("H100-SXM5-80GB", refuse="node-attribute", pad=20_000, pattern="matmul", executable=False)
    before, after, _ = (outcome.launches[stream] for stream in STREAMS)
    assert [launch["priority"] for launch in after] == [launch["priority"] for launch in before]
    assert outcome.said["statuses"] == {"matmul": ["applied"], "scale": ["untouched"], COMM: ["refused"]}


def test_every_compute_kernel_is_padded_and_comm_is_not(run: Run) -> None:
    outcome = run("A40", pad=4096, pattern="*", executable=False)
    before, after, _ = (outcome.launches[stream] for stream in STREAMS)
    for was, now in zip(before, after, strict=True):
        assert now["smem_bytes"] - was["smem_bytes"] == (0 if was["kernel"] == COMM else 4096)


def test_ten_thousand_nodes_are_shaped_and_undone(run: Run) -> None:
    outcome = run("H100-SXM5-80GB", pad=8192, pattern="matmul", executable=False, copies=10_000)
    before, after, undone = (outcome.launches[stream] for stream in STREAMS)
    padded = [launch for launch in after if launch["kernel"] == "matmul"]
    assert len(padded) == 10_004
    assert len({launch["smem_bytes"] for launch in padded}) == 1
    assert same(before, undone, "priority")


# --- programs on the stand-in -------------------------------------------------------------------


def compile_comm(out: Path) -> None:
    """A kernel with the name of a collective, for each architecture."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    @triton.jit  # type: ignore[untyped-decorator]
    def ncclDevKernel_AllReduce_Sum_f32_RING_LL(x, y, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N802, N803
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at) + tl.load(y + at))

    types = {"x": "*fp32", "y": "*fp32", "BLOCK": "constexpr"}
    source = ASTSource(ncclDevKernel_AllReduce_Sum_f32_RING_LL, types, {(2,): 1024})
    for capability in (80, 86, 90):
        done = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
        (out / f"{COMM}.sm_{capability}.cubin").write_bytes(done.asm["cubin"])


class Program:
    """Captures a graph with all kinds of kernel nodes through cuda-bindings."""

    def __init__(self, kernels: dict[str, dict[str, Any]], *, clusters: bool) -> None:
        self.driver: Any = importlib.import_module("cuda.bindings.driver")
        self.kernels, self.clusters = kernels, clusters
        self.ask("cuInit", 0)
        self.context = self.ask("cuDevicePrimaryCtxRetain", self.ask("cuDeviceGet", 0))
        self.ask("cuCtxSetCurrent", self.context)
        self.functions = {key: self._function(kernel) for key, kernel in kernels.items()}
        image = Path(kernels["matmul"]["file"]).read_bytes()
        library = self.ask("cuLibraryLoadData", image, [], [], 0, [], [], 0)
        self.library_kernel = self.ask("cuLibraryGetKernel", library, kernels["matmul"]["name"].encode())
        self._arguments: list[Any] = []

    def _function(self, kernel: dict[str, Any]) -> Any:
        module = self.ask("cuModuleLoadData", Path(kernel["file"]).read_bytes())
        function = self.ask("cuModuleGetFunction", module, kernel["name"].encode())
        if kernel["shared"] > 48 * 1024:
            limit = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.ask("cuFuncSetAttribute", function, limit, kernel["shared"])
        return function

    def ask(self, call: str, *arguments: Any) -> Any:
        status, *found = getattr(self.driver, call)(*arguments)
        assert not status, f"{call}: {status}"
        return found[0] if len(found) == 1 else found

    def arguments(self) -> int:
        """The address of an array of pointers to arguments, each launch with others."""
        import ctypes

        values = (ctypes.c_uint64 * 16)(*(len(self._arguments) * 16 + at for at in range(16)))
        pointers = (ctypes.c_void_p * 16)(*(ctypes.addressof(values) + 8 * at for at in range(16)))
        self._arguments.append((values, pointers))
        return ctypes.addressof(pointers)

    def params(self, key: str, *, library: bool = False) -> Any:
        found = self.driver.CUDA_KERNEL_NODE_PARAMS()
        if library:
            found.kern = self.library_kernel
        else:
            found.func = self.functions[key]
        found.gridDimX, found.gridDimY, found.gridDimZ = 8, 1, 1
        found.blockDimX, found.blockDimY, found.blockDimZ = self.kernels[key]["threads"], 1, 1
        found.sharedMemBytes = self.kernels[key]["shared"]
        found.kernelParams = self.arguments()
        return found

    def launch(self, key: str, stream: Any) -> None:
        driver = self.driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = 8, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.kernels[key]["threads"], 1, 1
        config.sharedMemBytes, config.hStream = self.kernels[key]["shared"], stream
        if self.clusters:
            cluster = driver.CUlaunchAttribute()
            cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = 2, 1, 1
            config.attrs, config.numAttrs = [cluster], 1
        self.ask("cuLaunchKernelEx", config, self.functions[key], self.arguments(), 0)

    def graph(self, *, copies: int, children: bool = True) -> Any:
        stream = self.ask("cuStreamCreateWithPriority", 1, -1)
        self.ask("cuStreamBeginCapture", stream, self.driver.CUstreamCaptureMode(0))
        for key in ("matmul", "scale", "comm"):
            self.launch(key, stream)
        graph = self.ask("cuStreamEndCapture", stream)
        self.ask("cuGraphAddKernelNode", graph, [], 0, self.params("matmul", library=True))
        if children:
            self.ask("cuGraphAddChildGraphNode", graph, [], 0, self.child_graph())
        for _ in range(copies):
            self.ask("cuGraphAddKernelNode", graph, [], 0, self.params("matmul"))
        return graph

    def child_graph(self) -> Any:
        inner, child = self.ask("cuGraphCreate", 0), self.ask("cuGraphCreate", 0)
        for key in ("matmul", "comm"):
            self.ask("cuGraphAddKernelNode", inner, [], 0, self.params(key))
        self.ask("cuGraphAddKernelNode", child, [], 0, self.params("matmul"))
        self.ask("cuGraphAddChildGraphNode", child, [], 0, inner)
        return child

    def instantiated(self, graph: Any) -> Any:
        flag = self.driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
        return self.ask("cuGraphInstantiate", graph, int(flag))

    def replay(self, executable: Any) -> None:
        self.ask("cuGraphLaunch", executable, self.ask("cuStreamCreate", 1))

    def limits(self) -> list[int]:
        limit = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        functions = [*self.functions.values(), self.ask("cuKernelGetFunction", self.library_kernel)]
        return [self.ask("cuFuncGetAttribute", limit, function) for function in functions]


def shape(asked: dict[str, Any]) -> None:
    """Launch a graph as captured, shaped and undone, and print the receipts."""
    from makeway.act.cuda.graph import shape_graph, undo
    from makeway.values.control import CommPriority, SmemPad
    from makeway.values.plan import Plan

    program = Program(asked["kernels"], clusters=asked["device"].startswith("H100"))
    graph = program.graph(copies=asked.get("copies", 0), children=asked.get("children", True))
    executable = program.instantiated(graph)
    program.replay(executable)
    before = program.limits()
    plan = Plan(controls=(SmemPad(asked["pad"], asked["pattern"]), CommPriority()))
    receipt = shape_graph(int(graph), plan, executable=int(executable) if asked["executable"] else None)
    program.replay(executable if asked["executable"] else program.instantiated(graph))
    back = undo(receipt, lower_limits=True)
    program.replay(executable if asked["executable"] else program.instantiated(graph))
    kernels = sorted({node.kernel for node in receipt.nodes})
    print(
        json.dumps(
            {
                "statuses": {
                    kernel: sorted({node.status for node in receipt.nodes if node.kernel == kernel})
                    for kernel in kernels
                },
                "details": {node.kernel: node.detail for node in receipt.nodes},
                "undone": sorted({node.status for node in back.nodes}),
                "limits before": before,
                "limits": program.limits(),
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        compile_comm(Path(sys.argv[2]))
    else:
        shape(json.loads(sys.argv[2]))
