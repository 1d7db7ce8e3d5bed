"""The entry of a rank: `python -m makeway.act.measure.ranks.main`, started by `makeway.act.measure.launch`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from makeway.act.measure.job import Job, decode_job
from makeway.act.measure.launch import PARENT_VARIABLE, REPORT_VARIABLE, Report
from makeway.act.measure.record import Record, plain
from makeway.values.errors import MakewayError, MissingExtraError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(slots=True)
class Reporter:
    """Tells the launcher where this rank is; tells nobody when there is none (torchrun)."""

    fd: int | None

    def __call__(self, stage: str | None = None, **more: Any) -> None:
        if self.fd is not None:
            os.write(self.fd, msgspec.json.encode(Report(stage=stage, **more)) + b"\n")


def main() -> int:
    """Run the job on standard input as the rank that the environment names."""
    _end_with_parent(int(os.environ[PARENT_VARIABLE]))
    reporter = Reporter(int(os.environ[REPORT_VARIABLE]))
    reporter("start")
    try:
        record = run_as_rank(decode_job(sys.stdin.buffer.readline()), reporter)
    except Exception as error:
        reporter(**verdict(error))
        return 1
    reporter(result=None if record is None else plain(record), done=True)
    return 0


def run_as_rank(job: Job, reporter: Reporter | None = None) -> Record | None:
    """The record of the whole run on rank 0, None on other ranks."""
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
    """What an error says about its cause: this rank, or another that did not come or went away."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "EADDRINUSE" in text or "address already in use" in text:
        return {"port_taken": True}
    if isinstance(error, MakewayError):
        return {"failed": text}
    if "timed out" in text.lower() or "timeout" in text.lower():  # gloo says it in three ways
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
