"""docs/architecture.md is true to the code: its table of bands is the import contract's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"


def test_the_table_of_bands_is_fresh(tmp_path: Path) -> None:
    again = Path(shutil.copy(PAGE, tmp_path))
    subprocess.run([sys.executable, ROOT / "scripts" / "architecture", again], check=True)
    assert again.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8"), "stale: run scripts/architecture"


def test_the_table_has_every_band_of_the_contract_once_and_in_its_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    rows = re.findall(r"^\| `(\w+)/` \| \S", PAGE.read_text(encoding="utf-8"), re.M)
    assert [f"makeway.{band}" for band in reversed(rows)] == layers


def test_bands_that_the_page_names_exist() -> None:
    named = re.findall(r"(?<=^\| )`(\w+)/`", PAGE.read_text(encoding="utf-8"))
    assert all((ROOT / "src" / "makeway" / band).is_dir() for band in named), named


def test_a_package_that_the_contract_does_not_name_stops_the_script(tmp_path: Path) -> None:
    for part in ("pyproject.toml", "scripts/architecture", "docs/architecture.md"):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / part, tmp_path / part)
    for source in (ROOT / "src" / "makeway").glob("**/*.py"):
        copy = tmp_path / source.relative_to(ROOT)
        if len(source.relative_to(ROOT / "src" / "makeway").parts) <= 2:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    (tmp_path / "src" / "makeway" / "cellar.py").write_text('"""Nobody knows."""\n')
    done = subprocess.run(
        [sys.executable, tmp_path / "scripts" / "architecture"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "cellar" in done.stderr
