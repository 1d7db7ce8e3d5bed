"""Steps of a program, and ranks that meet at them: threads in place of ranks, a store without a network."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from makeway.act.launch.step_files import WARM_UP, AtSteps, Block, StepLogFile, StepSettings, read_logs, read_settings
from makeway.act.torch.agreement import Agreement
from makeway.act.torch.steps import Steps
from makeway.values.errors import InputError

SOURCE = Path(__file__).parents[2] / "src" / "makeway"


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def fails(error: Exception) -> None:
    raise error


def test_the_first_optimizer_counts_and_the_next_takes_over_when_it_is_gone() -> None:
    ended: list[int] = []
    steps = Steps(lambda: ended.append(1), fails)
    first, second = optimizer(), optimizer()
    for _ in range(3):
        first.step()
        second.step()
    assert len(ended) == 3
    del first
    second.step()
    assert len(ended) == 4
    steps.close()
    second.step()
    assert len(ended) == 4


def test_an_error_of_ours_ends_the_hook_and_never_reaches_the_program() -> None:
    errors: list[Exception] = []
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise ZeroDivisionError

    Steps(broken, errors.append)
    program = optimizer()
    program.step()
    program.step()
    assert len(calls) == 1
    assert [type(error) for error in errors] == [ZeroDivisionError]


def test_a_marked_function_ends_steps_and_is_put_back() -> None:
    before = torch.optim.SGD.zero_grad
    ended: list[int] = []
    steps = Steps(lambda: ended.append(1), fails, marker="torch.optim.sgd:SGD.zero_grad")
    program = optimizer()
    program.step()
    assert not ended
    program.zero_grad()
    assert len(ended) == 1
    steps.close()
    assert torch.optim.SGD.zero_grad is before


@pytest.mark.parametrize("marker", ["no.such:function", "torch.optim.sgd:nothing", "torch:__version__"])
def test_a_marker_that_is_no_function_is_refused(marker: str) -> None:
    with pytest.raises(InputError, match="mark"):
        Steps(lambda: None, fails, marker=marker)


# --- meetings -------------------------------------------------------------------------------------


def meetings(ranks: int, present: int, decide: str, patience_s: float) -> list[bytes | None]:
    store = HashStore()
    answers: list[bytes | None] = [b"nothing"] * present

    def decided(reports: Sequence[bytes]) -> bytes:
        assert reports == [f"report {rank}".encode() for rank in range(ranks)]
        return decide.encode()

    def one(rank: int) -> None:
        agreement = Agreement(store, rank, ranks, patience=timedelta(seconds=patience_s))
        for _ in range(3):
            answers[rank] = agreement.meet(f"report {rank}".encode(), decided)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(present)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_all_ranks_learn_the_decision_again_and_again() -> None:
    assert meetings(3, 3, '{"setting": 1}', 60) == [b'{"setting": 1}'] * 3


def test_a_rank_that_never_comes_calls_the_meeting_off_for_all() -> None:
    assert meetings(3, 2, "go", 0.1) == [None, None]


def test_when_the_leader_fails_its_peers_are_not_left_waiting() -> None:
    store = HashStore()
    answer: list[bytes | None] = [b"nothing"]

    def peer() -> None:
        answer[0] = Agreement(store, 1, 2).meet(b"", lambda reports: b"")

    thread = threading.Thread(target=peer)
    thread.start()
    with pytest.raises(ZeroDivisionError):
        Agreement(store, 0, 2).meet(b"", lambda reports: bytes(1 // 0))
    thread.join()
    assert answer == [None]


# --- files ----------------------------------------------------------------------------------------


def test_settings_and_logs_are_read_back(tmp_path: Path) -> None:
    given = StepSettings(kind="compare", steps=300, settings=((), ("priority", "chunks=4")), marker="a.b:c")
    at_steps = AtSteps(given)
    (path,) = at_steps.variables(tmp_path, {}).values()
    read = read_settings(Path(path))
    assert read.settings == given.settings
    assert read.directory == str(tmp_path)
    log = StepLogFile(tmp_path, rank=0, ranks=2)
    log.log.blocks.append(Block(setting=1, times_ns=(3, 4, 5), dropped=1))
    log.write()
    (tmp_path / "steps-1.json").write_text("{")
    at_steps.read(tmp_path)
    (read_back,) = at_steps.logs
    assert read_back == log.log
    assert read_back.blocks[0].measured_ns == (4, 5)
    assert read_logs(tmp_path / "nowhere") == ()


def test_record_compare_and_tune_share_one_default_warm_up() -> None:
    lines = [line for path in SOURCE.rglob("*.py") for line in path.read_text().splitlines()]
    assert [line for line in lines if re.match(r"WARM_UP\b.*=|\s+warm_up: int = (?!WARM_UP)", line)] == [
        f"WARM_UP = {WARM_UP}  # steps before anything is recorded or measured, unless the user says otherwise"
    ]
