"""What overlap costs beside SMs: published and recorded slow-downs, and each of them without each mechanism.

No constant of a mechanism was fitted to a row here: each row says what its prediction was calibrated on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from makeway.model.presets import PresetOptions, load_preset, preset_names
from makeway.model.simulate.mechanisms import DEFAULT, Mechanisms, mechanism_names, switch
from makeway.model.simulate.predict import Prediction, Settings, simulate
from makeway.model.validate.rows import Row, Summary
from makeway.values.control import CommPriority, Control, CopyEngine, LaunchOrder, SmPartition
from makeway.values.device import Device, load_device
from makeway.values.kernel import KernelResources
from makeway.values.timeline import Timeline
from makeway.values.workload import BlockWork, Gemm, KernelOp, Measured, Work, Workload, WorkloadBuilder

_REFEREE = "mechanisms: a cycle-level simulator's runs alone, and power figures of other papers"
_A100, _H100 = "A100-SXM4-80GB", "H100-SXM5-80GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A published figure, and how to predict it with a set of mechanisms."""

    source: str
    device: str
    case: str
    published: float
    predict: Callable[[Mechanisms], float]
    unit: str = "x"
    calibrated_on: str = _REFEREE
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One figure with the mechanisms in use, with each of them flipped, and with none."""

    source: str
    device: str
    case: str
    published: float
    unit: str
    predicted: float
    flipped: dict[str, float]  # by the mechanism that is switched off, or on if it is not in use
    none: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Every figure that interference decides, beside ours, and what each mechanism adds."""

    rows: tuple[Row, ...]
    ablations: tuple[Ablation, ...]
    summary: Summary


def interference() -> Interference:
    """All rows with the mechanisms in use, with each of them flipped, and with none."""
    every = tuple(cases())
    switched = tuple(_ablation(case) for case in every)
    rows = tuple(
        Row(
            source=case.source,
            device=case.device,
            case=case.case,
            published=case.published,
            predicted=ablation.predicted,
            unit=case.unit,
            calibrated_on=case.calibrated_on,
            assumed=case.assumed,
        )
        for case, ablation in zip(every, switched, strict=True)
    )
    return Interference(rows=rows, ablations=switched, summary=_summary(switched))


def _ablation(case: Case) -> Ablation:
    return Ablation(
        source=case.source,
        device=case.device,
        case=case.case,
        published=case.published,
        unit=case.unit,
        predicted=case.predict(DEFAULT),
        flipped={name: case.predict(DEFAULT.flipped(name)) for name in mechanism_names()},
        none=case.predict(Mechanisms.none()),
    )


def _summary(ablations: tuple[Ablation, ...]) -> Summary:
    """The mean error relative to the published figure, and the same with each mechanism flipped."""
    counted = [ablation for ablation in ablations if ablation.published]

    def errors(predicted: Callable[[Ablation], float]) -> list[float]:
        return [abs(predicted(ablation) / ablation.published - 1.0) for ablation in counted]

    def flipped(name: str) -> float:
        return fmean(errors(lambda ablation: ablation.flipped[name]))

    own = errors(lambda ablation: ablation.predicted)
    return Summary(
        source="interference",
        device="all",
        rows=len(counted),
        mae=fmean(own),
        largest=max(own),
        baselines={
            **{switch(name): flipped(name) for name in mechanism_names()},
            "no mechanism": fmean(errors(lambda ablation: ablation.none)),
        },
        note="errors relative to the published figure",
    )


def cases() -> Iterator[Case]:
    """Every figure that interference decides."""
    for some in (_issue_1428, _recorded, _other_reports, _training, _lost_cus):
        yield from some()


# --- a kernel behind a collective that is resident already ------------------------------------


def _beside(
    device: str, block: KernelResources, work: Work, on: Mechanisms, *, path: str = "ring-simple", **more: object
) -> Prediction:
    """A kernel launched behind a long collective of 24 blocks."""
    kind = {"sendrecv": "all-to-all", "ring-ll": "all-reduce", "all-reduce": path}.get(path, "all-gather")
    path = "ring-simple" if path == kind else path
    builder = WorkloadBuilder("kernel behind a collective", ranks=8)
    builder.collective("comm", kind, 2**32, f"nccl-2.21.5/{path}", blocks=24)  # type: ignore[arg-type]
    builder.kernel("kernel", block, work, **more)
    return simulate(builder.done(), load_device(device), (), Settings(engine="class", mechanisms=on))


def _slowdown(*args: object, **more: object) -> float:
    prediction = _beside(*args, **more)  # type: ignore[arg-type]
    (span,) = prediction.timeline.of("compute")
    return span.duration_ns / prediction.t_compute_ns


def _issue_1428() -> Iterator[Case]:
    """NVIDIA/nccl issue 1428: three kernels of a GPT under an all-gather."""
    gemm = KernelResources(threads=128, registers_per_thread=222, smem_bytes=80 * 1024)
    product = Gemm(m=8192, n=4096, k=4096, tile=(128, 128, 32), efficiency=0.79)
    flash = KernelResources(threads=128, registers_per_thread=255, smem_bytes=64 * 1024)
    attention = BlockWork(blocks=1024, flops_per_block=52.1e6, hbm_bytes_per_block=131_072, dtype="bf16")
    small = KernelResources(threads=128, registers_per_thread=32)
    elementwise = BlockWork(blocks=9766, hbm_bytes_per_block=4096, dtype="bf16")
    for case, published, block, work, share, assumed in (
        ("GEMM of 1.18 ms under an all-gather", 2.08 / 1.18, gemm, product, 0.5, "the GEMM's shape is ours"),
        ("attention of 0.18 ms under it", 0.33 / 0.18, flash, attention, 0.5, "the kernel's blocks are ours"),
        ("elementwise of 0.02 ms under it", 2.5, small, elementwise, None, "0.02 and 0.05 ms: between 1.8 and 3.7"),
    ):
        yield Case(
            source="NVIDIA/nccl issue 1428", device=_A100, case=case, published=published,
            predict=lambda on, b=block, w=work, s=share: _slowdown(_A100, b, w, on, share=s),  # type: ignore[misc]
            assumed=(assumed, "24 blocks of NCCL 2.21 on 8 ranks"),
        )  # fmt: skip


def _recorded() -> Iterator[Case]:
    """Kernels of one recording that ran alone and fully beside 24 blocks of NCCL: medians of 3 to 6."""
    wide = KernelResources(threads=256, registers_per_thread=240, smem_bytes=147_456)
    tall = KernelResources(threads=128, registers_per_thread=164, smem_bytes=73_728)
    square = KernelResources(threads=128, registers_per_thread=254, smem_bytes=98_304)
    small = KernelResources(threads=128, registers_per_thread=16)
    gemms = [Measured(time_ns=us * 1e3, blocks=blocks) for us, blocks in ((93, 192), (53, 216), (65, 160))]
    scale = BlockWork(blocks=88_497, hbm_bytes_per_block=4096)
    for case, published, block, work, path, share in (
        ("192-block GEMM beside an LL all-reduce", 168 / 93, wide, gemms[0], "ring-ll", 1.0),
        ("216-block GEMM beside an LL all-reduce", 129.5 / 53, tall, gemms[1], "ring-ll", 0.5),
        ("160-block GEMM beside an LL all-reduce", 121 / 65, square, gemms[2], "ring-ll", 1.0),
        ("192-block GEMM beside send-recv", 99 / 93, wide, gemms[0], "sendrecv", 1.0),
        ("216-block GEMM beside send-recv", 74 / 53, tall, gemms[1], "sendrecv", 0.5),
        ("160-block GEMM beside send-recv", 67 / 65, square, gemms[2], "sendrecv", 1.0),
        ("elementwise kernel beside send-recv", 293.5 / 125, small, scale, "sendrecv", None),
    ):
        yield Case(
            source="recording, HolisticTraceAnalysis test data", device="A100", case=case, published=published,
            predict=lambda on, b=block, w=work, p=path, s=share: _slowdown(  # type: ignore[misc]
                _A100, b, w, on, path=p, share=s
            ),
            assumed=("an A100-SXM4-80GB stands for a PG509-200", "the collectives' sizes and links are not known"),
        )  # fmt: skip


def _other_reports() -> Iterator[Case]:
    hopper = KernelResources(threads=384, registers_per_thread=168, smem_bytes=200 * 1024)
    one_wave = Gemm(m=1536, n=22 * 128, k=8192, tile=(128, 256, 64), efficiency=0.8)
    yield Case(
        source="NVIDIA developer forum 337991",
        device=_H100,
        case="GEMM of exactly 132 blocks beside a 24-block all-gather",
        published=1.70,
        predict=lambda on: _slowdown(_H100, hopper, one_wave, on, share=1.0),
        assumed=("equal block times: the second wave doubles the GEMM",),
    )
    norm = KernelResources(threads=512, registers_per_thread=32)
    backward = BlockWork(blocks=20_000, hbm_bytes_per_block=90_000)
    yield Case(
        source="NVIDIA/nccl issue 338",
        device="V100-SXM2-16GB",
        case="batch norm backward of 2 ms beside an all-reduce (4 to 8 ms)",
        published=3.0,
        predict=lambda on: _slowdown("V100-SXM2-16GB", norm, backward, on, path="all-reduce"),
        assumed=("the device is not named; the kernel's blocks are ours",),
    )
    for name, published, controls in (
        ("overlapped", 2.02 / 2.96, (LaunchOrder(),)),
        ("overlapped on copy engines", 1.77 / 2.96, (CopyEngine(),)),
    ):
        yield Case(
            source="pytorch/pytorch PR 172714",
            device=_H100,
            case=f"GEMM 8192x8192x8192 and all-gather of 64 MiB per rank, {name} over sequential",
            published=published,
            predict=lambda on, c=controls: _gemm_and_gather(c, on),  # type: ignore[misc]
            assumed=("the all-gather is launched first",),
        )
    yield Case(
        source="NVIDIA/nccl issue 1433",
        device="L40S",
        case="send-recv of one block beside a 128-block GEMM, SMs to spare",
        published=2.0,
        predict=_one_block_beside_gemm,
        assumed=("an L40S is the 142-SM device; the GEMM's shape and the link are ours", "published: up to 2"),
    )


def _gemm_and_gather(controls: tuple[Control, ...], mechanisms: Mechanisms) -> float:
    """Time of a large product and an all-gather together over their times alone, added up."""
    builder = WorkloadBuilder("product and all-gather", ranks=8)
    block = KernelResources(threads=384, registers_per_thread=168, smem_bytes=200 * 1024)
    builder.kernel("gemm", block, Gemm(m=8192, n=8192, k=8192, dtype="fp16", tile=(128, 256, 64)), share=1.0)
    builder.collective("gather", "all-gather", 512 * 2**20, "nccl-2.27.5/ring-simple")
    settings = Settings(engine="class", mechanisms=mechanisms)
    prediction = simulate(builder.done(), load_device(_H100), controls, settings)
    return prediction.t_ns / prediction.t_sequential_ns


def _one_block_beside_gemm(mechanisms: Mechanisms) -> float:
    """How much longer a send-recv takes beside GEMMs of 128 blocks that outlast it."""
    builder = WorkloadBuilder("send-recv beside GEMMs", ranks=2)
    block = KernelResources(threads=256, registers_per_thread=168, smem_bytes=72 * 1024)
    builder.collective("comm", "send-recv", 2**24, "nccl-2.21.5/sendrecv", blocks=1)
    for index in range(24):
        builder.kernel(f"gemm {index}", block, Gemm(m=2048, n=2048, k=4096, tile=(128, 256, 32)), share=1.0)
    prediction = simulate(
        builder.done(), load_device("L40S"), (CommPriority(),), Settings(engine="class", mechanisms=mechanisms)
    )
    (span,) = prediction.timeline.of("comm")
    return span.duration_ns / prediction.t_comm_ns


# --- arXiv 2507.03114: training ---------------------------------------------------------------

# Sequential is slower by 10.2 % where overlap slows compute by 18.9 %: communication is 0.189 + 0.102 x 1.189 of it.
_COMM_OVER_COMPUTE = 0.31


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """What overlap costs compute, and what it saves of the whole."""

    compute_slowdown: float
    sequential_over_overlapped: float


def compute_slowdown(
    workload: Workload, device: Device, controls: tuple[Control, ...] = (), mechanisms: Mechanisms = DEFAULT
) -> TrainingCost:
    """How much longer kernels take beside communication than alone: the sum of their spans over the sum alone."""
    settings = Settings(engine="class", mechanisms=mechanisms)
    beside = simulate(workload, device, controls, settings)
    names = {kernel.name for kernel in workload.kernels}
    alone = tuple(replace(op, after=tuple(name for name in op.after if name in names)) for op in workload.kernels)
    only = simulate(replace(workload, operations=alone), device, (), settings)
    return TrainingCost(
        _busy_ns(beside.timeline) / _busy_ns(only.timeline) - 1.0, beside.t_sequential_ns / beside.t_ns - 1.0
    )


def _busy_ns(timeline: Timeline) -> int:
    return sum(span.duration_ns for span in timeline.of("compute"))


@cache
def _training_costs(mechanisms: Mechanisms) -> tuple[TrainingCost, ...]:
    return tuple(
        compute_slowdown(_as_published(device), load_device(device), (CommPriority(),), mechanisms)
        for device in (_A100, _H100, "MI250X")
    )


@cache
def _as_published(device_name: str) -> Workload:
    """A layer of training whose collectives take as long, next to its kernels, as the paper's figures imply."""
    device = load_device(device_name)
    workload = load_preset("fsdp-llama-7b", device, PresetOptions(ranks=8 if device.vendor == "amd" else 4))
    plain = simulate(workload, device, (), Settings(engine="class"))
    scale = _COMM_OVER_COMPUTE * plain.t_compute_ns / plain.t_comm_ns
    operations = tuple(
        op
        if isinstance(op, KernelOp)
        else replace(op, collective=replace(op.collective, size_bytes=int(op.collective.size_bytes * scale)))
        for op in workload.operations
    )
    return replace(workload, operations=operations)


def _training() -> Iterator[Case]:
    assumed = (
        "an FSDP layer of LLaMA-7B on each device, communication at high priority",
        "collectives scaled to 0.31 of the kernels' time, which the paper's means imply",
    )
    figures: tuple[tuple[str, float, Callable[[Mechanisms], float]], ...] = (
        ("mean compute slow-down", 18.9, lambda on: fmean(cost.compute_slowdown for cost in _training_costs(on))),
        ("largest compute slow-down", 40.0, lambda on: max(cost.compute_slowdown for cost in _training_costs(on))),
        (
            "sequential slower than overlapped, mean",
            10.2,
            lambda on: fmean(cost.sequential_over_overlapped for cost in _training_costs(on)),
        ),
        (
            "sequential slower than overlapped, largest",
            26.6,
            lambda on: max(cost.sequential_over_overlapped for cost in _training_costs(on)),
        ),
    )
    for case, published, predict in figures:
        yield Case(
            source="arXiv 2507.03114", device="A100 H100 MI250", case=case, published=published, unit="%",
            predict=lambda on, p=predict: 100 * p(on), assumed=assumed,  # type: ignore[misc]
        )  # fmt: skip


# --- arXiv 2412.14335: fewer CUs --------------------------------------------------------------


@cache
def lost_cus(half: str, cus: int, mechanisms: Mechanisms = DEFAULT) -> float:
    """How much longer one half of ConCCL's GEMMs take without so many of an MI300X's CUs, in percent."""
    device, settings = load_device("MI300X"), Settings(engine="class", mechanisms=mechanisms)
    names = [name for name in preset_names() if name.startswith("conccl-")]
    slower = []
    for name in names[:15] if half == "compute-bound" else names[15:]:
        workload = load_preset(name, device)
        alone = replace(workload, operations=workload.kernels)
        fewer = simulate(alone, device, (SmPartition(cus),), settings)
        slower.append(fewer.t_ns / fewer.t_compute_ns - 1.0)
    return 100 * fmean(slower)


def _lost_cus() -> Iterator[Case]:
    for half, cus, published in (("compute-bound", 32, 17.0), ("compute-bound", 64, 27.0), ("memory-bound", 32, 0.0)):
        yield Case(
            source="arXiv 2412.14335 (second-hand)",
            device="MI300X",
            case=f"{half} GEMM without {cus} of 304 CUs, slower",
            published=published,
            unit="%",
            predict=lambda on, h=half, c=cus: lost_cus(h, c, on),  # type: ignore[misc]
            calibrated_on="nothing: waves and HBM",
            assumed=("shapes are ours: mean over 15",),
        )
