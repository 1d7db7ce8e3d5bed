"""The job of `makeway demo`: a small transformer trained with DistributedDataParallel on CPU ranks.

An ordinary torch program that knows nothing of makeway: torchrun --nproc-per-node 2 train.py --steps 200
"""

from __future__ import annotations

import argparse
import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="of each rank and step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(options.width, nhead=4, dim_feedforward=4 * options.width, dropout=0.0)
    model = DistributedDataParallel(torch.nn.TransformerEncoder(layer, options.layers, enable_nested_tensor=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(options.tokens, 1, options.width)
    for _ in range(options.steps):
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
    gc.collect()  # gives Gloo's threads time to let go of tensors: without an interpreter they would abort
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
