"""Before a program has a process group: what `begin` touches, which ranks meet, what receipt files hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from makeway.act.cpu.cores import place_on_host
from makeway.act.launch.environment import rank_of
from makeway.act.launch.receipt_file import ReceiptFile, read_receipt_files
from makeway.act.torch.meeting import all_present
from makeway.act.torch.process import Process
from makeway.values.control import Chunks, CommPriority, Control, CopyEngine, parse_control
from makeway.values.receipt import Receipt, Status

STATUSES: st.SearchStrategy[Status] = st.sampled_from(["applied", "refused", "no effect"])

APPLIED = Receipt(control=Chunks(2), status="applied", detail="")


def run(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


# --- loading --------------------------------------------------------------------------------------


def test_makeway_loads_neither_torch_nor_its_own_torch_package() -> None:
    code = "import sys, makeway; assert not {'torch', 'makeway.torch'} & set(sys.modules)"
    assert run(code).returncode == 0


def test_without_torch_the_package_names_the_line_that_brings_it() -> None:
    code = """if True:
        import importlib.util
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
        from makeway.values.errors import MissingExtraError
        try:
            import makeway.torch
        except MissingExtraError as error:
            print(error)
    """
    assert "pip install 'makeway[torch]'" in run(code).stdout


def test_begin_works_while_torch_is_being_imported_and_loads_nothing_more_of_it(tmp_path: Path) -> None:
    """As a start hook calls it: at the moment torch.distributed has been run, in the middle of `import torch`."""
    code = """if True:
        import importlib.machinery, sys

        class Hook:
            def find_spec(self, name, path=None, target=None):
                if name != "torch.distributed":
                    return None
                spec = importlib.machinery.PathFinder.find_spec(name, path)
                run = spec.loader.exec_module
                def exec_module(module):
                    run(module)
                    before = {name for name in sys.modules if name.startswith("torch")}
                    from makeway.act.torch.autostart import begin
                    begin(sys.argv[1], sys.argv[2])
                    assert {name for name in sys.modules if name.startswith("torch")} == before
                spec.loader.exec_module = exec_module
                return spec

        sys.meta_path.insert(0, Hook())
        import torch
        from torch.distributed import init_process_group
        from torch.distributed.device_mesh import init_device_mesh
        assert init_process_group.__module__ == "torch.distributed.distributed_c10d"
        assert init_process_group.__wrapped__.__module__ == init_process_group.__module__
        assert torch.distributed.distributed_c10d.init_process_group is init_process_group
        assert torch.distributed.device_mesh.init_process_group is init_process_group
        init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        torch.distributed.destroy_process_group()
    """
    plan = tmp_path / "plan.toml"
    plan.write_text('version = 2\n[[control]]\nkind = "priority"\n')
    done = run(code, plan, tmp_path / "receipts")
    assert done.returncode == 0, done.stderr
    (process,) = read_receipt_files(tmp_path / "receipts")
    assert [(receipt.control, receipt.carrier) for receipt in process.receipts] == [(CommPriority(), "torch on CPU")]


@pytest.mark.parametrize("text", ["", "version = 99", "version = 1\n[[control]]\nkind = 'Nonsense'", None])
def test_a_plan_that_cannot_be_read_is_an_error_in_the_file(tmp_path: Path, text: str | None) -> None:
    plan = tmp_path / "plan.toml"
    if text is not None:
        plan.write_text(text)
    process = Process(plan, tmp_path / "receipts")
    assert process.group_options({}) == {}
    process.group_added()
    (file,) = (tmp_path / "receipts").iterdir()
    assert "plan.toml" in json.loads(file.read_text())["error"]


def test_a_program_runs_with_a_plan_that_cannot_be_read(tmp_path: Path) -> None:
    code = """if True:
        import sys, torch.distributed as dist
        from makeway.act.torch.autostart import begin
        begin(sys.argv[1], sys.argv[2])
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.new_group([0])
        dist.destroy_process_group()
    """
    done = run(code, tmp_path / "none.toml", tmp_path / "receipts")
    assert (done.returncode, done.stderr) == (0, "")


# --- receipts -------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["priority", "copy-engine", "chunks=4"]), STATUSES, st.text())))
@settings(max_examples=25)
def test_the_file_always_holds_the_last_receipt_of_every_control(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, Status, str]]
) -> None:
    directory = tmp_path_factory.mktemp("receipts") / "made when needed"
    file = ReceiptFile(directory)
    last: dict[str, tuple[str, str]] = {}
    for name, status, detail in rows:
        counted = (("calls", len(detail)),)
        file.set(Receipt(control=parse_control(name), status=status, detail=detail, evidence=counted))
        last[name] = (status, detail)
        document = json.loads((directory / f"torch-{os.getpid()}.json").read_text())
        assert {row["control"]: (row["status"], row["detail"]) for row in document["receipts"]} == last
        assert [path.name for path in directory.iterdir()] == [f"torch-{os.getpid()}.json"]
        (process,) = read_receipt_files(directory)
        assert process.receipts == file.receipts


def test_a_failure_is_said_of_controls_without_a_receipt_only(tmp_path: Path) -> None:
    file = ReceiptFile(tmp_path)
    controls: tuple[Control, ...] = (CommPriority(), CopyEngine())
    file.set(Receipt(control=controls[0], status="applied", detail="read back"))
    file.fail(ValueError("no such file"), controls)
    assert file.receipts == (
        Receipt(control=controls[0], status="applied", detail="read back"),
        Receipt(control=controls[1], status="refused", detail="could not be applied: ValueError: no such file"),
    )


def test_receipts_that_cannot_be_written_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = ReceiptFile(tmp_path / "file" / "below")
    file.set(APPLIED)
    assert "cannot be written" in str(file.error)


def test_a_forked_child_leaves_the_file_of_its_parent_alone(tmp_path: Path) -> None:
    file = ReceiptFile(tmp_path)
    file._pid += 1  # as in the child of that process
    file.set(APPLIED)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None),
        ({"RANK": "3", "SLURM_PROCID": "9", "SLURM_STEP_ID": "0"}, 3),
        ({"SLURM_PROCID": "9", "SLURM_STEP_ID": "0"}, 9),
        ({"SLURM_PROCID": "0"}, None),  # a batch script
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "OMPI_COMM_WORLD_RANK": "3"}, 3),  # mpirun started its daemons
        ({"RANK": "x"}, None),
    ],
)
def test_the_rank_is_the_launchers(environ: dict[str, str], rank: int | None) -> None:
    assert rank_of(environ) == rank


# --- which ranks meet ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, (1, 4)),
        ({"LOCAL_RANK": "1"}, None),
        ({"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"}, None),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, (0, 2)),
    ],
)
def test_a_place_on_the_host_is_taken_whole_or_not_at_all(
    environ: dict[str, str], place: tuple[int, int] | None
) -> None:
    assert place_on_host(environ) == place


@pytest.mark.parametrize("coming", [1, 2, 3])
def test_ranks_go_on_together_or_not_at_all(coming: int) -> None:
    store, answers = HashStore(), []
    patience = timedelta(seconds=60 if coming == 3 else 0.2)

    def come() -> None:
        answers.append(all_present(store, 3, "meeting", patience))

    threads = [threading.Thread(target=come) for _ in range(coming)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [coming == 3] * coming


def test_a_rank_that_comes_after_the_others_have_left_is_not_let_in() -> None:
    store = HashStore()
    assert not all_present(store, 2, "meeting", timedelta(seconds=0.1))
    assert not all_present(store, 2, "meeting", timedelta(seconds=60))
