"""The launch shim that a wheel carries: old glibc, the same sources, no compiler needed, and safe to ignore."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.standin.build import HERE, launches
from tests.standin.running import PROGRAMS, kernels, run

from makeway.act.preload import build, prebuilt
from makeway.act.preload.rules import encode_rules, rules_of
from makeway.values.control import SmemPad
from makeway.values.errors import UnsupportedError
from makeway.values.plan import Plan

ROOT = HERE.parents[1]
CROSS = "aarch64-linux-gnu-gcc"
PAD = 4096
DLSYM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
    size_t (*length)(const char *) = (size_t (*)(const char *))dlsym(RTLD_DEFAULT, "strlen");
    size_t (*next)(const char *) = (size_t (*)(const char *))dlsym(RTLD_NEXT, "strlen");
    printf("%zu %zu %d", length("four"), next("five!"), dlsym(RTLD_DEFAULT, "no_such_function") == NULL);
    return 0;
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / f"launch-{platform.machine()}.so"
    subprocess.run(prebuilt.build_command(("gcc", "-Werror"), out), check=True, timeout=120)
    return out


def versions_by_readelf(library: Path) -> set[tuple[int, ...]]:
    table = subprocess.run(["readelf", "-V", "-W", str(library)], capture_output=True, text=True, check=True).stdout
    return {tuple(map(int, each.split("."))) for each in re.findall(r"Name: GLIBC_([0-9.]+)", table)}


def test_it_needs_no_glibc_newer_than_the_tag_of_the_wheel(shim: Path) -> None:
    needed = versions_by_readelf(shim)
    assert prebuilt.newest_glibc(shim) == max(version[:2] for version in needed)
    assert max(needed) <= prebuilt.NEWEST_GLIBC


def test_it_names_the_same_sources_as_a_shim_compiled_here(shim: Path, tmp_path: Path) -> None:
    assert prebuilt.identity(shim) == prebuilt.identity(build.library(tmp_path)) == prebuilt.source_digest()


def test_it_is_used_only_if_its_sources_are_this_package_s(shim: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="carries no compiled launch shim"):
        prebuilt.prebuilt_library(tmp_path)
    copy = tmp_path / shim.name
    copy.write_bytes(shim.read_bytes())
    assert prebuilt.prebuilt_library(tmp_path) == copy
    copy.write_bytes(shim.read_bytes().replace(prebuilt.source_digest().encode(), b"0" * 64))
    with pytest.raises(UnsupportedError, match="other sources"):
        prebuilt.prebuilt_library(tmp_path)
    copy.write_bytes(shim.read_bytes())
    copy.chmod(0o777)
    with pytest.raises(UnsupportedError, match="can be written by other users"):
        prebuilt.prebuilt_library(tmp_path)


def test_a_wheel_works_where_no_compiler_is_and_pads_as_a_local_build_does(tmp_path: Path) -> None:
    wheels, installed, empty = tmp_path / "wheels", tmp_path / "installed", tmp_path / "empty"
    command = [sys.executable, str(ROOT / "scripts/wheel"), str(wheels), platform.machine()]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(command, check=True, capture_output=True, timeout=120, env=environ)
    (wheel,) = wheels.iterdir()
    assert wheel.name.endswith(f"-py3-none-manylinux_2_28_{platform.machine()}.whl")
    zipfile.ZipFile(wheel).extractall(installed)
    empty.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", "from makeway.act.preload.build import library; print(library())"],
        env={"PATH": str(empty), "PYTHONPATH": str(installed), "HOME": str(empty)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = Path(done.stdout.strip())
    assert found == installed / f"makeway/act/preload/built/launch-{platform.machine()}.so", done.stderr
    rules = tmp_path / "rules"
    rules.write_bytes(encode_rules(rules_of(Plan(controls=(SmemPad(PAD, "gemm*"),)))))
    sizes = {}
    for name, library in (("local", build.library(tmp_path / "cache")), ("wheel", found), ("none", None)):
        record = tmp_path / name
        preload = {"LD_PRELOAD": str(library)} if library else {}
        program = run(
            "A40", PROGRAMS / "bindings_program.py", kernels(), "1", record=record, MAKEWAY_RULES=str(rules), **preload
        )
        assert program.returncode == 0, program.stderr
        sizes[name] = {launch.kernel: launch.smem_bytes for launch in launches(record)}
    assert sizes["wheel"] == sizes["local"]
    assert sizes["wheel"]["gemm"] == sizes["none"]["gemm"] + PAD


@pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"{CROSS} is not installed")
def test_the_aarch64_shim_compiles_and_its_dlsym_runs_under_emulation(tmp_path: Path) -> None:
    library, source, program = tmp_path / "launch-aarch64.so", tmp_path / "dlsym.c", tmp_path / "dlsym"
    subprocess.run(prebuilt.build_command((CROSS, "-Werror"), library), check=True, timeout=120)
    assert library.read_bytes()[18:20] == b"\xb7\0"  # EM_AARCH64
    assert max(versions_by_readelf(library)) <= prebuilt.NEWEST_GLIBC
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("qemu-aarch64 is not installed")
    source.write_text(DLSYM)
    subprocess.run([CROSS, "-O1", str(source), "-o", str(program)], check=True, timeout=60)
    preload = ("-L", "/usr/aarch64-linux-gnu", "-E", f"LD_PRELOAD={library}")
    done = subprocess.run([emulator, *preload, str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("4 5 1", "")
