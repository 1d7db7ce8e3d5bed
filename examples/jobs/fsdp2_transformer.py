"""Train a small transformer with `fully_shard` (FSDP2) on CPU ranks, in the style of PyTorch's FSDP2 example.

torchrun --standalone --nproc-per-node 2 examples/jobs/fsdp2_transformer.py --steps 50
"""

import argparse
import time

import torch
import torch.distributed as dist
from step_times import report
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Transformer(torch.nn.Module):
    def __init__(self, width, layers, vocabulary):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Transformer(options.width, layers=4, vocabulary=1024)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(dist.get_rank())
    ended = []
    for _ in range(options.steps):
        tokens = torch.randint(1024, (4, 17), generator=data)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        ended.append(time.perf_counter())
    report(dist.get_rank(), [parameter.to_local() for parameter in model.parameters()], ended)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
