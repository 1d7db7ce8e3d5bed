"""Train a small model with DistributedDataParallel on CPU ranks. It knows nothing of makeway.

torchrun --standalone --nproc-per-node 2 examples/ddp_on_cpu/train.py --steps 50
"""

import argparse
import hashlib
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="of the optimizer (default: 50)")
    parser.add_argument("--batch", type=int, default=16, help="rows of each rank's input (default: 16)")
    parser.add_argument("--width", type=int, default=1024, help="of each layer (default: 1024)")
    parser.add_argument("--layers", type=int, default=6, help="of the model (default: 6)")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(options.width, options.width) for _ in range(options.layers)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(options.batch, options.width)
    steps_ms = []
    for _ in range(options.steps):
        start = time.perf_counter()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps_ms.append(1e3 * (time.perf_counter() - start))
    weights = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in model.parameters()))
    if dist.get_rank() == 0:
        print(
            f"loss {loss.item():.6f}, weights {weights.hexdigest()[:16]}, {statistics.median(steps_ms):.1f} ms per step"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
