"""What each rank checks of direct collectives; run by test_direct_collectives.py.

    direct_checks.py DIRECTORY all|NAME RANKS...     worlds of so many ranks, one after the other

Every rank draws the same random numbers, so each knows what all others hold.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # DistributedDataParallel would load it in every rank
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from makeway.act.cpu import direct
from makeway.act.cpu.calls import FRACTIONS, SUMMED, Op
from makeway.act.cpu.controls import NICER_BY, CpuBackend
from makeway.act.cpu.cores import Seat
from makeway.act.cpu.direct import DirectGroup
from makeway.act.cpu.hook import direct_hook
from makeway.act.cpu.links import LostRankError
from makeway.act.cpu.shared import add_up, shared_part
from makeway.act.cpu.threads import REALTIME, cores_of, niceness_of, policy_of, slice_ns, thread_ids
from makeway.act.torch.gradients import Gradients, add_hook
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Control,
    CopyEngine,
    LaunchOrder,
    OwnCores,
    SmemPad,
    SmPartition,
    TileChoice,
)
from makeway.values.errors import InputError, MakewayError, UnsupportedError

RANK, RANKS = 0, 1  # set in each rank
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
SIZES = (0, 3, 4097)
MANY_PIECES = 40_001
MOVED = (*SUMMED, torch.bool, torch.float8_e4m3fn, torch.uint16, torch.uint64)
PIECE_BYTES = 4096  # small, so that small tensors flow in many pieces through few slots


def drawn(count: int, dtype: torch.dtype, rank: int, seed: int) -> torch.Tensor:
    """Any bits at all for types that move; numbers of mixed size for types that add."""
    source = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype in FRACTIONS:
        return (torch.randn(count, generator=source) * 100).to(dtype)
    size = torch.empty(0, dtype=dtype).itemsize
    top = 2 if dtype is torch.bool else 256
    return torch.randint(0, top, (count * size,), dtype=torch.uint8, generator=source).view(dtype)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))


def gloo_sum(parts: list[torch.Tensor], op: Op = "sum") -> torch.Tensor:
    """What Gloo makes of one part from each rank; an average multiplies first, as DistributedDataParallel does."""
    total = parts[RANK] * (1.0 / RANKS) if op == "avg" else parts[RANK].clone()
    if total.dtype is torch.int16:  # Gloo adds none; integers add up in any order
        return torch.stack(parts).sum(0, dtype=torch.int16)
    if total.numel():
        dist.all_reduce(total)
    return total


def refused(act: Callable[[], object], kind: type[MakewayError] = InputError) -> str:
    try:
        act()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was refused")


# --- collectives -------------------------------------------------------------------------------


def check_moved_bytes_are_those_of_gloo_for_every_type_and_size(group: DirectGroup) -> None:
    for seed, dtype in enumerate(MOVED):
        for count in (*SIZES, *([MANY_PIECES] if dtype is torch.float64 else [])):
            given = drawn(count, dtype, RANK, seed)
            raw, size = given.view(torch.uint8), given.nbytes
            found, wanted = torch.empty(RANKS * count, dtype=dtype), torch.empty(RANKS * size, dtype=torch.uint8)
            group.all_gather_into_tensor(found, given)
            if size:
                dist.all_gather_into_tensor(wanted, raw)
            assert same_bits(found, wanted), (dtype, count)
            listed = [torch.empty_like(given) for _ in range(RANKS)]
            group.all_gather(listed, given)
            assert same_bits(torch.cat(listed), found)
            wide = drawn(RANKS * count, dtype, RANK, seed + 50)
            out, want = torch.empty_like(wide), torch.empty(wide.nbytes, dtype=torch.uint8)
            group.all_to_all_single(out, wide)
            if size:
                dist.all_to_all_single(want, wide.view(torch.uint8))
            assert same_bits(out, want), (dtype, count)
            for root in range(RANKS):
                received = given.clone()
                group.broadcast(received, root)
                assert same_bits(received, drawn(count, dtype, root, seed)), (dtype, count, root)


def check_unequal_splits_arrive_as_with_gloo(group: DirectGroup) -> None:
    draw = random.Random(7)
    for _ in range(8):
        table = [[draw.choice((0, 1, 5, 700, 3000)) for _ in range(RANKS)] for _ in range(RANKS)]
        gives, takes = table[RANK], [row[RANK] for row in table]
        given = torch.arange(sum(gives) * 3, dtype=torch.float32).view(-1, 3) + 1e6 * RANK
        found, wanted = torch.empty(sum(takes), 3), torch.empty(sum(takes), 3)
        group.all_to_all_single(found, given, takes, gives)
        dist.all_to_all_single(wanted, given, takes, gives)
        assert torch.equal(found, wanted)


def check_reductions_have_the_bits_of_gloo_for_every_type_and_size(group: DirectGroup) -> None:
    for seed, dtype in enumerate(SUMMED):
        for op in ("sum", "avg") if dtype in FRACTIONS else ("sum",):
            for count in (*SIZES, *([MANY_PIECES] if dtype is torch.float64 else [])):
                parts = [drawn(count, dtype, rank, seed) for rank in range(RANKS)]
                found = parts[RANK].clone()
                group.all_reduce(found, op)
                assert same_bits(found, gloo_sum(parts, op)), (dtype, op, count)
                wide = [drawn(RANKS * count, dtype, rank, seed + 50) for rank in range(RANKS)]
                out = torch.empty(count, dtype=dtype)
                group.reduce_scatter_tensor(out, wide[RANK], op)
                mine = slice(RANK * count, (RANK + 1) * count)
                assert same_bits(out, gloo_sum(wide, op)[mine]), (dtype, op, count)


def check_scattered_sums_and_long_rings_have_the_bits_of_gloo(group: DirectGroup) -> None:
    """Chunks of several segments, and sizes that no number of ranks divides."""
    for count in (1, 10, 40_001, 2_000_003):
        found, wanted = (drawn(count, torch.float32, RANK, 3) for _ in range(2))
        group.all_reduce(found)
        dist.all_reduce(wanted)
        assert same_bits(found, wanted), count
        wide, ours, theirs = drawn(count * RANKS, torch.float32, RANK, 4), torch.empty(count), torch.empty(count)
        group.reduce_scatter_tensor(ours, wide)
        dist.reduce_scatter_tensor(theirs, wide)
        assert same_bits(ours, theirs), count


def check_one_buffer_serves_as_input_and_output(group: DirectGroup) -> None:
    count = 5000
    parts = [drawn(count, torch.float32, rank, 1) for rank in range(RANKS)]
    whole = torch.zeros(RANKS * count)
    whole[RANK * count : (RANK + 1) * count] = parts[RANK]
    group.all_gather_into_tensor(whole, whole[RANK * count : (RANK + 1) * count])
    assert torch.equal(whole, torch.cat(parts))
    wide = [drawn(RANKS * count, torch.float32, rank, 2) for rank in range(RANKS)]
    mine = slice(RANK * count, (RANK + 1) * count)
    own = wide[RANK].clone()
    group.reduce_scatter_tensor(own[mine], own)
    assert same_bits(own[mine], gloo_sum(wide)[mine])


def check_shared_tensors_are_read_in_place_with_the_same_results(group: DirectGroup) -> None:
    for dtype in (torch.float32, torch.int32, torch.bfloat16):
        shared = group.shared_tensor(MANY_PIECES * RANKS, dtype=dtype)
        for start in (0, 64):
            given = shared[start : start + (MANY_PIECES - 64) * RANKS]
            inputs = [drawn(given.numel(), dtype, rank, 3) for rank in range(RANKS)]
            given.copy_(inputs[RANK])
            gathered = torch.empty(given.numel() * RANKS, dtype=dtype)
            group.all_gather_into_tensor(gathered, given)
            assert same_bits(gathered, torch.cat(inputs))
            exchanged = torch.empty_like(inputs[RANK])
            group.all_to_all_single(exchanged, given)
            each = given.numel() // RANKS
            assert same_bits(exchanged, torch.cat([part[RANK * each : (RANK + 1) * each] for part in inputs]))
            work = group.all_reduce(given, async_op=True)
            assert work is not None
            work.wait()
            assert same_bits(given, gloo_sum(inputs))
            if dtype in FRACTIONS:
                given.copy_(inputs[RANK])
                group.all_reduce(given, "avg")
                assert same_bits(given, gloo_sum(inputs, "avg"))


def check_a_shared_tensor_may_be_written_once_its_sum_is_there(group: DirectGroup) -> None:
    is_late = RANK == RANKS - 1
    shared = group.shared_tensor(MANY_PIECES * RANKS)
    inputs = [drawn(shared.numel(), torch.float32, rank, 5) for rank in range(RANKS)]

    def add_up_late(*arguments: Any) -> None:
        time.sleep(0.2)
        add_up(*arguments)

    for _ in range(3):
        shared.copy_(inputs[RANK])
        begun = time.monotonic()
        with patch.object(direct, "add_up", add_up_late if is_late else add_up):
            group.all_reduce(shared)
        if RANKS > 1:
            assert time.monotonic() - begun > 0.1, "the late rank had not yet added up its part"
        summed = shared.clone()
        shared.fill_(float("nan"))
        assert same_bits(summed, gloo_sum(inputs))
    group.barrier()


def check_an_adopted_tensor_keeps_its_numbers_and_views_and_is_read_in_place(group: DirectGroup) -> None:
    if RANKS == 1:
        return
    ours = [drawn(MANY_PIECES, torch.float32, rank, 77) for rank in range(RANKS)]
    tensor = ours[RANK].clone()
    view = tensor[5:]
    with DirectGroup(piece_bytes=PIECE_BYTES, timeout_s=60) as own:
        number = own.adopt(tensor)
        assert same_bits(tensor, ours[RANK])
        assert view.data_ptr() == tensor.data_ptr() + 5 * 4
        assert (shared := shared_part(own._shared, tensor)) is not None
        own.barrier()
        for rank in range(RANKS):
            assert same_bits(shared.of(rank, 0, tensor.nbytes, torch.float32), ours[rank])
        own.barrier()
        own.all_reduce(tensor, "avg")
        assert same_bits(tensor, gloo_sum(ours, "avg"))
        assert same_bits(view, tensor[5:])
        own.release(number)
        own.release(number)
        assert shared_part(own._shared, tensor) is None
        tensor.copy_(ours[RANK])
        own.all_reduce(tensor, "avg")
    assert same_bits(tensor, gloo_sum(ours, "avg"))  # it outlives the group


def check_a_shared_tensor_on_one_rank_only_is_found_out(group: DirectGroup) -> None:
    with DirectGroup(piece_bytes=PIECE_BYTES, timeout_s=60) as own:
        shared = own.shared_tensor(MANY_PIECES)
        given = shared if RANK == 0 else torch.zeros(MANY_PIECES)
        if RANKS > 1:
            refused(lambda: own.all_reduce(given), MakewayError)
        else:
            own.all_reduce(given)


def check_queued_calls_run_in_order_and_waiting_callers_take_their_turn(group: DirectGroup) -> None:
    count = 20_000
    value = torch.full((count,), float(RANK))
    total = sum(range(RANKS))
    works = []
    for _ in range(5):
        works.append(group.all_reduce(value, async_op=True))
    group.all_reduce(value)
    assert torch.equal(value, torch.full((count,), float(total * RANKS**5)))
    for work in reversed(works):
        assert work is not None
        assert work.wait()
        assert work.is_completed()
        assert work.started_ns is not None
        assert work.finished_ns is not None
        assert work.started_ns <= work.finished_ns
        assert work.get_future().wait() is value
    late = group.broadcast(value, async_op=True)
    assert late is not None
    assert late.get_future().wait() is value


def check_random_programs_give_what_was_sent(group: DirectGroup) -> None:
    draw = random.Random(RANKS)
    for turn in range(60):
        count, kind, later = draw.choice((1, 100, 5000, 50_000)), draw.randrange(4), draw.random() < 0.5
        parts = [drawn(RANKS * count, torch.float32, rank, turn) for rank in range(RANKS)]
        mine = slice(RANK * count, (RANK + 1) * count)
        out = parts[RANK].clone() if kind == 0 else torch.empty(count if kind == 3 else RANKS * count)
        match kind:
            case 0:
                work, wanted = group.all_reduce(out, async_op=later), gloo_sum(parts)
            case 1:
                work = group.all_gather_into_tensor(out, parts[RANK][:count].contiguous(), async_op=later)
                wanted = torch.cat([part[:count] for part in parts])
            case 2:
                work = group.all_to_all_single(out, parts[RANK], async_op=later)
                wanted = torch.cat([part[mine] for part in parts])
            case _:
                work = group.reduce_scatter_tensor(out, parts[RANK], async_op=later)
                wanted = gloo_sum(parts)[mine]
        assert (work is not None) == later
        if work is not None:
            work.wait()
        assert torch.equal(out, wanted), (turn, kind, count)


def check_more_copiers_change_no_result(group: DirectGroup) -> None:
    with DirectGroup(copiers=3, timeout_s=60) as wide:
        assert len(wide.thread_ids) == 3
        for copiers in (3, 2, 1):
            wide.copiers = copiers
            assert wide.copiers == copiers
            parts = [drawn(1_000_003, torch.float32, rank, 9) for rank in range(RANKS)]
            out = torch.empty(RANKS * 1_000_003)
            wide.all_gather_into_tensor(out, parts[RANK])
            assert torch.equal(out, torch.cat(parts))
            found = parts[RANK].clone()
            wide.all_reduce(found)
            assert torch.equal(found, gloo_sum(parts))


def check_a_call_that_cannot_work_is_refused_and_harms_nothing(group: DirectGroup) -> None:
    flat, out = torch.zeros(8), torch.zeros(8 * RANKS)
    assert "contiguous" in refused(lambda: group.all_reduce(torch.zeros(4, 4).t()))
    assert "CPU" in refused(lambda: group.all_reduce(torch.zeros(4, device="meta")))
    assert "torch.bool" in refused(lambda: group.all_reduce(torch.zeros(4, dtype=torch.bool)))
    assert "avg" in refused(lambda: group.all_reduce(torch.zeros(4, dtype=torch.int32), "avg"))
    assert "median" in refused(lambda: group.all_reduce(flat, "median"))  # type: ignore[arg-type]
    assert f"{8 * RANKS}" in refused(lambda: group.all_gather_into_tensor(torch.zeros(9 * RANKS), flat))
    assert "one output" in refused(lambda: group.all_gather([flat] * (RANKS + 1), flat))
    assert "overlap" in refused(lambda: group.all_to_all_single(out, out))
    assert "split" in refused(lambda: group.all_to_all_single(out, out.clone(), [1] * RANKS, [1] * RANKS))
    assert "src" in refused(lambda: group.broadcast(flat, RANKS))
    assert "piece_bytes" in refused(lambda: DirectGroup(piece_bytes=100))
    group.all_reduce(flat)
    assert group.usable


def check_a_forked_child_cannot_use_the_group_and_the_parent_still_can(group: DirectGroup) -> None:
    child = os.fork()
    if child == 0:
        try:
            ok = "parent" in refused(group.barrier, MakewayError)
            group.close()
        except BaseException:
            ok = False
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    group.barrier()


def check_no_name_is_left_while_the_group_lives(group: DirectGroup) -> None:
    assert [name for name in os.listdir("/dev/shm") if f"-{os.getpid()}-" in name] == []


def check_a_closed_group_refuses_and_closes_twice(group: DirectGroup) -> None:
    with DirectGroup(timeout_s=60) as short:
        work = short.all_reduce(torch.ones(100_000), async_op=True)
    assert work is not None
    assert work.wait()
    short.close()
    assert not short.usable
    assert "closed" in refused(short.barrier, MakewayError)


def check_ranks_that_call_different_collectives_find_out(group: DirectGroup) -> None:
    if RANKS == 1:
        return
    other = DirectGroup(timeout_s=60)
    numbers = torch.zeros(100 if RANK else 101)
    message = refused(lambda: other.all_reduce(numbers), MakewayError)
    assert "all_reduce (call 0 of this group)" in message
    if RANK == 0:
        assert "where this rank expects 404 bytes" in message
    other.close()
    dist.barrier()


def check_a_late_rank_is_named(group: DirectGroup) -> None:
    if RANKS == 1:
        return
    with DirectGroup(timeout_s=1.0) as short:
        if RANK == RANKS - 1:
            time.sleep(3.0)
        else:
            assert f"rank {RANKS - 1} " in refused(short.barrier, LostRankError)
        assert short.usable == (RANK == RANKS - 1)
    dist.barrier()


# --- gradients ---------------------------------------------------------------------------------


def check_gradients_through_the_hook_are_those_of_ddp(group: DirectGroup) -> None:
    def trained(hook: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
        model = DistributedDataParallel(layers, bucket_cap_mb=0.02)
        if hook == "copied":
            model.register_comm_hook(group, direct_hook)
        elif hook == "in place":
            add_hook(model, Gradients(model, group))
        for step in range(4):
            torch.manual_seed(100 * step + RANK)
            model.zero_grad()
            model(torch.randn(16, 64)).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=0.1)
        assert (len(group._shared) > before) == (hook == "in place")
        return [parameter.detach().clone() for parameter in model.parameters()]

    before = len(group._shared)
    plain = trained("none")
    for hook in ("copied", "in place"):
        for ours, theirs in zip(trained(hook), plain, strict=True):
            assert torch.equal(ours, theirs)
        gc.collect()
        assert len(group._shared) == before  # released with the model


# --- controls ----------------------------------------------------------------------------------


def check_a_partition_moves_threads_to_their_cores_and_back(group: DirectGroup) -> None:
    torch.ones(1 << 20).add_(1)  # OpenMP's pool exists
    backend = CpuBackend(group)
    before = {thread: cores_of(thread) for thread in thread_ids()}
    threads = torch.get_num_threads()
    if len(backend.cores) < 2:
        assert backend.refusal(SmPartition(1))
        return
    with backend.applied([SmPartition(1)]) as (receipt,):
        assert receipt.status == "applied", receipt
        comm = {core for thread in backend.comm_threads() for core in cores_of(thread)}
        compute = {core for thread in backend.compute_threads() for core in cores_of(thread)}
        assert len(comm) == 1
        assert comm.isdisjoint(compute)
        assert {*group.thread_ids} <= backend.comm_threads()
        assert os.getpid() in backend.compute_threads()
        assert len(backend.comm_threads()) >= 4  # two workers and an I/O thread of Gloo's, one of ours
        assert torch.get_num_threads() <= threads
        work = group.all_reduce(torch.ones(100_000), async_op=True)
        assert work is not None
        assert work.wait()
    after = {thread: cores_of(thread) for thread in thread_ids()}
    assert {thread: after[thread] for thread in before if thread in after} == {
        thread: cores for thread, cores in before.items() if thread in after
    }
    assert torch.get_num_threads() == threads


def check_own_cores_keep_ranks_apart_and_are_undone(group: DirectGroup) -> None:
    backend = CpuBackend(group)
    before = {thread: cores_of(thread) for thread in thread_ids()}
    threads = torch.get_num_threads()
    if len(backend.cores) < RANKS:
        assert backend.refusal(OwnCores())
        return
    with backend.applied([OwnCores()]) as (receipt,):
        assert receipt.status == ("applied" if RANKS > 1 else "no effect"), receipt
        if RANKS == 1:
            return
        (mine,) = {cores_of(thread) for thread in thread_ids()}
        everywhere: list[Any] = [None] * RANKS
        dist.all_gather_object(everywhere, sorted(mine))
        taken = [core for cores in everywhere for core in cores]
        assert len({*taken}) == len(taken) == len(backend.cores) // RANKS * RANKS
        assert torch.get_num_threads() <= len(mine)
        tensor = torch.ones(100_000)
        dist.all_reduce(tensor)
        assert tensor[0] == RANKS
    with backend.applied([OwnCores(), SmPartition(1)]) as receipts:
        assert [receipt.status for receipt in receipts] == ["refused", "applied"]
    after = {thread: cores_of(thread) for thread in thread_ids()}
    assert all(after[thread] == cores for thread, cores in before.items() if thread in after)
    assert torch.get_num_threads() == threads


def check_a_rank_that_the_launcher_bound_keeps_its_cores(group: DirectGroup) -> None:
    backend = CpuBackend(group, seat=Seat(rank=0, ranks=1))
    with backend.applied([OwnCores()]) as (receipt,):
        assert receipt.status == "no effect"
        assert cores_of(0) == {*backend.cores}
    unclear = CpuBackend(group, seat=Seat(rank=0, ranks=2, unclear="bound in part"))
    assert unclear.refusal(OwnCores()) == unclear.refusal(SmPartition(1)) == "bound in part"


def check_fewer_compute_threads_are_named_as_a_reason_to_round(group: DirectGroup) -> None:
    threads = torch.get_num_threads()
    backend = CpuBackend(group, seat=Seat(rank=0, ranks=2), cores=range(4))
    try:
        torch.set_num_threads(4)
        assert "OMP_NUM_THREADS=2" in (backend.rounding(OwnCores()) or "")
        assert "OMP_NUM_THREADS=1" in (backend.rounding(SmPartition(1)) or "")
        torch.set_num_threads(1)
        assert (
            backend.rounding(OwnCores()) is backend.rounding(SmPartition(1)) is backend.rounding(CommPriority()) is None
        )
        real = CpuBackend(group, seat=Seat(rank=0, ranks=len(cores_of(0))))
        for threads_before, warned in ((2, True), (1, False)):
            torch.set_num_threads(threads_before)
            with real.applied([OwnCores()]) as (receipt,):
                told = "with 1 of its 2 compute threads this rank's sums may round differently" in receipt.detail
                assert told == warned or receipt.status == "no effect"
    finally:
        torch.set_num_threads(threads)


def check_priority_makes_compute_nicer_and_is_undone(group: DirectGroup) -> None:
    backend = CpuBackend(group)
    before = niceness_of(0)
    with backend.applied([CommPriority()]) as (receipt,):
        assert receipt.status == "applied", receipt
        if "real-time" in receipt.detail:
            assert {policy_of(thread) for thread in backend.comm_threads()} == {REALTIME}
            assert REALTIME not in {policy_of(thread) for thread in backend.compute_threads()}
        elif "niceness" in receipt.detail.split("(")[0]:
            assert niceness_of(0) == min(before + NICER_BY, 19)  # the suite itself may run under `nice`
            assert {niceness_of(thread) for thread in backend.comm_threads()} == {before}
    assert niceness_of(0) == before
    assert REALTIME not in {policy_of(thread) for thread in thread_ids()}


def check_without_privilege_priority_is_undone_too(group: DirectGroup) -> None:
    if os.geteuid() != 0:
        return  # then the check above was without privilege
    before = niceness_of(0)
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            backend = CpuBackend()
            with backend.applied([CommPriority()]) as (receipt,):
                assert niceness_of(0) == before
                if slice_ns(0) is None:
                    assert receipt.status == "refused"
                    assert "ulimit" in receipt.detail
                else:
                    assert receipt.status == "no effect"  # a forked child has no communication threads
                    assert "slices" in receipt.detail
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def check_what_a_cpu_cannot_do_is_refused_with_a_reason(group: DirectGroup) -> None:
    backend, alone = CpuBackend(group), CpuBackend()
    never: list[Control] = [CommThreads(64), SmemPad(1024), TileChoice(64, 64, 32), CopyEngine("swap")]
    for control in (*never, SmPartition(10_000)):
        with backend.applied([control]) as (receipt,):
            assert receipt.status == "refused"
            assert receipt.detail == backend.refusal(control)
    shared: list[Control] = [CopyEngine(), CommBlocks(1)]
    for control in shared:
        assert "DirectGroup" in (alone.refusal(control) or "")
        assert backend.refusal(control) is None
    launched: list[Control] = [LaunchOrder(), Chunks(4)]
    for control in launched:
        with backend.applied([control]) as (receipt,):
            assert (receipt.status, backend.refusal(control)) == ("no effect", None)


def check_copies_and_copiers_are_in_force_inside_only(group: DirectGroup) -> None:
    backend = CpuBackend(group, cores=range(4))
    with backend.applied([CopyEngine(), CommBlocks(2)]) as receipts:
        assert [receipt.status for receipt in receipts] == ["applied", "applied"]
        assert isinstance(receipts[0].control, CopyEngine)
        assert (backend.copying, group.copiers) == (True, 2)
        group.barrier()
    assert (backend.copying, group.copiers) == (False, 1)


# --- trouble: each in a world of its own -------------------------------------------------------


def lone_a_killed_rank(result: Path) -> dict[str, object]:
    """Rank 1 dies while all are inside one long collective after another."""
    group = DirectGroup(timeout_s=60)
    if RANK == 1:
        group.all_reduce(torch.ones(1 << 20))
        group.all_reduce(torch.ones(8 << 20), async_op=True)
        result.write_text(json.dumps({"at": time.monotonic(), "pid": os.getpid()}))
        os.kill(os.getpid(), signal.SIGKILL)
    value = torch.ones(8 << 20)
    try:
        group.all_reduce(value[: 1 << 20])
        while True:
            group.all_reduce(value)
    except LostRankError as error:
        found = {"at": time.monotonic(), "rank": error.rank, "message": str(error), "usable": group.usable}
        found["again"] = refused(group.barrier, MakewayError)
        return found


def lone_a_rank_without_room(_: Path) -> dict[str, object]:
    """Rank 1 may write small files only: the same error as a full /dev/shm, on every rank."""
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    message = refused(DirectGroup, UnsupportedError)
    return {"message": message}


def lone_mounts_apart(_: Path) -> dict[str, object]:
    return {"message": refused(DirectGroup, UnsupportedError)}


def own_mount() -> str | None:
    """A /dev/shm that only this process sees; the reason where that is not allowed."""
    system, user, group = ctypes.CDLL(None, use_errno=True), os.geteuid(), os.getegid()
    if system.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        return os.strerror(ctypes.get_errno())
    for name, text in (("uid_map", f"{user} {user} 1"), ("setgroups", "deny"), ("gid_map", f"{group} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    return os.strerror(ctypes.get_errno()) if system.mount(b"none", b"/dev/shm", b"tmpfs", 0, None) else None


def run_rank(directory: Path, name: str) -> None:
    result = directory / f"{RANKS}-{RANK}.json"
    if name == "mounts_apart" and (reason := own_mount()):
        result.write_text(json.dumps({"skip": reason}))
        return
    dist.init_process_group("gloo", init_method=f"file://{directory}/{RANKS}-store", rank=RANK, world_size=RANKS)
    if name != "all":
        result.write_text(json.dumps({"pid": os.getpid(), **globals()[f"lone_{name}"](result)}))
        return
    found: dict[str, str | None] = {}
    with DirectGroup(piece_bytes=PIECE_BYTES, slots=2, timeout_s=60) as group:
        for check, run in [(name[6:], run) for name, run in globals().items() if name.startswith("check_")]:
            try:
                run(group)
                found[check] = None
            except Exception:
                found[check] = traceback.format_exc()
            result.write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    """Fork the ranks of one world after the other: torch is loaded once."""
    global RANK, RANKS
    directory, name = Path(sys.argv[1]), sys.argv[2]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for ranks in map(int, sys.argv[3:]):
        children = []
        for rank in range(ranks):
            if (child := os.fork()) == 0:
                RANK, RANKS = rank, ranks
                try:
                    run_rank(directory, name)
                except BaseException:
                    traceback.print_exc()
                os._exit(0)  # a process group that has lost a rank may not end by itself
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
