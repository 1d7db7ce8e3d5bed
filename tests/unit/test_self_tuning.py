"""`makeway.torch.tune` where there is nothing to tune; tests/ranks has it with ranks."""

from __future__ import annotations

import sys

import pytest
import torch

import makeway.torch
from makeway.act.torch.tune import ALONE, BY_LAUNCHER
from makeway.values.errors import InputError, MissingExtraError

MODEL = torch.nn.Linear(2, 2)


def test_a_program_on_one_rank_goes_on_and_the_report_says_why() -> None:
    tuned = makeway.torch.tune(MODEL)
    assert not tuned.running
    assert tuned.plan.controls == ()
    assert tuned.stop().problem == tuned.report().problem == ALONE


def test_under_the_launcher_the_launcher_is_in_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAKEWAY_PLAN", "plan.toml")
    assert makeway.torch.tune(MODEL).report().problem == BY_LAUNCHER


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InputError, match="optimizer of torch, got int"):
        makeway.torch.tune(MODEL, 3)
    with pytest.raises(InputError, match=r"torch\.nn\.Module, got int"):
        makeway.torch.tune(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a share above 0"):
        makeway.torch.tune(MODEL, share=2)
    with pytest.raises(InputError, match="after prepare"):
        makeway.torch.tune_accelerator(object())


@pytest.mark.parametrize(
    ("call", "package"), [("lightning_callback", "lightning"), ("trainer_callback", "transformers")]
)
def test_a_missing_framework_names_its_extra(call: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as Python marks what must not be imported
    with pytest.raises(MissingExtraError, match=f"makeway\\[{package}\\]"):
        getattr(makeway.torch, call)()
