"""Train the ResNet of transformers with DistributedDataParallel on CPU ranks, in the style of PyTorch's tutorial.

torchrun --standalone --nproc-per-node 2 examples/jobs/resnet_ddp.py --steps 50
"""

import argparse
import time

import torch
import torch.distributed as dist
from step_times import report
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from transformers import ResNetConfig, ResNetForImageClassification


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pixels", type=int, default=32)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 3, options.pixels, options.pixels), torch.randint(10, (256,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    config = ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10
    )
    model = DistributedDataParallel(ResNetForImageClassification(config))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    ended, epoch = [], 0
    while len(ended) < options.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images).logits, labels).backward()
            optimizer.step()
            ended.append(time.perf_counter())
            if len(ended) == options.steps:
                break
    report(dist.get_rank(), model.parameters(), ended)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
