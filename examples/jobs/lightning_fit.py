"""Fit a perceptron with the Trainer of Lightning: its "ddp" strategy on CPU ranks.

torchrun --standalone --nproc-per-node 2 examples/jobs/lightning_fit.py --steps 50
"""

import argparse
import logging
import time
import warnings

import lightning
import torch
from step_times import report


class Classifier(lightning.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(256, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, 10),
        )
        self.ended = []

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        return torch.nn.functional.cross_entropy(self.layers(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def on_train_batch_end(self, *args):
        self.ended.append(time.perf_counter())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=1536)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0, verbose=False)
    data = torch.utils.data.TensorDataset(torch.randn(4096, 256), torch.randint(10, (4096,)))
    model = Classifier(options.width)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_steps=options.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=64, shuffle=True))
    report(trainer.global_rank, model.parameters(), model.ended)


if __name__ == "__main__":
    main()
