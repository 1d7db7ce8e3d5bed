"""The start hook in a Python of its own: it acts once torch is complete, and no other program notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from makeway.act.launch.environment import START_HOOK

FAKE_TORCH = {
    "torch/__init__.py": "import torch.distributed\nafter = True\n",
    "torch/distributed.py": "import torch\nassert not hasattr(torch, 'after')\n",
}
AUTOSTART = "makeway/act/torch/autostart.py"
AUTOSTART = "makeway/act/torch/autostart.py"
FAKE_MAKEWAY = {
    "makeway/__init__.py": "",
    AUTOSTART: "import torch\ndef begin(plan, receipts):\n    print('begin', plan, torch.after)\n",
}
FAILING = {**FAKE_MAKEWAY, AUTOSTART: "def begin(plan, receipts):\n    raise ValueError('broken')\n"}


@pytest.fixture
def lone_python(tmp_path: Path) -> str:
    """An interpreter that has no packages: neither makeway nor torch, nor anything that start-up files load."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    return str(tmp_path / "venv" / "bin" / "python")


def run(python: str, code: str, tmp_path: Path, *files: dict[str, str], flags: tuple[str, ...] = ()) -> str:
    """What the code prints; the files are modules on its path, behind the hook."""
    library = tmp_path / "library"
    for module, text in {name: text for modules in files for name, text in modules.items()}.items():
        (library / module).parent.mkdir(parents=True, exist_ok=True)
        (library / module).write_text(text)
    receipts = tmp_path / "receipts"
    receipts.mkdir(parents=True, exist_ok=True)
    path = f"{START_HOOK}{os.pathsep}{library}"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "MAKEWAY_PLAN": "P", "MAKEWAY_RECEIPTS": str(receipts)}
    done = subprocess.run(
        [python, "-W", "error", *flags, "-c", code],
        env={**environ, "RANK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


def written(tmp_path: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in (tmp_path / "receipts").iterdir()]


@pytest.mark.parametrize("code", ["import torch", "import torch.distributed", "from torch.distributed import torch"])
def test_begin_is_called_once_when_torch_is_complete(code: str, lone_python: str, tmp_path: Path) -> None:
    out = run(lone_python, f"{code}\nimport torch.distributed", tmp_path, FAKE_TORCH, FAKE_MAKEWAY)
    assert out == "begin P True\n"
    assert written(tmp_path) == []


def test_torch_keeps_its_own_loader_and_the_hook_leaves_no_trace(lone_python: str, tmp_path: Path) -> None:
    code = """
import sys
import torch, torch.distributed
print([vars(module.__loader__).keys() - {'name', 'path'} for module in (torch, torch.distributed)])
print([finder for finder in sys.meta_path if 'Watch' in repr(finder)])
print([entry for entry in sys.path if entry.endswith('launch/start')])
"""
    assert run(lone_python, code, tmp_path, FAKE_TORCH, FAKE_MAKEWAY) == "begin P True\n[set(), set()]\n[]\n[]\n"


def test_without_makeway_an_error_is_written_and_the_program_goes_on(lone_python: str, tmp_path: Path) -> None:
    assert run(lone_python, "import torch\nprint(torch.after)", tmp_path, FAKE_TORCH) == "True\n"
    [document] = written(tmp_path)
    assert (document["rank"], document["receipts"]) == (1, [])
    assert str(document["error"]).startswith(f"makeway is not importable by {lone_python}: ModuleNotFoundError")


def test_a_failure_is_written_and_the_program_goes_on(lone_python: str, tmp_path: Path) -> None:
    assert run(lone_python, "import torch\nprint(torch.after)", tmp_path, FAKE_TORCH, FAILING) == "True\n"
    [document] = written(tmp_path)
    assert document["error"] == f"the start hook failed in {lone_python}: ValueError: broken"


def test_a_program_without_torch_gets_nothing_loaded(lone_python: str, tmp_path: Path) -> None:
    code = "import sys\nprint(sorted(sys.modules.keys() & {'json', 'typing', 'importlib.util', 'makeway', 'torch'}))"
    assert run(lone_python, code, tmp_path, FAKE_TORCH, FAKE_MAKEWAY) == "[]\n"
    failing = "try:\n    import torch\nexcept ImportError as error:\n    print(error)"
    assert run(lone_python, failing, tmp_path / "without") == "No module named 'torch'\n"
    assert written(tmp_path) == written(tmp_path / "without") == []


def test_the_sitecustomize_that_was_hidden_runs(lone_python: str, tmp_path: Path) -> None:
    own = {"sitecustomize.py": "print('own')\nthere = 1\n"}
    code = "import sitecustomize\nprint(sitecustomize.there)\nimport torch"
    assert run(lone_python, code, tmp_path, own, FAKE_TORCH, FAKE_MAKEWAY) == "own\n1\nbegin P True\n"


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_python_that_ignores_its_environment_does_not_see_it(flag: str, lone_python: str, tmp_path: Path) -> None:
    code = "import sys\nprint([finder for finder in sys.meta_path if 'Watch' in repr(finder)])"
    assert run(lone_python, code, tmp_path, FAKE_TORCH, FAKE_MAKEWAY, flags=(flag,)) == "[]\n"
