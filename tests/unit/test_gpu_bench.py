"""The whole loop of a rank with a GPU, on a torch that computes on the CPU and is strict about what waits for what.

Each rank is a thread. Streams keep their own clock and the set of launches they have waited for; a launch that touches
what another, not waited for, reads or writes is an error. So times, spans and orders are those of the loop itself.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.test_gpu_overlap import Words

from makeway.act.cuda.backend import CudaBackend
from makeway.act.cuda.library_gemm import library_gemm
from makeway.act.cuda.machine import GpuMachine, look
from makeway.act.measure.bench import run_bench, with_variants
from makeway.act.measure.gpus import gpu_ranks, planner_variants
from makeway.act.measure.job import Job
from makeway.act.measure.launch import RankFailedError
from makeway.act.measure.outcome import Bench
from makeway.act.measure.variants import OVERLAP, PLANNED, SEQUENTIAL, parse_variant, variant_name
from makeway.act.measure.wire import decode_bench, decode_job, encode_bench, encode_job
from makeway.act.triton.config import GemmConfig
from makeway.show.bench import bench_data
from makeway.values.control import CommBlocks, CommPriority, Control, CopyEngine, LaunchOrder
from makeway.values.device import load_device
from makeway.values.errors import InputError, UnsupportedError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch without numpy warns when it is loaded
    real = pytest.importorskip("torch")
    from makeway.act.measure.ranks import gpu
    from makeway.act.measure.ranks.gpu_pairs import exact_reductions

GEMM_MS, COMM_MS = 3.0, 2.0
STEPS, SIZE = 4, 64 * 1024
POOL = 32


# --- ranks that meet ----------------------------------------------------------------------------


class Meeting:
    """Where the ranks of one test exchange values."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.slots = ranks, dict[int, Any]()
        self.barrier = threading.Barrier(ranks, timeout=60)

    def everyone(self, rank: int, value: Any) -> list[Any]:
        self.slots[rank] = value
        self.barrier.wait()
        found = [self.slots[other] for other in range(self.ranks)]
        self.barrier.wait()
        return found


class World:
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.ranks = meeting, rank, meeting.ranks

    def barrier(self) -> None:
        self.meeting.everyone(self.rank, None)

    def everywhere(self, value: Any, kind: Any) -> list[Any]:
        """Through JSON, as real ranks send values."""
        sent = [msgspec.json.encode(each) for each in self.meeting.everyone(self.rank, value)]
        return [msgspec.json.decode(each, type=kind) for each in sent]

    def gathered(self, value: Any, kind: Any) -> list[Any] | None:
        values = self.everywhere(value, kind)
        return values if self.rank == 0 else None

    def broadcast(self, decide: Callable[[], Any], kind: Any) -> Any:
        decided = self.meeting.everyone(self.rank, decide() if self.rank == 0 else None)[0]
        return msgspec.json.decode(msgspec.json.encode(decided), type=kind)


# --- a strict GPU -------------------------------------------------------------------------------


class Stream:
    """What is called on a stream that takes part in a capture becomes part of the graph."""

    def __init__(self, device: int | None = None, priority: int = 0) -> None:
        self.priority, self.done, self.time_ms = max(priority, -5), set[int](), 0.0
        self.capture: Graph | None = None

    def priority_range(self) -> tuple[int, int]:
        return 0, -5

    def run(self, work: Callable[[], None]) -> None:
        """Now, or at each replay of the graph that is being captured."""
        if self.capture is None:
            work()
        else:
            self.capture.add(self, work)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def record_event(self) -> Event:
        event = Event(self)
        event.record()
        return event

    def wait_event(self, event: Event) -> None:
        if event.capture is not None:
            event.capture.join(self, event)

        def wait() -> None:
            self.done |= event.done
            self.time_ms = max(self.time_ms, event.time_ms)

        self.run(wait)


class Graph:
    """torch.cuda.CUDAGraph: work in the order of its capture, on streams that fork from one and join it again.

    CUDA C++ Programming Guide, "Cross-stream dependencies and events": an event of a captured stream takes the stream
    that waits for it into the capture, and all of them must have joined the first one when the capture ends.
    """

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.origin: Stream | None = None
        self.unjoined: dict[Stream, set[Stream]] = {}  # by stream: those whose work it has not waited for
        self.streams: set[Stream] = set()

    def begin(self, stream: Stream) -> None:
        assert stream.capture is None, "captures do not nest"
        self.origin, stream.capture = stream, self
        self.streams.add(stream)

    def end(self) -> None:
        assert self.origin is not None
        missing = self.unjoined.get(self.origin, set())
        for stream in self.streams:
            stream.capture = None
        assert not missing, "the capture ends with work that its first stream does not wait for"

    def add(self, stream: Stream, work: Callable[[], None]) -> None:
        self.work.append(work)
        for other in self.streams - {stream}:
            self.unjoined.setdefault(other, set()).add(stream)

    def join(self, stream: Stream, event: Event) -> None:
        assert isinstance(event.stream, Stream)
        assert stream.capture in (None, self), "a stream of another capture"
        if stream.capture is None:
            stream.capture = self
            self.streams.add(stream)
            self.unjoined[stream] = set(self.streams - {stream})
        self.unjoined.get(stream, set()).difference_update({event.stream} | event.joined)

    def replay(self) -> None:
        for work in self.work:
            work()


class Event:
    def __init__(self, stream: Stream | Callable[[], Stream]) -> None:
        self.stream, self.done, self.time_ms = stream, set[int](), -1.0
        self.capture: Graph | None = None
        self.joined: set[Stream] = set()

    def record(self) -> None:
        stream = self.stream if isinstance(self.stream, Stream) else self.stream()
        assert stream.capture is None or stream is self.stream, "a time inside a graph cannot be read"
        self.capture = stream.capture
        if self.capture is not None:
            self.joined = self.capture.streams - self.capture.unjoined.get(stream, set())

        def record() -> None:
            self.done, self.time_ms = set(stream.done), stream.time_ms

        stream.run(record)

    def synchronize(self) -> None:
        assert self.time_ms >= 0, "an event that was never recorded"

    def elapsed_time(self, end: Event) -> float:
        assert min(self.time_ms, end.time_ms) >= 0, "an event that was never recorded"
        return end.time_ms - self.time_ms


class Options:
    def __init__(self) -> None:
        self.is_high_priority_stream = False
        self.config = SimpleNamespace(min_ctas=-1, max_ctas=-1, cga_cluster_size=-1, cta_policy=-1)


class Peers:
    """Symmetric memory of all ranks."""

    def __init__(self, meeting: Meeting, rank: int, buffer: Any) -> None:
        self.meeting, self.rank, self.world_size = meeting, rank, meeting.ranks
        self.buffers = meeting.everyone(rank, buffer)

    def get_buffer(self, rank: int, sizes: Any, dtype: Any) -> Any:
        return self.buffers[rank]

    def barrier(self) -> None:
        self.meeting.everyone(self.rank, None)


class StrictTorch:
    """One rank's torch: tensors of the CPU, streams and collectives of our own."""

    float32, bfloat16, float8_e4m3fn = real.float32, real.bfloat16, real.float8_e4m3fn
    capability = (9, 0)

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.launches, self.groups = meeting, rank, 0, list[str]()
        self.touched: list[tuple[int, int, int, bool]] = []  # from, to, launch, whether it wrote
        self.current, self.nccl = [Stream()], dict[object, Stream]()
        self.__version__ = "2.13.0"
        self.version = SimpleNamespace(cuda="13.0", hip=None)
        self.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False)))
        self.multiplied: set[Any] = set()  # types that the library was given
        self._C = SimpleNamespace()
        self.device = lambda kind, index=None: (kind, index)
        facts = SimpleNamespace(
            name="H100",
            multi_processor_count=132,
            major=self.capability[0],
            minor=self.capability[1],
            shared_memory_per_block_optin=232_448,
        )
        green = SimpleNamespace(create=lambda **_: SimpleNamespace(Stream=Stream), Stream=Stream)
        self.handed = {0: 0, -5: 0}
        self.pool = {priority: [Stream(None, priority) for _ in range(POOL)] for priority in self.handed}
        self.cuda = SimpleNamespace(
            Stream=self._from_pool,
            Event=lambda enable_timing: Event(lambda: self.current[-1]),
            current_stream=lambda: self.current[-1],
            stream=self._stream,
            synchronize=self._synchronize,
            CUDAGraph=Graph,
            graph=self._captured,
            device=lambda _: nullcontext(),
            device_count=lambda: 8,
            current_device=lambda: rank,
            get_device_properties=lambda _: facts,
            nccl=SimpleNamespace(version=lambda: (2, 30, 7)),
            green_contexts=SimpleNamespace(GreenContext=green),
        )
        self.distributed = SimpleNamespace(
            is_nccl_available=lambda: True,
            is_initialized=lambda: True,
            ProcessGroupNCCL=SimpleNamespace(Options=Options, NCCL_CTA_POLICY_ZERO=2),
            new_group=self._new_group,
            destroy_process_group=lambda group: self.groups.append("destroyed"),
            group=SimpleNamespace(WORLD="world"),
            all_reduce=self._all_reduce,
            all_gather_into_tensor=self._all_gather,
            all_to_all_single=self._all_to_all,
            reduce_scatter_tensor=self._reduce_scatter,
            _symmetric_memory=SimpleNamespace(
                empty=lambda *sides, dtype, device: real.empty(*sides, dtype=dtype),
                rendezvous=lambda buffer, group: Peers(meeting, rank, buffer),
            ),
        )

    def _from_pool(self, device: int | None = None, priority: int = 0) -> Stream:
        """torch hands out 32 streams of a priority in turn (PyTorch, c10/cuda/CUDAStream.h, stream pool note)."""
        self.handed[priority] += 1
        return self.pool[priority][self.handed[priority] % POOL]

    # --- tensors

    def empty(self, sides: Any, *, dtype: Any, device: str) -> Any:
        assert device == "cuda"
        return real.empty(sides, dtype=dtype)

    def randint(self, low: int, high: int, sides: Any, *, generator: Any, device: str) -> Any:
        assert device == "cpu"
        return real.randint(low, high, sides, generator=generator)

    def Generator(self, device: str) -> Any:  # noqa: N802
        assert device == "cpu", "CUDA's generator gives other numbers on another model of GPU"
        return real.Generator()

    def ones(self, sides: Any, *, dtype: Any, device: str) -> Any:
        assert device == "cuda"
        return real.ones(sides, dtype=dtype)

    def mm(self, a: Any, b: Any, *, out_dtype: Any = None, out: Any = None) -> Any:
        """Operands of one type; another type of result is fp32 and is named (PyTorch, Blas.cpp, _mm_dtype_out_cuda)."""
        if out is None:
            return real.mm(a, b)
        assert a.dtype == b.dtype
        assert (out_dtype or a.dtype) == out.dtype == real.float32
        self._library(a, b, out)
        return out

    def _scaled_mm(self, a: Any, b: Any, *, scale_a: Any, scale_b: Any, out_dtype: Any, out: Any) -> Any:
        """The rules of PyTorch, torch/_meta_registrations.py, _check_scaled_mm_sizes, for CUDA and one scale each."""
        assert a.dtype == b.dtype == real.float8_e4m3fn
        assert a.stride(0) > a.stride(1) == 1, "self must be row_major"
        assert b.stride(1) > b.stride(0) == 1, "mat2 must be col_major"
        assert a.shape[1] % 16 == b.shape[1] % 16 == 0
        assert all(scale.numel() == 1 and scale.dtype == real.float32 for scale in (scale_a, scale_b))
        assert out_dtype == out.dtype
        self._library(a, b, out)
        return out

    def _library(self, a: Any, b: Any, out: Any) -> None:
        self.multiplied.add(a.dtype)
        self.multiply(a, b, GemmConfig(), out)

    def equal(self, result: Any, expected: Any) -> bool:
        self._check(self.current[-1], result, writes=False)
        return bool(real.equal(result, expected))

    # --- launches

    @contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        self.current.append(stream)
        yield
        self.current.pop()

    def launch(self, stream: Stream, time_ms: float, *, reads: Sequence[Any] = (), writes: Sequence[Any] = ()) -> None:
        uses = [*((one, False) for one in reads), *((one, True) for one in writes)]

        def launched() -> None:
            for tensor, writing in uses:
                self._check(stream, tensor, writes=writing)
            self.touched.extend((*_span(tensor), self.launches, writing) for tensor, writing in uses)
            stream.done.add(self.launches)
            stream.time_ms += time_ms
            self.launches += 1

        stream.run(launched)

    def _synchronize(self, *_: object) -> None:
        assert self.current[-1].capture is None, "a capture cannot wait for the device"

    @contextmanager
    def _captured(self, graph: Graph, *, capture_error_mode: str) -> Iterator[None]:
        """As torch.cuda.graph: on a stream of its own. NCCL's watchdog breaks captures in the global mode."""
        assert capture_error_mode == "thread_local"
        stream, caller = Stream(), self.current[-1]
        with self._stream(stream):
            graph.begin(stream)
            yield
            graph.end()
        inside = list(graph.work)

        def replay() -> None:
            now = self.current[-1]
            stream.wait_stream(now)
            for work in inside:
                work()
            now.wait_stream(stream)

        graph.work = [replay]
        assert caller is self.current[-1]

    def _check(self, stream: Stream, tensor: Any, *, writes: bool) -> None:
        start, end = _span(tensor)
        for low, high, launch, wrote in self.touched:
            if low < end and start < high and (writes or wrote):
                assert launch in stream.done, "touches what an earlier launch, not waited for, uses"

    def multiply(self, a: Any, b: Any, config: GemmConfig, out: Any) -> None:
        stream = self.current[-1]
        self.launch(stream, GEMM_MS * _whole_share(a), reads=(a, b), writes=(out,))

        def work() -> None:
            real.mm(a.to(out.dtype), b.to(out.dtype), out=out)

        stream.run(work)

    def _collective(self, group: object, sent: Any, received: Any) -> Any:
        """Runs on the stream of its group, after the current one."""
        stream = self.nccl.setdefault(id(group), Stream())
        stream.wait_stream(self.current[-1])
        self.launch(stream, COMM_MS * _whole_share(sent), reads=(sent,), writes=(received,))
        return SimpleNamespace(wait=lambda: self.current[-1].wait_stream(stream))

    def _exchange(self, group: object, sent: Any, received: Any, result: Callable[[list[Any]], Any]) -> Any:
        handle = self._collective(group, sent, received)

        def work() -> None:
            received.copy_(result(self.meeting.everyone(self.rank, sent.clone())))

        self.nccl[id(group)].run(work)
        return handle

    def _all_reduce(self, tensor: Any, *, group: Any, async_op: bool) -> Any:
        assert async_op
        return self._exchange(group, tensor, tensor, sum)

    def _all_gather(self, received: Any, sent: Any, *, group: Any, async_op: bool) -> Any:
        return self._exchange(group, sent, received, real.cat)

    def _all_to_all(self, received: Any, sent: Any, *, group: Any, async_op: bool) -> Any:
        def mine(everyone: list[Any]) -> Any:
            return real.cat([one.chunk(self.meeting.ranks)[self.rank] for one in everyone])

        return self._exchange(group, sent, received, mine)

    def _reduce_scatter(self, received: Any, sent: Any, *, group: Any, async_op: bool) -> Any:
        assert async_op
        assert received.shape[0] * self.meeting.ranks == sent.shape[0]
        return self._exchange(
            group, sent, received, lambda everyone: sum(everyone).chunk(self.meeting.ranks)[self.rank]
        )

    def _new_group(self, *, backend: str, pg_options: Options) -> Any:
        self.groups.append(backend)
        return SimpleNamespace(_get_backend=lambda device: SimpleNamespace(options=pg_options))


def _whole_share(tensor: Any) -> float:
    """What is cut from a matrix takes its share of the time."""
    base = tensor._base
    return 1.0 if base is None else tensor.shape[0] / base.shape[0]


def _span(tensor: Any) -> tuple[int, int]:
    assert tensor.is_contiguous() or tensor.t().is_contiguous()
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()


# --- a bench of all ranks -----------------------------------------------------------------------


def make_job(workload: str, *texts: str, plan: bool = False, **more: Any) -> Job:
    fields: dict[str, Any] = {"steps": STEPS, "size_bytes": SIZE, "scale": 1 / 64, "repeats": 2, "warmup": 1} | more
    controls = tuple(map(parse_variant, texts))
    return with_variants(Job(workload=workload, controls=controls, plan=plan, on="cuda", **fields), 2)


def measured(job: Job, *, ranks: int = 2, torch: type[StrictTorch] = StrictTorch) -> tuple[Bench, list[StrictTorch]]:
    """What the ranks measure, each in a thread of its own."""
    meeting, errors = Meeting(ranks), list[BaseException]()
    torches = [torch(meeting, rank) for rank in range(ranks)]
    benches: list[Any] = [None] * ranks

    def rank_main(rank: int) -> None:
        def backend(gemm: GemmConfig) -> CudaBackend:
            found = CudaBackend(torch=torches[rank], environ={}, gemm=gemm, gemm_bytes=lambda *_: 0)
            found.machine = replace(found.machine, triton=True)
            return found

        try:
            benches[rank] = gpu.run_gpu_job(
                decode_job(encode_job(job)),
                World(meeting, rank),
                lambda stage: None,
                torch=torches[rank],
                make_backend=backend,
                multiply=torches[rank].multiply,
            )
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    assert benches[1:] == [None] * (ranks - 1)
    return decode_bench(encode_bench(benches[0])), torches


def median_ms(found: Bench, name: str) -> float:
    return found.variant(name).summary.median_ns / 1e6


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workload", ["gemm-ar", "gemm-ag", "gemm-a2a", "gemm-rs", "cb-ar", "mb-a2a", "conccl-20"])
def test_every_pair_is_verified_and_timed_by_the_device(workload: str, ranks: int) -> None:
    found, _ = measured(make_job(workload, "priority", "chunks=2", scale=1 / 256), ranks=ranks)
    assert [variant.name for variant in found.variants] == [SEQUENTIAL, OVERLAP, "priority", "chunks=2"]
    assert found.verified, [variant.wrong for variant in found.variants]
    assert found.compute_ns == (STEPS * GEMM_MS * 1e6,) * 2
    assert found.comm_ns == (STEPS * COMM_MS * 1e6,) * 2
    assert median_ms(found, SEQUENTIAL) == pytest.approx(STEPS * (GEMM_MS + COMM_MS))
    independent = workload.startswith("conccl")
    assert median_ms(found, OVERLAP) == pytest.approx(STEPS * GEMM_MS + (0 if independent else COMM_MS))
    assert median_ms(found, "chunks=2") == pytest.approx(STEPS * GEMM_MS + (0 if independent else COMM_MS / 2))
    assert found.variant(SEQUENTIAL).overlap_rate == 0
    assert found.variant(OVERLAP).overlap_rate == pytest.approx(1 if independent else (STEPS - 1) / STEPS)


def test_the_document_is_that_of_any_bench_and_says_that_no_hardware_has_run_it() -> None:
    found, _ = measured(make_job("gemm-ag", "priority"))
    data = bench_data(found)
    assert (data["on"], data["origin"], data["verified"]) == ("cuda", "measured", True)
    assert data["collective"] == {"kind": "all-gather", "bytes": SIZE}
    assert data["variants"]["overlap"]["threads"] is None
    assert any("not yet been run on hardware" in note for note in found.notes)
    assert found.timeline is not None
    assert {span.stream for span in found.timeline.spans} == {"compute", "comm"}


def test_controls_are_applied_once_read_back_and_given_back_at_the_end() -> None:
    found, torches = measured(make_job("gemm-ar", "comm-blocks=8", "priority+partition=16"))
    assert [(one.control, one.status) for one in found.variant("comm-blocks=8").receipts] == [
        (CommBlocks(8), "applied")
    ]
    assert {one.status for one in found.variant("priority+partition=16").receipts} == {"applied"}
    for torch in torches:
        assert torch.groups == ["nccl", "nccl", "destroyed", "destroyed"]


@pytest.mark.parametrize(
    ("workload", "text", "words"),
    [
        ("gemm-ar", "copy-engine", "cannot add"),
        ("gemm-rs", "copy-engine", "cannot add"),
        ("gemm-ag", "copy-engine+chunks=2", "not cut into pieces"),
        ("gemm-ar", "comm-threads=288", "start the program with NCCL_NTHREADS=256"),
        ("gemm-ar", "chunks=7", "rows cannot be cut into 7 pieces"),
        ("gemm-ar", "comm-blocks=65", "at most 64 blocks"),
    ],
)
def test_what_cannot_be_done_is_left_out_with_its_reason(workload: str, text: str, words: str) -> None:
    found, _ = measured(make_job(workload, text))
    assert [variant.name for variant in found.variants] == [SEQUENTIAL, OVERLAP]
    assert any(note.startswith(f"{text} was refused: ") and words in note for note in found.notes)


@pytest.mark.parametrize("workload", ["gemm-ag", "gemm-a2a"])
def test_copies_between_peers_give_the_same_results(workload: str) -> None:
    found, _ = measured(make_job(workload, "copy-engine"), ranks=3)
    variant = found.variant("copy-engine")
    assert variant.controls == (CopyEngine(),)
    assert variant.wrong is None
    assert variant.summary.median_ns < found.variant(OVERLAP).summary.median_ns  # copies take no time here
    assert "torch's kernels of one block" in variant.receipts[0].detail  # this torch has no memory operations


def test_a_bench_never_asks_for_more_streams_than_torch_has() -> None:
    """One more than 32 would be a stream that compute or a copy already uses, and nothing would overlap."""
    found, torches = measured(make_job("gemm-ag", "copy-engine", in_flight=2, repeats=POOL, steps=2, size_bytes=4096))
    assert found.verified
    assert all(torch.handed[0] <= POOL for torch in torches)


def test_copies_meet_without_a_kernel_where_the_driver_can(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blockless(StrictTorch):
        int32 = real.int32

        def __init__(self, meeting: Meeting, rank: int) -> None:
            super().__init__(meeting, rank)
            self.distributed.get_world_size = lambda group: meeting.ranks
            for stream in [*self.current, *self.pool[0], *self.pool[-5]]:
                stream.cuda_stream = id(stream)  # type: ignore[attr-defined]

    for where in ("copies", "backend"):
        monkeypatch.setattr(f"makeway.act.cuda.{where}.memory_operations", lambda torch: Words())
    found, _ = measured(make_job("gemm-ag", "copy-engine"), ranks=2, torch=Blockless)
    variant = found.variant("copy-engine")
    assert variant.wrong is None
    assert "the barriers are memory operations of the stream" in variant.receipts[0].detail


@pytest.mark.parametrize(("workload", "status"), [("conccl-20", "applied"), ("cb-ar", "no effect")])
def test_launch_order_is_a_choice_only_where_the_two_are_independent(workload: str, status: str) -> None:
    found, _ = measured(make_job(workload, "comm-first", scale=1 / 256))
    (applied,) = found.variant("comm-first").receipts
    assert (applied.control, applied.status) == (LaunchOrder(), status)
    assert found.verified


def test_several_gemms_in_flight_have_streams_of_their_own() -> None:
    found, _ = measured(make_job("cb-ar", in_flight=2, scale=1 / 256))
    assert found.verified
    assert median_ms(found, OVERLAP) < STEPS * GEMM_MS


def test_grid_and_tile_reach_the_gemm() -> None:
    used: set[tuple[Any, Any]] = set()

    class Watching(StrictTorch):
        def multiply(self, a: Any, b: Any, config: GemmConfig, out: Any) -> None:
            used.add((config.grid, config.tile))
            super().multiply(a, b, config, out)

    found, _ = measured(
        make_job("cb-ar", "tile=64x64x64", grids=((2, 4),), tiles=((32, 32, 32),), scale=1 / 256), torch=Watching
    )
    assert used == {((2, 4), (32, 32, 32)), ((2, 4), (64, 64, 64))}
    assert "tile 32x32x32" in found.notes[0]


def test_planning_picks_the_clearly_faster_candidate_and_measures_it_again() -> None:
    found, _ = measured(make_job("gemm-ag", plan=True, repeats=3))
    assert found.variant(PLANNED).controls == (CopyEngine(),)
    assert found.variant(PLANNED).summary.n == 3
    assert (found.choice or "").startswith("copy-engine: ")


def test_where_no_candidate_helps_the_plan_is_to_leave_it_as_it_is() -> None:
    found, _ = measured(make_job("gemm-ar", "priority", plan=True))
    assert found.variant(PLANNED).controls == ()
    assert (found.choice or "").startswith("leave as is (overlap)")


def test_a_balanced_gemm_is_as_deep_as_the_collective_is_long() -> None:
    """The GEMM of this torch takes 3 ms whatever its depth, the collective 2: each look takes two thirds."""
    found, _ = measured(make_job("gemm-ar", scale=None))
    assert "x512 in tf32" in found.notes[0]  # 1024 x 2/3 is 683, in steps of 64 704; then 469, 512


# --- the library's GEMM, and graphs ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("number_type", "operand", "call"),
    [
        ("fp32", real.float32, "in fp32 by torch.mm (cuBLAS or cuBLASLt)"),
        ("tf32", real.float32, "in tf32 by torch.mm (cuBLAS or cuBLASLt)"),
        ("bf16", real.bfloat16, "in bf16 by torch.mm (cuBLAS or cuBLASLt)"),
        ("fp8", real.float8_e4m3fn, "in fp8 by torch._scaled_mm (cuBLASLt)"),
    ],
)
def test_the_librarys_gemm_gives_the_same_results_in_every_type(number_type: Any, operand: Any, call: str) -> None:
    job = make_job("gemm-rs", "chunks=2", "pad=1024", kernel="torch", number_type=number_type)
    found, torches = measured(job)
    assert found.verified, [variant.wrong for variant in found.variants]
    assert call in found.notes[0]
    assert any("pad=1KiB was refused: pads and tiles are of makeway's own kernel" in note for note in found.notes), (
        found.notes
    )
    for torch in torches:
        assert torch.multiplied == {operand}
        assert torch.backends.cuda.matmul.allow_tf32 == (number_type == "tf32")


class A100(StrictTorch):
    capability = (8, 0)


class Turing(StrictTorch):
    capability = (7, 5)


@pytest.mark.parametrize(
    ("torch", "fields", "words"),
    [
        (A100, {"number_type": "fp8"}, "sm_80 has no fp8, which came with sm_89; name --type bf16"),
        (Turing, {"number_type": "bf16"}, "sm_75 has no bf16"),
        (Turing, {"number_type": "tf32"}, "sm_75 has no tf32"),
        (StrictTorch, {"number_type": "fp8", "scale": 0.02}, "must be multiples of 16, got 512 and 20"),
    ],
)
def test_what_this_gpu_has_not_is_refused(torch: type[StrictTorch], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        measured(make_job("gemm-ar", kernel="torch", **fields), torch=torch)


def test_amd_types_are_those_that_torch_takes() -> None:
    torch = SimpleNamespace(float32="fp32", float8_e4m3fn="fn", float8_e4m3fnuz="fnuz", ones=lambda *_, **__: 1.0)
    operands = {arch: library_gemm(torch, "fp8", arch, n=64, k=64).operand for arch in ("gfx942", "gfx950")}
    assert operands == {"gfx942": "fnuz", "gfx950": "fn"}
    with pytest.raises(UnsupportedError, match="not on gfx90a"):
        library_gemm(torch, "fp8", "gfx90a", n=64, k=64)
    with pytest.raises(UnsupportedError, match="refuses bf16 operands with an fp32 result"):
        library_gemm(torch, "bf16", "gfx942", n=64, k=64)


def test_torch_has_the_calls_that_the_librarys_gemm_makes() -> None:
    out = {argument.name for argument in real.ops.aten._scaled_mm.out._schema.arguments}
    assert {"scale_a", "scale_b", "out_dtype", "out"} <= out
    assert [argument.name for argument in real.ops.aten.mm.dtype_out._schema.arguments][2:] == ["out_dtype", "out"]


@pytest.mark.parametrize("workload", ["gemm-ar", "gemm-rs", "cb-ar", "conccl-20"])
def test_graphs_replay_whole_rounds_with_the_same_results_and_times(workload: str) -> None:
    texts = ("priority", "chunks=2", "comm-blocks=8")
    plain, _ = measured(make_job(workload, *texts, scale=1 / 256, in_flight=2))
    found, _ = measured(make_job(workload, *texts, scale=1 / 256, in_flight=2, cuda_graph=True))
    assert found.verified, [variant.wrong for variant in found.variants]
    assert [variant.name for variant in found.variants] == [variant.name for variant in plain.variants]
    for variant in found.variants:
        assert variant.times_ns == pytest.approx(plain.variant(variant.name).times_ns)
        assert variant.overlap_rate is None
    assert "each round is one CUDA graph" in found.notes[2]


def test_planning_works_on_graphs_too() -> None:
    found, _ = measured(make_job("gemm-ar", "chunks=2", plan=True, cuda_graph=True, repeats=3))
    assert found.verified
    assert found.variant(PLANNED).summary.n == 3


@pytest.mark.parametrize(("text", "words"), [("copy-engine", "meet by counters"), ("partition=16", "green contexts")])
def test_what_cannot_be_captured_is_left_out(text: str, words: str) -> None:
    found, _ = measured(make_job("gemm-ag", text, cuda_graph=True))
    assert [variant.name for variant in found.variants] == [SEQUENTIAL, OVERLAP]
    assert any(words in note for note in found.notes)


def test_work_that_does_not_join_its_graph_is_an_error_here() -> None:
    """The stand-in itself: as cudaErrorStreamCaptureUnjoined."""
    torch, left = StrictTorch(Meeting(1), 0), Stream()

    def capture() -> None:
        with torch._captured(Graph(), capture_error_mode="thread_local"):
            left.wait_stream(torch.current[-1])
            torch.launch(left, 1.0)

    with pytest.raises(AssertionError, match="does not wait for"):
        capture()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"on": "cpu", "cuda_graph": True}, "Gloo's collectives run on the host's cores"),
        ({"on": "sim:A40", "cuda_graph": True}, "nothing is launched"),
        ({"on": "cpu", "kernel": "torch"}, "--kernel and --type are of GEMMs on a GPU"),
        ({"on": "sim:A40", "number_type": "bf16"}, "--kernel and --type are of GEMMs on a GPU"),
        ({"on": "cuda", "number_type": "bf16"}, "add --kernel torch"),
        ({"on": "cuda", "kernel": "torch", "tiles": ((64, 64, 32),)}, "the library chooses them"),
    ],
)
def test_a_job_says_what_does_not_go_together(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Job(workload="gemm-ar", **fields)


# --- what must be noticed -----------------------------------------------------------------------


class WrongProduct(StrictTorch):
    def multiply(self, a: Any, b: Any, config: GemmConfig, out: Any) -> None:
        super().multiply(a, b, config, out)
        out[-1, -1] += 1


class WrongSum(StrictTorch):
    def _all_reduce(self, tensor: Any, *, group: Any, async_op: bool) -> Any:
        handle = super()._all_reduce(tensor, group=group, async_op=async_op)
        tensor[0, 0] += 1
        return handle


@pytest.mark.parametrize(
    ("torch", "workload", "words"),
    [
        (WrongProduct, "cb-ar", "the product differs"),
        (WrongProduct, "gemm-ar", "the all-reduce gave wrong numbers"),
        (WrongSum, "cb-ar", "the all-reduce gave wrong numbers"),
        (WrongSum, "gemm-ar", "the all-reduce gave wrong numbers"),
    ],
)
def test_wrong_results_are_found_and_named(torch: type[StrictTorch], workload: str, words: str) -> None:
    found, _ = measured(make_job(workload, scale=1 / 256), torch=torch)
    assert not found.verified
    assert words in (found.variant(OVERLAP).wrong or "")


class Hasty(StrictTorch):
    """Streams whose waits do nothing."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        super().__init__(meeting, rank)

        class Careless(Stream):
            def wait_event(self, event: Event) -> None:
                pass

        self.cuda.Stream = Careless


def test_a_collective_before_its_gemm_is_an_error_here() -> None:
    """The stand-in itself: were the loop not to wait, these tests would fail."""
    with pytest.raises(AssertionError, match="not waited for"):
        measured(make_job("gemm-ar"), torch=Hasty)


@pytest.mark.parametrize("workload", ["ddp", "fsdp2", "tp", "ep"])
def test_training_is_not_on_gpus_yet(workload: str) -> None:
    with pytest.raises(UnsupportedError, match="runs on CPU ranks only; name gemm-"):
        make_job(workload)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 6, 7, 8, 16])
def test_sums_stay_exact_as_often_as_is_claimed(ranks: int) -> None:
    times = exact_reductions(ranks)
    value = real.tensor(2.0)
    exact = 2
    for _ in range(times):
        value, exact = value * ranks, exact * ranks
        assert int(value.item()) == exact
    assert times >= 5


def test_candidates_of_a_kind_of_collective_can_work_on_it() -> None:
    def controls(workload: str, *, wide: bool = False) -> list[tuple[Control, ...]]:
        job = with_variants(Job(workload=workload, on="cuda", wide=wide), 2)
        return [variant.controls for variant in job.candidates]

    assert (CopyEngine(),) in controls("gemm-ag")
    assert (CopyEngine(),) not in controls("cb-ar")
    assert (LaunchOrder(),) in controls("conccl-01")
    assert set(controls("gemm-ar")) < set(controls("gemm-ar", wide=True))
    assert with_variants(Job(workload="gemm-ar", on="cuda", plan=False, wide=True), 2).candidates == ()
    named = with_variants(Job(workload="gemm-ar", on="cuda", controls=((CommPriority(),),)), 2)
    assert [variant.controls for variant in named.candidates] == [(CommPriority(),)]


# --- started from the command line ---------------------------------------------------------------


def test_there_is_a_rank_for_every_gpu_and_never_two_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = GpuMachine(vendor="nvidia", torch="2.13.0", built="13.0", devices=4)
    monkeypatch.setattr("makeway.act.measure.gpus.look", lambda vendor: ready)
    assert (gpu_ranks("cuda", None), gpu_ranks("cuda", 2)) == (4, 2)
    with pytest.raises(InputError, match="--ranks 5 on 4 GPUs"):
        gpu_ranks("cuda", 5)


def test_the_planners_choice_is_tried_first() -> None:
    job = Job(workload="gemm-ar", on="cuda", device="H100-SXM5-80GB")
    (first,) = planner_variants(job, load_device("H100-SXM5-80GB"), 8)
    assert first.controls
    assert first.name == variant_name(first.controls)
    assert with_variants(job, 8).candidates[0] == first


def test_a_rank_without_a_gpu_says_what_is_missing() -> None:
    if look("nvidia").missing is None:
        pytest.skip("this machine has a GPU")
    with pytest.raises(RankFailedError, match=r"rank [01] of 2 failed .*--on cuda was asked for, but torch"):
        run_bench(make_job("gemm-ar"))
