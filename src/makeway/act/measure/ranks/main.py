"""The entry of a rank: `python -m makeway.act.measure.ranks.main`, started by `makeway.act.measure.launch`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from makeway.act.measure.job import Job
from makeway.act.measure.launch import PARENT_VARIABLE, REPORT_VARIABLE, Message
from makeway.act.measure.outcome import Bench
from makeway.act.measure.wire import decode_job, encode_bench
from makeway.values.errors import MakewayError, MissingExtraError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(slots=True)
class Reporter:
    """Reports to the launcher where this rank is; to nobody where there is none (torchrun)."""

    fd: int | None

    def __call__(self, stage: str | None = None, **more: Any) -> None:
        if self.fd is not None:
            os.write(self.fd, msgspec.json.encode(Message(stage=stage, **more)) + b"\n")


def main() -> int:
    """Run the job on standard input as the rank that the environment names."""
    _end_with_parent(int(os.environ[PARENT_VARIABLE]))
    reporter = Reporter(int(os.environ[REPORT_VARIABLE]))
    reporter("start")
    try:
        bench = run_as_rank(decode_job(sys.stdin.buffer.readline()), reporter)
    except Exception as error:
        reporter(**verdict(error))
        return 1
    reporter(result=None if bench is None else encode_bench(bench), done=True)
    return 0


def run_as_rank(job: Job, reporter: Reporter | None = None) -> Bench | None:
    """The bench on rank 0, None on other ranks."""
    reporter = reporter or Reporter(None)
    try:
        from makeway.act.measure.ranks.gpu import join_gpus, run_gpu_job
        from makeway.act.measure.ranks.harness import run_job
        from makeway.act.measure.ranks.world import join, leave
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("`makeway bench` runs its ranks with torch, which is not here", "torch") from None
    reporter("meeting the other ranks")
    world = join(job.timeout_s) if job.on == "cpu" else join_gpus(job.timeout_s, job.on)
    reporter("met", met=True)
    try:
        return (run_job if job.on == "cpu" else run_gpu_job)(job, world, reporter)
    finally:
        leave()


def verdict(error: Exception) -> dict[str, Any]:
    """Where the cause of an error is: this rank, or another that did not arrive or went away."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, MakewayError):
        return {"failed": text}
    if "timed out" in text.lower() or "timeout" in text.lower():  # gloo words it in three ways
        return {"blocked": text}
    if any(
        sign in text for sign in ("Connection closed by peer", "Connection reset", "Broken pipe", "Connection refused")
    ):
        return {"lost": text}
    return {"failed": f"{type(error).__name__}: {text}"}


def _end_with_parent(parent: int) -> None:
    """The kernel kills this process when the one that started it ends, however that ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we could ask
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
