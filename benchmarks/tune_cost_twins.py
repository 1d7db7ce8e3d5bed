"""Two equal models that train in turns inside one job, the first of them tuned; started by bench_tune_cost.py."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import makeway.torch
from makeway.act.launch.tuning import TRIAL
from makeway.act.torch import step_clock, trial

TURN = 50  # steps
WIDTH = 256


class Clock:
    """In place of `time` in what measures the tuned model: it stands still while the other model trains."""

    def __init__(self) -> None:
        self.paused_ns = 0

    def perf_counter_ns(self) -> int:
        return time.perf_counter_ns() - self.paused_ns


class Model:
    def __init__(self, batch: int) -> None:
        torch.manual_seed(1)
        layers = (torch.nn.Linear(128, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 16))
        self.module = DistributedDataParallel(torch.nn.Sequential(*layers))
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.05)
        self._rows = torch.randn(batch, 128, generator=torch.Generator().manual_seed(dist.get_rank()))

    def step(self) -> None:
        with self.module.no_sync():  # or `priority` would help
            loss = self.module(self._rows).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()

    def timed_step(self) -> int:
        begun = time.perf_counter_ns()
        self.step()
        return time.perf_counter_ns() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--steps", "--batch", "--seed"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    first, second = Model(options.batch), Model(options.batch)
    for _ in range(5):
        first.step()
        second.step()
    clock = Clock()
    for module in (step_clock, trial):
        setattr(module, "time", clock)  # noqa: B010  # the name is not exported
    tuned = None
    if options.tuned:
        tuned = makeway.torch.tune(first.module, first.optimizer, job_steps=options.steps, seed=options.seed)
    turns, done = [], 0
    while done < options.steps:
        dist.barrier()
        times_ns: list[int] = []
        tried = False
        while done + len(times_ns) < options.steps and (len(times_ns) < TURN or _candidate_in_force(tuned)):
            times_ns.append(first.timed_step())
            tried = tried or _in_trial(tuned)
        done += len(times_ns)
        dist.barrier()
        begun = time.perf_counter_ns()
        other_ns = [second.timed_step() for _ in times_ns]
        dist.barrier()
        clock.paused_ns += time.perf_counter_ns() - begun
        turns.append({"tried": tried, "first_ns": times_ns, "second_ns": other_ns})
    if dist.get_rank() == 0:
        document: dict[str, object] = {"turns": turns}
        if tuned is not None:
            report = tuned.report()
            document |= {
                "explored_share": report.explored_share,
                "lost_share": report.lost_share,
                "plan": " ".join(control.name for control in report.plan),
            }
        options.out.write_text(json.dumps(document))
    dist.destroy_process_group()


def _candidate_in_force(tuned: makeway.torch.Tuned | None) -> bool:
    at_steps = tuned._process.trial if tuned is not None else None
    return at_steps is not None and at_steps.in_force != 0


def _in_trial(tuned: makeway.torch.Tuned | None) -> bool:
    at_steps = tuned._process.trial if tuned is not None else None
    return at_steps is not None and at_steps._block.tag == TRIAL


if __name__ == "__main__":
    main()
