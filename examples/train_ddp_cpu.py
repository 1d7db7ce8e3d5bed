"""Train a small model with DistributedDataParallel on CPU ranks, and profile some steps of every rank.

torchrun --nproc-per-node 2 examples/train_ddp_cpu.py profiles/
makeway run --plan examples/cpu-plan.toml -- torchrun --nproc-per-node 2 examples/train_ddp_cpu.py controlled/
makeway compare profiles/ controlled/
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where each rank writes its profile")
    parser.add_argument("--steps", type=int, default=12, help="profiled steps (default: 12)")
    parser.add_argument("--batch", type=int, default=32, help="rows of each rank's input (default: 32)")
    parser.add_argument("--width", type=int, default=1024, help="of each layer (default: 1024)")
    parser.add_argument("--layers", type=int, default=4, help="of the model (default: 4)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = (torch.nn.Linear(options.width, options.width) for _ in range(options.layers))
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(options.batch, options.width)
    warm_up = 5
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=warm_up - 1, warmup=1, active=options.steps),
        record_shapes=True,
    ) as profiler:
        for _ in range(warm_up + options.steps):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    options.folder.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(options.folder / f"rank{dist.get_rank()}.json.gz"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
