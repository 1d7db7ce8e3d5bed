# mypy: ignore-errors
"""A small program that tunes itself: `python self_tuned.py loop|lightning|transformers|accelerate --steps N`.

`--plain` leaves makeway out. Each rank prints its weights; rank 0 what tuning says.
"""

import argparse
import hashlib
import tempfile
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=_KINDS)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    model, tuned = _KINDS[options.kind](options.steps, options.plain)
    digest = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters()))
    print(f"weights {digest.hexdigest()[:16]}\n", end="", flush=True)
    if tuned is not None:
        done = tuned.stop(undo=True)
        print(f"plan {tuned.plan.controls == done.plan or done.problem}\n", end="")
        if dist.is_initialized() and dist.get_rank() == 0:
            print(f"tuned {done.steps} steps, explored {done.explored_steps}, problem {done.problem}\n", end="")
    if dist.is_initialized():
        dist.destroy_process_group()


def _model():
    layers = (torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.ReLU())
    return torch.nn.Sequential(*layers, torch.nn.Linear(2048, 4))  # a switch is a small part of the job


def _data():
    return TensorDataset(torch.randn(2048, 64), torch.randn(2048, 4))


def loop(steps, plain):
    import makeway.torch

    dist.init_process_group("gloo")
    model = DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuned = None if plain else makeway.torch.tune(model, optimizer, share=0.4, job_steps=steps)
    for inputs, targets in _batches(steps, DataLoader(_data(), batch_size=16)):
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, tuned


def accelerate(steps, plain):
    from accelerate import Accelerator

    import makeway.torch

    accelerator = Accelerator(cpu=True)
    model = _model()
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(_data(), 16))
    model, optimizer, loader = prepared
    tuned = None if plain else makeway.torch.tune_accelerator(accelerator, share=0.4, job_steps=steps)
    for inputs, targets in _batches(steps, loader):
        accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    return model, tuned


def lightning(steps, plain):
    import lightning

    import makeway.torch

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = _model()

        def training_step(self, batch, number):
            return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = makeway.torch.lightning_callback(share=0.4)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=2, max_steps=steps, callbacks=[] if plain else [callback], **quiet
    )
    module = Module()
    trainer.fit(module, DataLoader(_data(), batch_size=16))
    return module, callback.tuned


def transformers(steps, plain):
    from transformers import Trainer, TrainingArguments

    import makeway.torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = _model()

        def forward(self, inputs, labels):
            outputs = self.layers(inputs)
            return {"loss": torch.nn.functional.mse_loss(outputs, labels), "outputs": outputs}

    callback = makeway.torch.trainer_callback(share=0.4)
    data = [{"inputs": inputs, "labels": targets} for inputs, targets in _data()]
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=16, use_cpu=True, report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True, ddp_find_unused_parameters=False,
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[] if plain else [callback])
        trainer.train()
    return model, callback.tuned


def _batches(steps, loader):
    done = 0
    while True:
        for batch in loader:
            if done == steps:
                return
            done += 1
            yield batch


_KINDS = {function.__name__: partial(function) for function in (loop, lightning, transformers, accelerate)}

if __name__ == "__main__":
    main()
