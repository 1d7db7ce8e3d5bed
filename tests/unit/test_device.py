"""Devices: exact names, cited numbers, and errors that name the key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from makeway.values.device import device_names, load_device, parse_device
from makeway.values.errors import DataFileError, UnknownNameError

WANTED = [
    "A40", "A100-SXM4-40GB", "A100-SXM4-80GB", "H100-SXM5-80GB", "H200", "B200", "L40S", "V100-SXM2-16GB",
    "V100-SXM2-32GB", "RTX-PRO-6000-Blackwell", "RTX-5090", "MI250X", "MI300X", "MI350X", "CPU-host", "A800-SXM4-80GB",
    "B300", "GB200", "GH200-96GB", "H100-NVL-94GB", "H100-PCIe-80GB", "H20-SXM5-96GB", "H800-SXM5-80GB", "MI325X",
    "MI355X", "GB300", "H100-SXM-96GB-HBM2e-500W",
]  # fmt: skip

MINE = """
name = "Mine"
vendor = "nvidia"
arch = "sm_90"
link = "pcie"
[facts]
sms = 100
"""


def test_all_promised_devices_are_there() -> None:
    assert sorted(device_names()) == sorted(WANTED)


@pytest.mark.parametrize("name", WANTED)
def test_every_number_has_a_public_source(name: str) -> None:
    device = load_device(name)
    assert device.sms == device.facts["sms"].value
    for key, fact in device.facts.items():
        assert len(fact.source) > 10, key
        assert not fact.source.endswith(".toml"), f"{key} has no source"


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("PG509-200", "A100-SXM4-40GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA H800", "H800-SXM5-80GB"),
        ("NVIDIA H20", "H20-SXM5-96GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("AMD Instinct MI325X", "MI325X"),
        ("AMD Instinct MI355X", "MI355X"),
    ],
)
def test_names_that_profilers_write_are_known(alias: str, name: str) -> None:
    assert load_device(alias).name == name


def test_aliases_are_unambiguous() -> None:
    names = [name.lower() for device in map(load_device, device_names()) for name in (device.name, *device.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("H100-SXM5-80G", "H100-SXM5-80GB"), ("MI250", "MI250X"), ("NVIDIA A4O", "NVIDIA A40")],
)
def test_a_near_miss_suggests_the_right_name(asked: str, meant: str) -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean {re.escape(repr(meant))}"):
        load_device(asked)


@pytest.mark.parametrize(("asked", "name"), [("h200", "H200"), ("mi300x", "MI300X"), ("nvidia a40", "A40")])
def test_case_does_not_matter(asked: str, name: str) -> None:
    assert load_device(asked).name == name


@pytest.mark.parametrize(
    ("asked", "matches"),
    [
        ("A100", "it could be A100-SXM4-40GB, A100-SXM4-80GB: name one"),
        ("v100-sxm2", "it could be V100-SXM2-16GB, V100-SXM2-32GB: name one"),
        ("H100", "it could be H100-NVL-94GB, H100-PCIe-80GB, H100-SXM-96GB-HBM2e-500W, H100-SXM5-80GB: name one"),
        ("H800", "did you mean 'H800-SXM5-80GB'?"),
    ],
)
def test_a_part_of_a_name_lists_the_matches_and_is_never_guessed(asked: str, matches: str) -> None:
    with pytest.raises(UnknownNameError, match=re.escape(matches)):
        load_device(asked)


def test_an_unknown_name_is_never_another_device() -> None:
    with pytest.raises(UnknownNameError, match="makeway devices"):
        load_device("a toaster")


def test_a_users_file_takes_the_architectures_limits(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    device = load_device(str(file))
    assert (device.sms, device.sm.smem_bytes) == (100, 233_472)
    assert device.facts["sms"].source == str(file)
    assert device.hbm_bytes_per_s is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("sms = 100", "sms = 0"), "facts.sms must be a whole number of 1 or more"),
        (("sms = 100", 'sms = "many"'), "facts.sms: 'many' is not a number"),
        (("sms = 100", "sms = 1.5"), "facts.sms must be a whole number"),
        (("sms = 100", "sms = -3"), "facts.sms: -3 is not a number of 0 or more"),
        (("sms = 100", "smss = 100"), "unknown key 'smss'; did you mean 'sms'"),
        (("sms = 100", "max_warps = 64"), "facts.sms is missing"),
        (("sms = 100", "sms = { value = 100, source = 'x' }"), "source 'x' is not listed in [sources]"),
        (("sms = 100", "sms = { source = 'x' }"), "facts.sms: the value is missing"),
        (("sms = 100", "sms = { value = 1, sauce = 'x' }"), "unknown key 'sauce'"),
        (("sms = 100", "sms = 100\nhbm_bytes_per_s = 0"), "facts.hbm_bytes_per_s must be a number above 0"),
        (("sms = 100", "sms = 100\nregisters = 65535"), "registers (65535) must be a multiple of partitions"),
        (("sms = 100", "sms = 100\nsmem_bytes = 1024"), "smem_block_bytes is above smem_bytes"),
        (('arch = "sm_90"', 'arch = "sm_91"'), "facts.partitions is missing"),
        (('vendor = "nvidia"', 'vendor = "nvidea"'), "vendor is 'nvidea'; it must be one of nvidia, amd, cpu"),
        (('name = "Mine"', ""), "name is missing"),
        (('link = "pcie"', 'lnk = "pcie"'), "unknown key 'lnk'; did you mean 'link'"),
        (('link = "pcie"', 'link = "pcie'), "not a TOML file"),
    ],
)
def test_a_malformed_file_names_the_key(change: tuple[str, str], said: str) -> None:
    with pytest.raises(DataFileError, match=re.escape(said)) as caught:
        parse_device(MINE.replace(*change).encode(), where="mine.toml")
    assert str(caught.value).startswith("mine.toml: ")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DataFileError, match=r"cannot read device file 'nowhere\.toml'"):
        load_device("nowhere.toml")
