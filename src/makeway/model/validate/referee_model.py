"""The referee's kernels as a program of the engine, each scaled so that it takes its published time alone.

Times are core cycles in place of nanoseconds. The constants were chosen on runs of one kernel alone
(docs/model.md, "An independent referee"); no overlap run helped to choose any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log
from statistics import median

from makeway.model.residency import Need, capacity, need, room_left
from makeway.model.simulate.driver import run
from makeway.model.simulate.program import EngineOp, Program, Site, Turnaround
from makeway.values.device import SmLimits
from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources

SM = SmLimits(
    partitions=1,  # the referee's schedulers share one register file
    registers=65_536,
    register_unit=256,
    max_registers_per_thread=255,
    warp_threads=32,
    max_warps=64,
    max_blocks=32,
    max_threads_per_block=1024,
    smem_bytes=98_304,
    smem_block_bytes=98_304,
    smem_default_block_bytes=49_152,
    smem_reserved_bytes=0,
    smem_unit_bytes=256,
    carveouts_bytes=(),
)
CORE_MHZ = 1132.0
DRAM_BYTES_PER_DRAM_CYCLE = 64.0  # two channels of 32 B
L2_BYTES = 384 * 1024
# The part of DRAM's peak that a stream of reads and writes can reach, and how sharply latency rises before it:
# from the communication kernel alone with 1, 2, 4 and 8 blocks.
DRAM_REACHABLE = 0.78
DRAM_KNEE = 2.06
# The part of its time that a group of 256 threads keeps its SM's issue and load/store slots busy, alone and with DRAM
# idle. Communication: from 256 against 512 threads per block. Products: from 1, 2, 3 and 4 blocks per SM.
GROUP_THREADS = 256
COMM_SM_PART = 0.31
GEMM_SM_PART = 0.85
# From the end of a block to the start of the next in its room: 860, 1,290, 1,670 and 2,280 cycles with 1 to 4 blocks.
TURNAROUND = Turnaround(base_ns=365.0, per_block_ns=464.0)
# The part of the spread of block times that is between blocks of one wave; the rest is between waves, the first of
# which is slow. From blocks of the product alone with 3 and 4 per SM (0.61, 0.66); with 1 and 2 it is 0.33 and 0.23.
SPREAD_WITHIN_WAVE = 0.6
SEEDS = range(7)
KNOWN_KERNELS = ("gemm", "comm")
_TRIALS = 12
_NO_SHARE = 1e-9  # of an SM: no neighbour notices
_CLOSE = 5e-4


class UnpredictableError(InputError):
    """A scenario that the model has no inputs for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """Which mechanisms a prediction uses."""

    turnaround: bool = True
    sm_neighbours: bool = True
    dram_latency: bool = True
    block_spread: bool = True
    l2_state: bool = True


ALL = Mechanisms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a kernel's time and traffic grow with: the work of one block, and the bytes of all."""

    block: float
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel as launched."""

    name: str
    stream: str
    blocks: int
    threads: int
    registers: int
    smem_bytes: int
    args: str
    sms: int
    dram_mhz: float
    l2_at_start: str

    @property
    def is_comm(self) -> bool:
        return self.name.startswith("comm")

    @property
    def groups(self) -> float:
        """Groups of 256 threads in a block."""
        return max(self.threads / GROUP_THREADS, 1.0)

    @property
    def sm_part(self) -> float:
        return COMM_SM_PART if self.is_comm else GEMM_SM_PART

    @property
    def crowded(self) -> float:
        """How much the groups of one block slow each other."""
        return 1.0 + self.sm_part**2 * (self.groups - 1.0)

    @property
    def size(self) -> Size | None:
        """The work that `args` names: MxNxK of a product, blocks x floats of communication."""
        try:
            numbers = [int(number) for number in self.args.split("x")]
        except ValueError:
            return None
        match numbers:
            case [_, floats] if self.is_comm:
                return Size(block=floats / self.blocks / self.groups * self.crowded, bytes=floats)
            case [m, n, k] if not self.is_comm:
                return Size(block=m * n * k / self.blocks, bytes=m * n + m * k + k * n)
            case _:
                return None

    @property
    def need(self) -> Need:
        return need(
            SM,
            KernelResources(threads=self.threads, registers_per_thread=self.registers, smem_bytes=self.smem_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """One kernel by itself: medians over replicas."""

    scenario: str
    launch: Launch
    total: float
    block_mean: float
    block_spread: float  # standard deviation over mean
    dram_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The three times of a run: total, start of the first communication kernel, and its length."""

    total: float
    start: float | None
    comm: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the model says about a run, and the published times alone that it started from."""

    times: Times
    alone: tuple[float, ...]
    assumed: tuple[str, ...]


def predict(launches: tuple[Launch, ...], alone: tuple[Alone, ...], mechanisms: Mechanisms) -> Predicted:
    """The times of kernels launched together, each of which the referee also ran alone."""
    inputs = [_input(launch, alone) for launch in launches]
    kernels = [_parts(given, mechanisms, block_cycles(given.alone, mechanisms)) for given in inputs]
    if mechanisms.l2_state:
        kernels = _written_back_once(launches, inputs, kernels, mechanisms)
    runs = [_run(launches, kernels, mechanisms, seed) for seed in _seeds(mechanisms)]
    comm = next((index for index, launch in enumerate(launches) if launch.is_comm), None)
    return Predicted(
        times=Times(
            total=median(max(span.end for span in spans) for spans in runs),
            start=None if comm is None else median(spans[comm].start for spans in runs),
            comm=None if comm is None else median(spans[comm].end - spans[comm].start for spans in runs),
        ),
        alone=tuple(given.alone.total for given in inputs),
        assumed=tuple(dict.fromkeys(given.assumed for given in inputs if given.assumed)),
    )


def _seeds(mechanisms: Mechanisms) -> range:
    return SEEDS if mechanisms.block_spread else range(1)


@dataclass(frozen=True, slots=True)
class _Input:
    """A kernel as launched and the run alone that describes it, scaled where that was another launch of it."""

    launch: Launch
    alone: Alone
    cycles: float = 1.0  # of a block, relative to the run alone
    dram_bytes: float = 0.0
    assumed: str = ""


def _input(launch: Launch, alone: tuple[Alone, ...]) -> _Input:
    """The run of this kernel alone, or the nearest one of another launch of it."""
    if not launch.name.startswith(KNOWN_KERNELS):
        raise UnpredictableError(f"unknown kernel {launch.name}; names start with {' or '.join(KNOWN_KERNELS)}")
    _wave(launch)
    candidates = [given for given in alone if given.launch.name == launch.name]
    if not candidates:
        raise UnpredictableError(f"no run of {launch.name} alone in this table")
    given = min(candidates, key=lambda other: _distance(launch, other.launch))
    if not _distance(launch, given.launch):
        return _Input(launch, given, dram_bytes=given.dram_bytes)
    size, size_then = launch.size, given.launch.size
    if launch.args != given.launch.args and not (size and size_then):
        raise UnpredictableError(
            f"{launch.name} {launch.args} has no run alone, and its size is not known from its args"
        )
    if not launch.is_comm and launch.threads != given.launch.threads:
        raise UnpredictableError(f"no run of {launch.name} with {launch.threads} threads alone in this table")
    written_back = (launch.l2_at_start == "modified") - (given.launch.l2_at_start == "modified")
    grown = size.bytes / size_then.bytes if size and size_then else 1.0
    return _Input(
        launch,
        given,
        cycles=size.block / size_then.block if size and size_then else 1.0,
        dram_bytes=max(given.dram_bytes + written_back * L2_BYTES, 0.0) * grown,
        assumed=f"no run of this {launch.name} alone: scaled from {given.scenario}",
    )


def _distance(launch: Launch, other: Launch) -> int:
    """How unlike two launches of a kernel are; 0: the same."""
    return (
        16 * (launch.args != other.args)
        + 8 * (launch.threads != other.threads)
        + 8 * (launch.blocks != other.blocks)
        + 4 * (launch.l2_at_start != other.l2_at_start)
        + 2 * (launch.sms != other.sms)
        + 2 * (launch.dram_mhz != other.dram_mhz)
        + ((launch.smem_bytes, launch.registers) != (other.smem_bytes, other.registers))
    )


# --- programs ----------------------------------------------------------------------------------

_Parts = tuple[EngineOp, ...]  # one kernel: its first wave and the rest, or all of it


@dataclass(frozen=True, slots=True)
class _Span:
    start: float
    end: float


def _run(launches: Sequence[Launch], kernels: Sequence[_Parts], mechanisms: Mechanisms, seed: int) -> list[_Span]:
    """When each kernel starts and ends. A kernel waits for the one before it in its stream."""
    ops: list[EngineOp] = []
    last: dict[str, tuple[int, ...]] = {}
    numbers: list[tuple[int, ...]] = []
    for launch, parts in zip(launches, kernels, strict=True):
        mine = tuple(range(len(ops), len(ops) + len(parts)))
        after = last.get(launch.stream, ())
        ops += [replace(op, stream=str(number), after=after) for number, op in zip(mine, parts, strict=True)]
        last[launch.stream] = mine
        numbers.append(mine)
    times = run(_program(launches[0], tuple(ops), mechanisms, seed), engine="block").times
    return [
        _Span(min(times[number].started_ns for number in mine), max(times[number].ended_ns for number in mine))
        for mine in numbers
    ]


def _program(launch: Launch, ops: tuple[EngineOp, ...], mechanisms: Mechanisms, seed: int) -> Program:
    peak = DRAM_BYTES_PER_DRAM_CYCLE * launch.dram_mhz / CORE_MHZ
    return Program(
        sm=SM,
        sites=(Site(part=None, gpc=0, sms=launch.sms),),
        ranks=1,
        ops=ops,
        hbm_per_ns=peak * DRAM_REACHABLE if mechanisms.dram_latency else peak,
        hbm_knee=DRAM_KNEE if mechanisms.dram_latency else None,
        saturation="soft",
        turnaround=TURNAROUND if mechanisms.turnaround else Turnaround(),
        seed=seed,
    )


def _parts(given: _Input, mechanisms: Mechanisms, alone_cycles: float) -> _Parts:
    """A kernel of whose run alone each block takes `alone_cycles`, alone on an SM and with DRAM idle.

    Its first wave is apart: that is when it pushes the modified lines of the kernel before it out of L2.
    """
    launch, alone = given.launch, given.alone
    block_cycles, part = alone_cycles * given.cycles, launch.sm_part
    neighbours = mechanisms.sm_neighbours or not launch.is_comm
    share = part * launch.groups if neighbours else _NO_SHARE
    spread = alone.block_spread * SPREAD_WITHIN_WAVE if mechanisms.block_spread else 0.0

    def op(blocks: int, dram_bytes: float) -> EngineOp:
        return EngineOp(
            name=launch.name,
            kind="kernel",
            block=launch.need,
            blocks=blocks,
            work_ns=block_cycles * share,
            share=share,
            exposure=part / launch.crowded if neighbours else 0.0,
            memory=(1.0 - part) / launch.crowded,
            hbm_per_ns=dram_bytes / blocks / (block_cycles * share),
            jitter=spread,
        )

    first = _wave(launch)
    traffic = given.dram_bytes * _running_part(alone, mechanisms)
    if not mechanisms.l2_state or launch.blocks <= first or launch.l2_at_start != "modified":
        return (op(launch.blocks, traffic),)
    old = min(L2_BYTES, traffic)
    each = (traffic - old) / launch.blocks
    return op(first, old + each * first), op(launch.blocks - first, each * (launch.blocks - first))


def _wave(launch: Launch) -> int:
    """Blocks resident at once on the empty device."""
    each = capacity(launch.need, room_left(SM, ()))
    if not each:
        raise UnpredictableError(f"a block of {launch.name} never fits on an SM")
    return each * launch.sms


def _running_part(given: Alone, mechanisms: Mechanisms) -> float:
    """The part of a kernel's traffic that falls into its blocks' time; the rest drains during turnarounds."""
    if not mechanisms.turnaround:
        return 1.0
    waves = -(-given.launch.blocks // _wave(given.launch))
    gap = TURNAROUND.ns(_wave(given.launch) // given.launch.sms) * (waves - 1) / waves
    return given.block_mean / (given.block_mean + gap)


@lru_cache(maxsize=512)
def block_cycles(alone: Alone, mechanisms: Mechanisms) -> float:
    """The block time, alone on an SM and with DRAM idle, for which the model gives the published total alone."""
    given, launches = _Input(alone.launch, alone, dram_bytes=alone.dram_bytes), (alone.launch,)
    cycles, slope = alone.block_mean / 2, 1.0
    before: tuple[float, float] | None = None
    for _ in range(_TRIALS):
        parts = _parts(given, mechanisms, cycles)
        total = median(_run(launches, (parts,), mechanisms, seed)[0].end for seed in _seeds(mechanisms))
        if abs(total / alone.total - 1.0) < _CLOSE:
            break
        if before is not None and cycles != before[0]:
            slope = log(total / before[1]) / log(cycles / before[0])
        before = (cycles, total)
        cycles *= (alone.total / total) ** (1.0 / min(max(slope, 0.2), 2.0))
    return cycles


def _written_back_once(
    launches: tuple[Launch, ...], inputs: list[_Input], kernels: list[_Parts], mechanisms: Mechanisms
) -> list[_Parts]:
    """The kernels with less traffic where several start together on an L2 full of modified lines.

    Alone each of them writes all those lines back; together they do it once.
    """
    if launches[0].l2_at_start != "modified":
        return kernels
    spans = _run(launches, kernels, mechanisms, 0)
    together = [index for index, span in enumerate(spans) if span.start == 0.0]
    traffic = sum(inputs[index].dram_bytes for index in together)
    if not traffic:
        return kernels
    saved = (len(together) - 1) * L2_BYTES / traffic  # of each kernel's bytes, all in its first wave
    return [
        (_with_less(parts[0], saved * inputs[index].dram_bytes), *parts[1:]) if index in together else parts
        for index, parts in enumerate(kernels)
    ]


def _with_less(op: EngineOp, dram_bytes: float) -> EngineOp:
    """A kernel's first wave that moves fewer bytes."""
    return replace(op, hbm_per_ns=max(op.hbm_per_ns - dram_bytes / (op.blocks * op.work_ns), 0.0))
