"""`tune` for programs whose loop belongs to a framework: one line each. No framework is loaded before it is used."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from makeway.act.torch.tune import Tuned, tune
from makeway.values.errors import InputError, MissingExtraError

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")  # the same package under two names; a program uses one


def lightning_callback(**options: Any) -> Any:
    """A callback for Lightning: `Trainer(callbacks=[makeway.torch.lightning_callback()])`; `options` as of `tune`.

    Its attribute `tuned` is what `tune` returns, from the start of training on; controls are undone at the end.
    """
    loaded = next((name for name in _LIGHTNING if name in sys.modules), _LIGHTNING[0])
    base = _load(loaded, "a callback for Lightning", "lightning").Callback

    def on_train_start(self: Any, trainer: Any, module: Any) -> None:
        optimizers = trainer.optimizers
        _begin(self, trainer.strategy.model, optimizers[0] if optimizers else None, trainer.max_steps, options)

    def on_train_end(self: Any, trainer: Any, module: Any) -> None:
        _end(self)

    def on_exception(self: Any, trainer: Any, module: Any, error: BaseException) -> None:
        _leave(self)

    return _made(base, on_train_start=on_train_start, on_train_end=on_train_end, on_exception=on_exception)


def trainer_callback(**options: Any) -> Any:
    """A callback for the Trainer of transformers: `Trainer(callbacks=[makeway.torch.trainer_callback()])`.

    Its attribute `tuned` is what `tune` returns, from the start of training on; controls are undone at the end.
    """
    base = _load("transformers", "a callback for the Trainer of transformers", "transformers").TrainerCallback

    def on_train_begin(
        self: Any, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        _begin(self, model, optimizer, state.max_steps, options)

    def on_train_end(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        _end(self)

    return _made(base, on_train_begin=on_train_begin, on_train_end=on_train_end)


def tune_accelerator(accelerator: Any, **options: Any) -> Tuned:
    """`tune` for what `accelerator.prepare` has returned: its first model and its first optimizer."""
    models, optimizers = getattr(accelerator, "_models", ()), getattr(accelerator, "_optimizers", ())
    if not models or not optimizers:
        raise InputError("the accelerator has prepared no model and optimizer yet; call tune_accelerator after prepare")
    return tune(models[0], optimizers[0], **options)


def _load(name: str, what: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if error.name not in (package, name):  # something that the framework itself lacks
            raise
        raise MissingExtraError(f"makeway.torch has {what}, and {package} is not installed.", extra) from None


def _made(base: type, **methods: Any) -> Any:
    return type("Tune", (base,), {"tuned": None, "__module__": __name__, **methods})()


def _begin(callback: Any, model: Any, optimizer: Any, steps: int, options: dict[str, Any]) -> None:
    known = {"job_steps": steps} if steps > 0 else {}
    callback.tuned = tune(model, optimizer, **known | options)


def _end(callback: Any) -> None:
    if callback.tuned is not None:
        callback.tuned.stop(undo=True)


def _leave(callback: Any) -> None:
    """After an error on this rank peers cannot be asked: what needs them stays until the process group goes."""
    if callback.tuned is not None:
        callback.tuned.leave()
