"""One rank of a trial whose collectives ask the tuner plugin, as NCCL would.

usage: channel_rank.py STEPS CALLS CHANNELS [HOW]. The trial, its agreement, the launch shim and the plugin are
makeway's own. What stands in for a GPU: the calls into the plugin, NCCL's line about its channels, and the word that
names the backend. HOW: "two" makes a second communicator from step 20 on; "blind" hides later changes of the rules from
rank 1. Prints one JSON line: the channels of every call of every step, and the log.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from makeway.act.launch.step_files import StepLogFile, read_settings
from makeway.act.torch.carried import Carried
from makeway.act.torch.trial import LiveTrial

MIB = 1 << 20
TABLE = (ctypes.c_float * 21)(*[-1.0] * 5, 1.0, *[-1.0] * 15)  # ring and simple, the only choice


class Tuner(ctypes.Structure):
    """Version 4 of the interface."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("init", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)),
        (
            "info",
            ctypes.CFUNCTYPE(
                *(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p),
                *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p),
            ),
        ),
        ("end", ctypes.c_void_p),
    )


class Communicator:
    """Asks the plugin about all-reduces of a mebibyte."""

    def __init__(self, ranks: int) -> None:
        self._tuner = Tuner.in_dll(ctypes.CDLL(os.environ["NCCL_TUNER_PLUGIN"]), "ncclTunerPlugin_v4")
        self._context = ctypes.c_void_p()
        assert self._tuner.init(ranks, 1, None, ctypes.addressof(self._context)) == 0

    def call(self) -> int:
        channels = ctypes.c_int(0)
        table, answer = ctypes.addressof(TABLE), ctypes.addressof(channels)
        assert self._tuner.info(self._context, 4, MIB, 1, table, 7, 3, 0, answer) == 0
        return channels.value


def main(steps: int, calls: int, channels: int, how: str) -> None:
    dist.init_process_group("gloo")
    rank, receipts = dist.get_rank(), Path(os.environ["MAKEWAY_RECEIPTS"])
    (receipts / f"nccl-here-{os.getpid()}").write_text(
        f"here:1:2 [0] NCCL INFO {channels} coll channels, {channels} collnet channels, 0 nvls channels\n"
    )
    settings = read_settings(Path(os.environ["MAKEWAY_STEPS"]))
    carried = Carried(settings.controls, backend="cuda", environ=os.environ)
    failures: list[Exception] = []
    process: Any = SimpleNamespace(
        carried=carried,
        began_ns=0,
        file=SimpleNamespace(backend="cpu"),  # there is no GPU that could time steps
        cannot_switch=carried.refusal,
        settled=lambda: None,
        switch=lambda controls, setting: carried.use(setting),
        release_threads=lambda: carried.use(0),
        fail=failures.append,
    )
    log = StepLogFile(None, rank=rank, ranks=dist.get_world_size())
    trial = LiveTrial(settings, log, process)
    trial.start()
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    communicators = [Communicator(dist.get_world_size())]
    answers: list[list[int]] = []
    for step in range(steps):
        if step == 20 and how == "two":
            communicators.append(Communicator(dist.get_world_size()))
        if step == 20 and how == "blind" and rank == 1 and carried.channels is not None:
            vars(carried.channels)["sees_change"] = lambda: False
        answers.append([communicator.call() for _ in range(calls) for communicator in communicators])
        parameter.grad = torch.ones(1)
        optimizer.step()
    trial.stop(None)
    line = {"rank": rank, "answers": answers, "log": msgspec.to_builtins(log.log), "failures": list(map(str, failures))}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    steps, calls, channels = map(int, sys.argv[1:4])
    main(steps, calls, channels, sys.argv[4] if sys.argv[4:] else "plain")
