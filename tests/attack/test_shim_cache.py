"""A compiled shim that somebody else could have written is never loaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.attack.running import MAKEWAY, NOBODY, Ended, environment, run
from tests.attack.shim_programs import Binaries
from tests.preload.programs import compile_program

SHIM_PLAN = 'version = 1\n[[control]]\nkind = "SmemPad"\npad_bytes = 1024\n'
EVIL = """
#include <fcntl.h>
#include <stdlib.h>
__attribute__((constructor)) static void own(void) { open(getenv("OWNED"), O_CREAT | O_WRONLY, 0600); }
"""


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that leaves a file behind when it is loaded."""
    home = tmp_path_factory.mktemp("evil")
    (home / "evil.c").write_text(EVIL)
    return compile_program(home / "evil.so", "-fPIC", "-shared", str(home / "evil.c"))


# A compiler that hands out what was compiled before, so that no test waits for one.
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo 1; exit; fi
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then exec cp {shim} "$2"; fi
    shift
done
exit 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one run has its cache and everything else."""

    cache: Path
    temporary: Path
    compiler: Path

    @property
    def owned(self) -> Path:
        """The file that the other user's code leaves behind."""
        return self.temporary / "owned"

    def run(self) -> Ended:
        plan = self.temporary / "plan.toml"
        plan.write_text(SHIM_PLAN)
        variables = {"CC": self.compiler, "XDG_CACHE_HOME": self.cache, "OWNED": self.owned, "TMPDIR": self.temporary}
        env = environment(**{name: str(value) for name, value in variables.items()})
        return run(*MAKEWAY, "run", "--plan", plan, "--json", "--", "true", env=env)

    def libraries(self) -> list[Path]:
        """The compiled libraries, in the cache or where there is none that can be trusted."""
        return [path for home in (self.cache, self.temporary) for path in home.rglob("*.so")]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory, compiled: Binaries) -> Path:
    path = tmp_path_factory.mktemp("compiler") / "compiler"
    path.write_text(COMPILER.format(shim=compiled.shim))
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def library_name(tmp_path_factory: pytest.TempPathFactory, compiler: Path) -> str:
    """What the library is called in every cache, with that compiler."""
    home = tmp_path_factory.mktemp("first")
    (home / "temporary").mkdir()
    first = Place(cache=home / "cache", temporary=home / "temporary", compiler=compiler)
    assert first.run().code == 0
    (library,) = first.libraries()
    return library.name


@pytest.fixture
def place(tmp_path: Path, compiler: Path) -> Place:
    (tmp_path / "temporary").mkdir()
    return Place(cache=tmp_path / "cache", temporary=tmp_path / "temporary", compiler=compiler)


def foreign_file(cache: Path, library: Path) -> None:
    os.chown(library, NOBODY, NOBODY)


def foreign_directory(cache: Path, library: Path) -> None:
    os.chown(library.parent, NOBODY, NOBODY)


def foreign_home(cache: Path, library: Path) -> None:
    os.chown(cache, NOBODY, NOBODY)


def group_writable_home(cache: Path, library: Path) -> None:
    os.chown(cache, -1, NOBODY)
    cache.chmod(0o770)


def writable_home(cache: Path, library: Path) -> None:
    cache.chmod(0o777)


def writable_directory(cache: Path, library: Path) -> None:
    library.parent.chmod(0o777)


def writable_file(cache: Path, library: Path) -> None:
    library.chmod(0o666)


def link_to_a_foreign_file(cache: Path, library: Path) -> None:
    elsewhere = cache.parent / "elsewhere.so"
    shutil.move(library, elsewhere)
    os.chown(elsewhere, NOBODY, NOBODY)
    library.symlink_to(elsewhere)


def link_to_a_foreign_directory(cache: Path, library: Path) -> None:
    elsewhere = cache.parent / "elsewhere"
    shutil.move(library.parent, elsewhere)
    os.chown(elsewhere, NOBODY, NOBODY)
    library.parent.symlink_to(elsewhere)


OPENINGS = (
    foreign_file,
    foreign_directory,
    foreign_home,
    group_writable_home,
    writable_home,
    writable_directory,
    writable_file,
    link_to_a_foreign_file,
    link_to_a_foreign_directory,
)


@pytest.mark.parametrize("opened", OPENINGS, ids=lambda opened: opened.__name__)
def test_a_library_that_another_user_could_replace_is_not_loaded(
    evil: Path, place: Place, library_name: str, second_user: None, opened: Callable[[Path, Path], None]
) -> None:
    planted = place.cache / "makeway" / library_name
    planted.parent.mkdir(parents=True, mode=0o700)
    shutil.copy(evil, planted)
    planted.chmod(0o700)
    opened(place.cache, planted)
    ended = place.run()
    assert ended.code == 0, ended
    assert not place.owned.exists(), "the other user's code ran"
    assert "the cache of compiled libraries is not used" in ended.err


def test_the_same_library_in_a_place_of_our_own_is_loaded(evil: Path, place: Place, library_name: str) -> None:
    planted = place.cache / "makeway" / library_name
    planted.parent.mkdir(parents=True, mode=0o700)
    place.cache.chmod(0o755)
    shutil.copy(evil, planted)
    planted.chmod(0o700)
    assert place.run().code == 0
    assert place.owned.exists(), "the other tests would pass with any library"


def test_the_cache_is_for_this_user_alone(place: Place) -> None:
    before = os.umask(0)
    try:
        assert place.run().code == 0
    finally:
        os.umask(before)
    (library,) = place.libraries()
    assert not library.stat().st_mode & 0o022
    assert not library.parent.stat().st_mode & 0o077


def test_a_library_of_our_own_is_loaded_again(place: Place) -> None:
    assert place.run().code == 0
    (library,) = place.libraries()
    before = library.stat()
    assert place.run().code == 0
    assert place.libraries() == [library]
    assert library.stat().st_ino == before.st_ino
