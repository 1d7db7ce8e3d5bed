"""Train a sequence classifier with Accelerate in a hand-written loop: DistributedDataParallel on CPU ranks.

torchrun --standalone --nproc-per-node 2 examples/jobs/accelerate_loop.py --steps 50
"""

import argparse
import itertools
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from step_times import report


class Classifier(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = torch.nn.Embedding(4096, width)
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2)
        self.head = torch.nn.Linear(width, 2)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    data = torch.utils.data.TensorDataset(torch.randint(4096, (1024, 16)), torch.randint(2, (1024,)))
    model = Classifier(options.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    ended = []
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for tokens, labels in itertools.islice(batches, options.steps):
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(tokens), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        ended.append(time.perf_counter())
    report(accelerator.process_index, model.parameters(), ended)
    accelerator.end_training()


if __name__ == "__main__":
    main()
