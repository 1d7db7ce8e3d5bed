"""Train a small, randomly initialised GPT-2 with the Trainer of transformers: DistributedDataParallel on CPU ranks.

torchrun --standalone --nproc-per-node 2 examples/jobs/hf_trainer.py --steps 50
"""

import argparse
import tempfile
import time

import torch
from step_times import report
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class RandomText(torch.utils.data.Dataset):
    """Sequences of random tokens, the same in every run."""

    def __init__(self, *, sequences, length, vocabulary):
        self.tokens = torch.randint(vocabulary, (sequences, length), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Clock(TrainerCallback):
    def __init__(self):
        self.ended = []

    def on_step_end(self, *args, **kwargs):
        self.ended.append(time.perf_counter())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batches", type=int, default=1, help="of a step: gradients are averaged once for all")
    options = parser.parse_args()
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_head=4, n_embd=options.width, n_positions=64, vocab_size=8192, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=options.batches,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        data = RandomText(sequences=512, length=32, vocabulary=config.vocab_size)
        trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[clock])
        trainer.train()
    report(arguments.process_index, model.parameters(), clock.ended)


if __name__ == "__main__":
    main()
