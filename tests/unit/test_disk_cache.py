"""Runs on disk: what is kept, for how long, and for which model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from makeway.decide.planning import memo
from makeway.decide.planning.score import Controls
from makeway.model import residency
from makeway.model.simulate import disk_cache, kept_runs
from makeway.model.simulate.disk_cache import DiskCache
from makeway.model.simulate.policies import HBM_POLICIES, StrictHeadOfLine
from makeway.model.simulate.program import EngineOp, Program, Site
from makeway.model.simulate.run_result import OpTimes, RunResult
from makeway.values.control import CommPriority, LaunchOrder
from makeway.values.device import load_device

A100 = load_device("A100-SXM4-80GB")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    disk_cache._model_version.cache_clear()
    kept_runs.kept_run.cache_clear()
    yield tmp_path / "makeway" / "runs"
    disk_cache._model_version.cache_clear()
    kept_runs.kept_run.cache_clear()


def test_numbers_come_back_by_key_and_prefix(folder: Path) -> None:
    cache = DiskCache("runs", "a")
    cache.write("key", [1, 2.5])
    assert cache.read("key") == [1.0, 2.5]
    assert DiskCache("runs", "a").read("key") == [1.0, 2.5]
    assert cache.read("other") is None
    assert DiskCache("runs", "b").read("key") is None
    (file,) = folder.iterdir()
    assert len(file.stem) == 40
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("changed", ["residency", "simulator"])
def test_a_changed_source_of_the_model_reads_nothing(
    changed: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DiskCache("runs", "a").write("key", [1.0])
    copies = tmp_path / "model" / "simulate"
    copies.mkdir(parents=True)
    for source in Path(disk_cache.__file__).parent.glob("*.py"):
        (copies / source.name).write_bytes(source.read_bytes())
    (copies.parent / "residency.py").write_bytes(Path(residency.__file__).read_bytes())
    monkeypatch.setattr(disk_cache, "__file__", str(copies / "disk_cache.py"))
    monkeypatch.setattr(residency, "__file__", str(copies.parent / "residency.py"))
    disk_cache._model_version.cache_clear()
    assert DiskCache("runs", "a").read("key") == [1.0]  # equal sources elsewhere are the same model
    file = copies.parent / "residency.py" if changed == "residency" else copies / "waves.py"
    file.write_text(file.read_text() + "\n")
    disk_cache._model_version.cache_clear()
    assert DiskCache("runs", "a").read("key") is None


def test_a_search_is_remembered_under_model_planner_values_and_data() -> None:
    root = Path(memo.__file__).parents[2]
    for part in ("model/simulate/driver.py", "model/residency.py", "values/device.py", "decide/planning/score.py",
                 "data/devices/a40.toml", "data/model-error.toml"):  # fmt: skip
        files = {file for pattern in memo._DECIDING for file in root.glob(f"{pattern}/*.*")}
        assert root / part in files


def test_a_search_that_ended_early_is_replayed_as_far_as_it_goes(folder: Path) -> None:
    first = memo.SearchMemo("question")
    times: dict[Controls, float | None] = {(): 5.0, (CommPriority(),): None, (LaunchOrder(),): 3.0}
    asked: list[Controls] = []

    def time_of(controls: Controls) -> float | None:
        asked.append(controls)
        return times[controls]

    answer = first.replayed(time_of)
    assert [answer(controls) for controls in list(times)[:2]] == [5.0, None]
    first.keep()
    again = memo.SearchMemo("question")
    answer = again.replayed(time_of)
    assert [answer(controls) for controls in times] == [5.0, None, 3.0]
    assert asked == [(), (CommPriority(),), (LaunchOrder(),)]  # the first two were known
    again.keep()
    third = memo.SearchMemo("question").replayed(time_of)
    assert [third(controls) for controls in times] == [5.0, None, 3.0]
    assert len(asked) == 3
    assert memo.SearchMemo("another").replayed(time_of)(()) == 5.0
    assert len(asked) == 4


def test_every_deciding_file_is_part_of_what_a_search_is_remembered_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("model/a.py", "values/b.py", "data/devices/c.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr("makeway.__file__", str(tmp_path / "__init__.py"))
    versions = set()
    for name in ("model/a.py", "values/b.py", "data/devices/c.toml"):
        memo._version.cache_clear()
        versions.add(memo._version())
        (tmp_path / name).write_text("2")
    memo._version.cache_clear()
    versions.add(memo._version())
    memo._version.cache_clear()
    assert len(versions) == 4


@pytest.mark.parametrize("text", ["[1.0, Infinity]", "[true]", '["1"]', "{}", "1.0", "[1.0"])
def test_what_is_no_list_of_finite_numbers_is_not_read(folder: Path, text: str) -> None:
    cache = DiskCache("runs", "a")
    cache.write("key", [1.0])
    (file,) = folder.iterdir()
    file.write_text(f"{disk_cache._digest(text)}\n{text}")
    assert cache.read("key") is None


def test_a_run_too_large_for_a_file_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "MOST_BYTES", 100)
    cache = DiskCache("runs", "a")
    cache.write("large", [1.5] * 25)
    assert list(folder.iterdir()) == []
    cache.write("small", [1.5] * 5)
    assert cache.read("small") == [1.5] * 5
    monkeypatch.setattr(disk_cache, "MOST_BYTES", 20)
    assert cache.read("small") is None


def test_a_folder_that_others_may_write_to_is_not_used(folder: Path) -> None:
    DiskCache("runs", "a").write("key", [1.0])
    for mode, kept in ((0o720, None), (0o702, None), (0o755, [1.0]), (0o700, [1.0])):
        folder.chmod(mode)
        assert DiskCache("runs", "a").read("key") == kept


def test_the_oldest_files_go_until_a_quarter_is_free(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DiskCache("runs", "a")
    for number in range(10):
        before = set(folder.iterdir())
        cache.write(number, [1.5] * 20)
        (written,) = set(folder.iterdir()) - before
        os.utime(written, ns=(number, number))
    size = written.stat().st_size
    monkeypatch.setattr(disk_cache, "MOST_FOLDER_BYTES", 10 * size)
    disk_cache._drop_oldest(folder)
    assert len(list(folder.iterdir())) == 10
    monkeypatch.setattr(disk_cache, "MOST_FOLDER_BYTES", 8 * size)
    disk_cache._drop_oldest(folder)
    assert [number for number in range(10) if cache.read(number)] == [4, 5, 6, 7, 8, 9]


def test_a_folder_is_checked_once_in_a_while(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[Path] = []
    monkeypatch.setattr(disk_cache, "_drop_oldest", checks.append)
    disk_cache._writes.clear()
    cache = DiskCache("runs", "a")
    for number in range(disk_cache._WRITES_PER_CHECK + 1):
        cache.write(number, [1.0])
    assert checks == [folder, folder]


# --- whole runs --------------------------------------------------------------------------------


def program(**changes: object) -> Program:
    copy = EngineOp(name="c", kind="copy", work_ns=1e5, group="c")
    return Program(sm=A100.sm, sites=(Site(part=None, gpc=0, sms=4),), ranks=1, ops=(copy,), **changes)  # type: ignore[arg-type]


def test_each_policy_has_its_own_run(folder: Path) -> None:
    for hbm in HBM_POLICIES.values():
        kept_runs.kept_run(program(), "block", StrictHeadOfLine(), hbm)
    kept_runs.kept_run(program(seed=1), "block", StrictHeadOfLine(), HBM_POLICIES["max-min"])
    assert len(list(folder.iterdir())) == len(HBM_POLICIES) + 1
    kept_runs.kept_run(program(), "class", StrictHeadOfLine(), HBM_POLICIES["max-min"])
    assert len(list(folder.iterdir())) == len(HBM_POLICIES) + 1  # the class engine is quick enough


def test_the_times_of_a_kept_run_are_in_order_or_it_is_not_believed(folder: Path) -> None:
    result = RunResult(
        times=(OpTimes(arrived_ns=1.0, started_ns=2.0, moving_ns=3.0, ended_ns=4.0),) * 2, samples=(), events=7
    )
    numbers = kept_runs._numbers(result)
    assert kept_runs._result(numbers, 2) == result
    assert kept_runs._result(numbers, 1) is None
    assert kept_runs._result(None, 2) is None
    for at in range(1, len(numbers)):
        damaged = [*numbers[:at], -1.0, *numbers[at + 1 :]]
        assert kept_runs._result(damaged, 2) is None
    for at in (1, 2, 3, 5, 6, 7):
        assert kept_runs._result([*numbers[:at], 9.0, *numbers[at + 1 :]], 2) is None


def test_a_kept_run_is_what_the_next_process_reads(folder: Path) -> None:
    first = kept_runs.kept_run(program(), "block", StrictHeadOfLine(), HBM_POLICIES["proportional"])
    (file,) = folder.iterdir()
    numbers = json.loads(file.read_text().partition("\n")[2])
    text = json.dumps([*numbers[:-1], numbers[-1] + 5.0])
    file.write_text(f"{disk_cache._digest(text)}\n{text}")
    kept_runs.kept_run.cache_clear()
    again = kept_runs.kept_run(program(), "block", StrictHeadOfLine(), HBM_POLICIES["proportional"])
    assert again.end_ns == first.end_ns + 5.0
