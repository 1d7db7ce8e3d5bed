"""Footprints: what is loaded is what the files say, and what they cannot say is an error."""

from __future__ import annotations

import pytest

from makeway.values.collective import library_names, load_footprint, path_names
from makeway.values.errors import InputError, UnknownNameError, UnsupportedError


def test_nccl_blocks_have_the_published_sizes() -> None:
    sizes = {
        path: load_footprint(f"nccl-2.32.3/{path}", "sm_80").block for path in ("ring-simple", "ring-ll", "tree-simple")
    }
    assert {path: block.threads for path, block in sizes.items() if block} == {
        "ring-simple": 544,
        "ring-ll": 512,
        "tree-simple": 640,
    }


@pytest.mark.parametrize(
    ("name", "arch", "smem_bytes"),
    [
        ("nccl-2.32.3", "sm_80", 96_384),
        ("nccl-2.32.3", "sm_86", 96_384),
        ("nccl-2.32.3", "sm_90", 119_040),
        ("nccl-2.32.3", "sm_120", 98_560),
        ("nccl-2.27.5", "sm_80", 89_344),
        ("nccl-2.27.5", "sm_100", 103_808),
        ("nccl-2.21.5", "sm_90", 103_072),
    ],
)
def test_shared_memory_of_an_nccl_block(name: str, arch: str, smem_bytes: int) -> None:
    """Without the 1,024 B that the system adds to every block; the device adds those."""
    block = load_footprint(f"{name}/ring-simple", arch).block
    assert block is not None
    assert block.smem_bytes == smem_bytes


@pytest.mark.parametrize(
    ("asked", "arch", "stands"),
    [
        ("nccl-2.32.4", "sm_90", "nccl-2.32.3"),
        ("nccl-2.28.3", "sm_90", "nccl-2.27.5"),
        ("nccl-2.29.0", "sm_100", "nccl-2.30.7"),
        ("nccl-2.17.1", "sm_80", "nccl-2.21.5"),
        ("nccl-3.0.0", "sm_90", "nccl-2.32.3"),
        ("rccl-2.22.3", "gfx942", "rccl-5.4.3"),
        ("rccl-2.26.6", "gfx950", "rccl-mi350x"),
    ],
)
def test_any_version_maps_to_the_nearest_known_one_and_says_so(asked: str, arch: str, stands: str) -> None:
    path = "generic" if asked.startswith("rccl") else "ring-simple"
    footprint = load_footprint(f"{asked}/{path}", arch)
    assert footprint.block == load_footprint(f"{stands}/{path}", arch).block
    assert footprint.assumed == (f"no footprint of {asked} is known: {stands}, the nearest version, stands for it",)
    assert load_footprint(f"{stands}/{path}", arch).assumed == ()


def test_threads_can_be_set_and_shared_memory_stays() -> None:
    plain = load_footprint("nccl-2.32.3/ring-simple", "sm_90")
    fewer = load_footprint("nccl-2.32.3/ring-simple,threads=160", "sm_90")
    assert plain.block is not None
    assert fewer.block is not None
    assert (fewer.block.threads, fewer.block.smem_bytes) == (160, plain.block.smem_bytes)


def test_rccl_on_gfx90a_is_small_in_lds_and_large_in_registers() -> None:
    block = load_footprint("rccl-5.4.3/generic", "gfx90a").block
    assert block is not None
    assert (block.threads, block.registers_per_thread, block.smem_bytes) == (256, 259, 1728)


def test_a_block_written_out_is_taken_as_it_is() -> None:
    block = load_footprint("threads=768,registers=64,smem=160KiB,cluster=2", "sm_90").block
    assert block is not None
    assert (block.threads, block.smem_bytes, block.cluster) == (768, 163_840, 2)


def test_doubtful_facts_are_named() -> None:
    assert "smem_static_bytes" in load_footprint("rccl-5.4.3/generic", "gfx942").unconfirmed
    assert "smem_static_bytes" not in load_footprint("rccl-5.4.3/generic", "gfx90a").unconfirmed


@pytest.mark.parametrize("library", library_names())
def test_every_footprint_has_a_source_for_every_number(library: str) -> None:
    served = {"nccl": "sm_80", "rccl-5.4.3": "gfx90a", "rccl-mi350x": "gfx950"}
    arch = served.get(library) or served[library.partition("-")[0]]
    for path in path_names(library):
        footprint = load_footprint(path, arch)
        assert all(fact.source and not fact.source.endswith(".toml") for fact in footprint.facts.values())


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ("ncll-2.32.3/ring-simple", UnknownNameError, "did you mean 'nccl-2.32.3'"),
        ("nccl-2.32.3/ring-simpel", UnknownNameError, "did you mean 'nccl-2.32.3/ring-simple'"),
        ("nccl-2.32.3", UnknownNameError, "Known paths"),
        ("nccl-2.32.3/ring-simple,threads=300", InputError, "its block sizes: 544, 288, 160, 128"),
        ("nccl-2.32.3/ring-simple,blocks=3", InputError, "only threads=N may follow"),
        ("nccl-2.32.3/zero-cta,threads=128", InputError, "its block sizes: none"),
        ("threads=32", InputError, "lacks registers="),
    ],
)
def test_a_wrong_name_is_answered_with_what_there_is(asked: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        load_footprint(asked, "sm_90")


def test_a_library_without_code_for_the_device_says_which_have_it() -> None:
    with pytest.raises(UnsupportedError, match=r"no code for sm_70.*\n.*nccl-2\.27\.5"):
        load_footprint("nccl-2.32.3/ring-simple", "sm_70")
