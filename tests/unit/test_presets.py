"""Presets load and launch on every GPU, hold to what was published, and say what they assume."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from makeway.model.presets import PresetOptions, load_preset, preset_names, preset_summary
from makeway.model.residency import check_launch, resident_blocks
from makeway.model.simulate.compile import compile_program
from makeway.model.simulate.policies import DISPATCHES
from makeway.read.workload_file import parse_workload
from makeway.values.collective import load_footprint
from makeway.values.device import Device, device_names, load_device
from makeway.values.errors import InputError, InvalidKernelError, UnknownNameError, UnsupportedError
from makeway.values.kernel import KernelResources
from makeway.values.workload import BlockWork, Gemm, Workload

MIB = 1 << 20
GPUS = [device for device in map(load_device, device_names()) if device.limits]
A40, A100, H100 = load_device("A40"), load_device("A100-SXM4-40GB"), load_device("H100-SXM5-80GB")
MI250X, MI300X, V100 = load_device("MI250X"), load_device("MI300X"), load_device("V100-SXM2-16GB")
PUBLISHED = ("cb-ar", "cb-a2a", "mb-ar", "mb-a2a")
CONCCL = tuple(f"conccl-{number:02d}" for number in range(1, 31))
LAYERS = (
    "fsdp-llama-7b",
    "fsdp-llama-70b",
    "fsdp-llama-405b",
    "ddp-llama-7b",
    "tp-llama-70b",
    "tp-llama-405b",
    "ep-moe",
)
PAGE = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text()


def gemms(workload: Workload) -> list[Gemm]:
    return [kernel.work for kernel in workload.kernels if isinstance(kernel.work, Gemm)]


# --- all of them -------------------------------------------------------------------------------


def test_the_list_is_complete_and_has_no_name_twice() -> None:
    assert set(preset_names()) == {*PUBLISHED, *CONCCL, *LAYERS, "gemm-ar"}
    assert len(preset_names()) == len(set(preset_names())) == 42


@pytest.mark.parametrize("device", GPUS, ids=lambda device: device.name)
@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_launches_on_every_gpu(name: str, device: Device) -> None:
    workload = load_preset(name, device)
    assert workload.name == name
    assert gemms(workload)
    assert workload.collectives
    for kernel in workload.kernels:
        check_launch(device, kernel.resources)
    for operation in workload.collectives:
        block = load_footprint(operation.library, device.arch).block
        assert block is not None
        check_launch(device, block)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_the_same_every_time_and_says_what_it_assumes(name: str) -> None:
    workload = load_preset(name, H100)
    assert workload == load_preset(name, H100)
    assert all(sentence.endswith(".") for sentence in workload.assumed)
    assert any("GEMM kernel is assumed" in sentence for sentence in workload.assumed)
    assert any("library is assumed" in sentence for sentence in workload.assumed)
    summary = preset_summary(name)
    assert summary
    assert "\n" not in summary
    assert len(summary) <= 100


@pytest.mark.parametrize("name", preset_names())
def test_a_rank_waits_only_for_what_was_launched_before(name: str) -> None:
    workload = load_preset(name, MI300X)
    place = {operation.name: index for index, operation in enumerate(workload.operations)}
    for operation in workload.operations:
        assert all(place[earlier] < place[operation.name] for earlier in operation.after)


def test_an_unknown_preset_suggests_a_known_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'cb-ar'"):
        load_preset("cb-arr", A40)
    with pytest.raises(UnknownNameError, match="did you mean 'ep-moe'"):
        preset_summary("ep_moe")


def test_a_cpu_host_has_no_presets() -> None:
    with pytest.raises(UnsupportedError, match="CPU host"):
        load_preset("cb-ar", load_device("CPU-host"))


def test_the_page_names_every_preset_and_its_file_loads() -> None:
    listed = set(re.findall(r"`([a-z0-9-]+)`", PAGE))
    assert set(preset_names()) - set(CONCCL) <= listed
    assert {"conccl-01", "conccl-15", "conccl-16", "conccl-30"} <= listed
    example = re.search(r"^~~~toml\n(.*?)^~~~", PAGE, re.M | re.S)
    assert example
    workload = parse_workload(example[1].encode(), where="docs/workloads.md")
    assert [operation.stream for operation in workload.operations] == ["compute", "comm", "compute"]


# --- arXiv 2606.09200 --------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("device", [A40, A100, H100, MI250X], ids=lambda device: device.name)
def test_the_published_experiment_has_its_shapes_and_bytes(name: str, device: Device) -> None:
    workload = load_preset(name, device)
    shape = (8192, 8192, 8192) if name.startswith("cb") else (8192, 57344, 8192)
    kind = "all-reduce" if name.endswith("ar") else "all-to-all"
    assert workload.ranks == (8 if device.vendor == "amd" else 4)
    assert {(work.m, work.n, work.k, work.dtype, work.tile) for work in gemms(workload)} == {
        (*shape, "fp32", (64, 64, 32))
    }
    assert {(op.collective.kind, op.collective.size_bytes) for op in workload.collectives} == {(kind, 939_524_096)}
    assert {kernel.resources.smem_bytes for kernel in workload.kernels} == {16 * 1024}


def test_published_collectives_follow_their_gemm_on_one_stream() -> None:
    workload = load_preset("cb-ar", A40)
    assert [op.name for op in workload.operations[:4]] == ["gemm 0", "comm 0", "gemm 1", "comm 1"]
    assert [op.after for op in workload.collectives] == [(kernel.name,) for kernel in workload.kernels]
    assert {op.stream for op in workload.collectives} == {"comm"}
    assert [kernel.stream for kernel in workload.kernels[:5]] == [f"compute{i}" for i in (0, 1, 2, 3, 0)]
    assert len({kernel.stream for kernel in load_preset("cb-ar", MI250X).kernels}) == 2
    assert {op.blocks for op in workload.collectives} == {16}
    assert {op.blocks for op in load_preset("cb-ar", MI250X).collectives} == {32}


def test_published_libraries_depend_on_vendor_and_collective() -> None:
    assert load_preset("cb-ar", A40).collectives[0].library == "nccl-2.27.5/ring-simple"
    assert load_preset("cb-a2a", H100).collectives[0].library == "nccl-2.27.5/sendrecv"
    assert load_preset("mb-a2a", MI250X).collectives[0].library == "rccl-5.4.3/generic"


@pytest.mark.parametrize("x", [2, 16, 128, 1024])
@pytest.mark.parametrize("y", [2, 64, 128, 512])
def test_the_grid_is_bounded_by_the_tiles(x: int, y: int) -> None:
    (work, *_) = gemms(load_preset("cb-ar", A40, PresetOptions(grid=(x, y))))
    assert work.blocks == min(x, 128) * min(y, 128)
    (wide, *_) = gemms(load_preset("mb-ar", A40, PresetOptions(grid=(x, y))))
    assert wide.blocks == min(x, 896) * min(y, 128)


def test_without_a_grid_every_tile_has_a_block() -> None:
    assert gemms(load_preset("cb-ar", A40))[0].blocks == 128 * 128


# --- options -----------------------------------------------------------------------------------


def test_options_are_honoured() -> None:
    options = PresetOptions(
        ranks=2, tile=(64, 64, 64), in_flight=3, iterations=5, library="nccl-2.32.3/ring-simple,threads=288"
    )
    workload = load_preset("cb-ar", A40, options)
    assert workload.ranks == 2
    assert {op.collective.ranks for op in workload.collectives} == {2}
    assert len(workload.kernels) == len(workload.collectives) == 5
    assert [kernel.stream for kernel in workload.kernels] == [f"compute{i % 3}" for i in range(5)]
    assert {kernel.resources.smem_bytes for kernel in workload.kernels} == {32 * 1024}
    assert {op.library for op in workload.collectives} == {"nccl-2.32.3/ring-simple,threads=288"}


def test_a_tile_of_ones_own_scales_shared_memory() -> None:
    workload = load_preset("gemm-ar", A100, PresetOptions(tile=(64, 128, 32)))
    assert gemms(workload)[0].tile == (64, 128, 32)
    assert workload.kernels[0].resources.smem_bytes == 48 * 1024
    assert any("tile of your own" in sentence for sentence in workload.assumed)
    with pytest.raises(InvalidKernelError, match="allows at most"):
        load_preset("gemm-ar", MI300X, PresetOptions(tile=(256, 256, 128)))


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("fsdp-llama-7b", PresetOptions(grid=(2, 2)), "grid"),
        ("conccl-01", PresetOptions(iterations=3), "iterations"),
        ("gemm-ar", PresetOptions(in_flight=2), "in_flight"),
    ],
)
def test_an_option_that_a_preset_does_not_take_is_refused(name: str, options: PresetOptions, what: str) -> None:
    with pytest.raises(InputError, match=f"takes no {what}; it takes ranks"):
        load_preset(name, A40, options)


@pytest.mark.parametrize("name", ["gemm-ar", "cb-ar", "fsdp-llama-7b"])
def test_a_block_of_your_own_takes_the_place_of_the_one_assumed_and_is_named(name: str) -> None:
    block = KernelResources(threads=128, registers_per_thread=100, smem_bytes=20 * 1024)
    workload = load_preset(name, A100, PresetOptions(block=block))
    assert {kernel.resources for kernel in workload.kernels if isinstance(kernel.work, Gemm)} == {block}
    assert any("128 threads, 100 registers, 20 KiB" in sentence for sentence in workload.assumed)


@pytest.mark.parametrize("what", ["ranks", "in_flight", "iterations"])
def test_counts_must_be_positive(what: str) -> None:
    with pytest.raises(InputError, match=what):
        replace(PresetOptions(), **{what: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tp-llama-70b", "ep-moe"])
def test_what_cannot_be_divided_among_the_ranks_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot be divided among 3 ranks"):
        load_preset(name, A40, PresetOptions(ranks=3))


# --- ConCCL, arXiv 2412.14335 ------------------------------------------------------------------

GEMM_FLOPS_PER_S, HBM_BYTES_PER_S, WIRE_BYTES_PER_S = 0.55 * 1307e12, 5.3e12, 7 * 48e9


def comm_over_gemm(workload: Workload) -> float:
    (work,), (exchange,) = gemms(workload), workload.collectives
    gemm_s = max(work.flops / GEMM_FLOPS_PER_S, work.min_bytes / HBM_BYTES_PER_S)
    return exchange.collective.wire_bytes / WIRE_BYTES_PER_S / gemm_s


def test_conccl_pairs_are_independent_distinct_and_of_llama_sizes() -> None:
    workloads = [load_preset(name, MI300X) for name in CONCCL]
    shapes = [(gemms(workload)[0], workload.collectives[0].collective) for workload in workloads]
    assert len(set(shapes)) == 30
    assert [collective.kind for _, collective in shapes] == ["all-gather", "all-to-all"] * 15
    for workload, (work, collective) in zip(workloads, shapes, strict=True):
        assert [op.stream for op in workload.operations] == ["compute", "comm"]
        assert all(op.after == () for op in workload.operations)
        assert workload.collectives[0].blocks is None
        assert workload.ranks == 8
        assert work.dtype == "bf16"
        assert max(work.m, work.n) in (8192, 10240, 16384, 18432, 28672, 53248, 57344, 106496, 128256)
        assert 64 * MIB <= collective.size_bytes <= 3328 * MIB
        assert any("pairing are assumed" in sentence for sentence in workload.assumed)
    assert all(min(work.m, work.n, work.k) >= 8192 for work, _ in shapes[:15])
    assert all(work.m <= 64 for work, _ in shapes[15:])


@pytest.mark.parametrize("half", [CONCCL[:15], CONCCL[15:]])
def test_conccl_pairs_are_balanced(half: tuple[str, ...]) -> None:
    ratios = [comm_over_gemm(load_preset(name, MI300X)) for name in half]
    assert all(0.35 <= ratio <= 2.6 for ratio in ratios)
    assert sum(ratio > 1.15 for ratio in ratios) >= 4  # the collective is longer
    assert sum(ratio < 1 / 1.15 for ratio in ratios) >= 4  # the GEMM is longer
    assert any(1 / 1.15 <= ratio <= 1.15 for ratio in ratios)
    ideal = [1 + min(ratio, 1 / ratio) for ratio in ratios]
    assert sum(ideal) / len(ideal) == pytest.approx(1.62, abs=0.05)  # 1.13x at 21 % of ideal implies 1.62


def test_a_library_gemm_has_one_block_per_sm_which_uses_all_of_it() -> None:
    for device in (A40, A100, H100, V100, MI250X, MI300X):
        (kernel,) = load_preset("conccl-01", device).kernels
        assert resident_blocks(device, kernel.resources) == 1, device.name
        assert kernel.share == 1
    (kernel,) = load_preset("conccl-01", load_device("MI350X")).kernels
    assert kernel.share == 1 / resident_blocks(load_device("MI350X"), kernel.resources) == 0.5
    assert load_preset("conccl-01", H100).kernels[0].resources.threads == 384


# --- layers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("fsdp-llama-7b", 202_375_168),  # 4 x 4096^2 + 3 x 4096 x 11008
        ("fsdp-llama-70b", 855_638_016),
        ("fsdp-llama-405b", 3_187_671_040),
    ],
)
def test_fsdp_moves_one_layers_weights_in_bf16(name: str, parameters: int) -> None:
    workload = load_preset(name, H100)
    assert [op.collective.kind for op in workload.collectives] == ["all-gather", "reduce-scatter", "all-gather"]
    assert {op.collective.size_bytes for op in workload.collectives} == {2 * parameters}
    assert sum(work.flops for work in gemms(workload)) == 3 * 2 * 4096 * parameters  # forward once, backward twice


def test_ddp_reduces_all_gradients_in_buckets_as_they_become_ready() -> None:
    workload = load_preset("ddp-llama-7b", H100)
    sizes = [op.collective.size_bytes for op in workload.collectives]
    assert sum(sizes) == 2 * 202_375_168
    assert set(sizes[:-1]) == {25 * MIB}
    assert sizes[-1] <= 25 * MIB
    order = [kernel.name for kernel in workload.kernels]
    ready = [order.index(op.after[0]) for op in workload.collectives]
    assert all(one <= later for one, later in pairwise(ready))


@pytest.mark.parametrize(("name", "hidden"), [("tp-llama-70b", 8192), ("tp-llama-405b", 16384)])
def test_tp_reduces_activations_and_divides_every_gemm(name: str, hidden: int) -> None:
    workload = load_preset(name, H100)
    assert [op.collective.kind for op in workload.collectives] == ["all-reduce"] * 4
    assert {op.collective.size_bytes for op in workload.collectives} == {4096 * hidden * 2}
    whole = sum(work.flops for work in gemms(load_preset(f"fsdp-{name[3:]}", H100))) / 3
    assert sum(work.flops for work in gemms(workload)) == 2 * whole / 8  # two micro-batches over eight ranks


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ep_sends_each_token_to_two_experts_and_back(ranks: int) -> None:
    workload = load_preset("ep-moe", MI300X, PresetOptions(ranks=ranks))
    assert {(op.collective.kind, op.collective.size_bytes) for op in workload.collectives} == {
        ("all-to-all", 4096 * 2 * 4096 * 2)
    }
    assert {work.m for work in gemms(workload)} == {4096, 8192}
    assert load_preset("ep-moe", H100).collectives[0].library == "nccl-2.32.3/sendrecv"


@pytest.mark.parametrize("name", ["tp-llama-70b", "ep-moe"])
def test_one_micro_batch_computes_while_the_other_exchanges(name: str) -> None:
    workload = load_preset(name, H100)
    order = [operation.name for operation in workload.operations]
    first, second = workload.collectives[:2]
    between = order[order.index(first.name) + 1 : order.index(second.name)]
    assert first.name.startswith("a ")
    assert between
    assert all(name.startswith("b ") for name in between)


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_has_a_memory_bound_norm(name: str) -> None:
    norms = [kernel for kernel in load_preset(name, H100).kernels if isinstance(kernel.work, BlockWork)]
    assert norms
    for norm in norms:
        assert (norm.resources.threads, norm.resources.registers_per_thread) == (256, 40)


def test_volta_multiplies_fp16_with_the_last_library_that_knows_it() -> None:
    workload = load_preset("fsdp-llama-7b", V100)
    assert {work.dtype for work in gemms(workload)} == {"fp16"}
    assert {op.library for op in workload.collectives} == {"nccl-2.27.5/ring-simple"}
    assert any("fp16 in place of bf16" in sentence for sentence in workload.assumed)


@pytest.mark.parametrize("name", CONCCL)
def test_half_of_conccls_products_are_bound_by_memory_in_the_models_own_roofline(name: str) -> None:
    (work,) = gemms(load_preset(name, MI300X))
    compiled = compile_program(load_preset(name, MI300X), MI300X, (), dispatch=DISPATCHES["cut-ahead"]).program.ops[0]
    hbm_s = compiled.hbm_per_ns * compiled.work_ns * compiled.blocks / HBM_BYTES_PER_S
    bound = "memory" if hbm_s > work.flops / GEMM_FLOPS_PER_S else "compute"
    assert bound == ("compute" if name in CONCCL[:15] else "memory")
    assert f"{bound}-bound" in preset_summary(name)
