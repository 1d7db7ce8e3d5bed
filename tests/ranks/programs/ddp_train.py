"""A small data-parallel training program that knows nothing of makeway.

`--steps 0` trains until it is stopped. `--last-rank-ends` is the last rank's exit code, or the signal that kills it.
Ranks come from torchrun's variables, or else from those of Open MPI or Slurm.
`--fault` happens on the last rank after step `--at`, in the first attempt under torchrun: an exception, a signal, or
`stop`, a SIGSTOP for half a second. `caught` is an exception on every rank after which the program ends in order.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LAUNCHERS = {"OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID": "SLURM_NTASKS"}


def main() -> int:
    for rank_variable, size_variable in LAUNCHERS.items():
        if "RANK" not in os.environ and rank_variable in os.environ:
            os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ[rank_variable], os.environ[size_variable]
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--wait-ms", type=float, default=0.0, help="in every step, as for data")
    parser.add_argument("--last-rank-ends", default="0")
    parser.add_argument("--fault", default="")
    parser.add_argument("--at", type=int, default=40)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        code = train(options)
        gc.collect()  # gives Gloo's threads time to let go of tensors: without an interpreter they would abort
        dist.destroy_process_group()
        return ended(code)
    except InjectedError:
        if options.fault != "caught":
            raise
        dist.destroy_process_group()
        threads = map(int, os.listdir("/proc/self/task"))
        niceness = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
        sys.stdout.write(f"niceness {sorted(niceness)}\n")
        return 4


def train(options: argparse.Namespace) -> str:
    """How this rank ends."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    faulty = first_attempt and (rank == ranks - 1 or options.fault == "caught")
    torch.manual_seed(1)
    wide = options.width
    layers = torch.nn.Sequential(torch.nn.Linear(128, wide), torch.nn.ReLU(), torch.nn.Linear(wide, 16))
    model = DistributedDataParallel(layers)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    own = torch.Generator().manual_seed(rank)
    for step in itertools.count() if options.steps == 0 else range(options.steps):
        batch = torch.randn(options.batch, 128, generator=own)
        time.sleep(options.wait_ms / 1e3)
        loss = model(batch).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        sys.stdout.write(f"rank {rank} step {step} loss {loss.item().hex()}\n")  # in one piece, unlike print
        sys.stdout.flush()
        if options.fault and faulty and step == options.at:
            happen(options.fault)
        if step == 0:
            started = time.perf_counter()
    if rank == 0 and options.steps > 1:
        took_ms = (time.perf_counter() - started) / (options.steps - 1) * 1e3
        sys.stdout.write(f"{took_ms:.2f} ms per step after the first\n")
    dist.barrier()
    return options.last_rank_ends if rank == ranks - 1 else "0"


def ended(how: str) -> int:
    if not how.isdigit():
        os.kill(os.getpid(), signal.Signals[how])
    return int(how)


class InjectedError(RuntimeError):
    """The fault that the options ask for."""


def happen(fault: str) -> None:
    match fault:
        case "exception" | "caught":
            raise InjectedError("injected")
        case "stop":
            subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:
            os.kill(os.getpid(), signal.Signals[fault])


if __name__ == "__main__":
    sys.exit(main())
