"""Presets of models and clusters: sizes that were published, sources, and bad files."""

from __future__ import annotations

from pathlib import Path

import pytest

from makeway.read.presets import (
    known_clusters,
    known_models,
    load_cluster,
    load_model,
    parse_cluster,
    parse_model,
)
from makeway.values.cluster import Jitter
from makeway.values.errors import DataFileError, UnknownNameError

# Billions of parameters as their makers state them: all, and those that a token uses.
PUBLISHED_SIZES = {
    "gpt-3-175b": (175, None), "gpt-3-13b": (13, None), "gpt-3-6.7b": (6.7, None), "gpt-3-2.7b": (2.7, None),
    "megatron-22b": (22, None), "megatron-530b": (530, None), "megatron-1t": (1008, None),
    "llama-2-7b": (6.74, None), "llama-2-13b": (13.0, None), "llama-2-70b": (69.0, None),
    "llama-3-8b": (8.03, None), "llama-3-70b": (70.6, None), "llama-3-405b": (405.9, None),
    "mixtral-8x7b": (46.7, 12.9), "mixtral-8x22b": (140.6, 39.1),
    "qwen3-0.6b": (0.6, None), "qwen3-1.7b": (1.72, None), "qwen3-4b": (4.02, None), "qwen3-8b": (8.2, None),
    "qwen3-14b": (14.8, None), "qwen3-32b": (32.8, None),
    "qwen3-30b-a3b": (30.5, 3.3), "qwen3-235b-a22b": (235, 22),
    "deepseek-v2": (236, 21), "deepseek-v3": (671, 37),
    "nemotron-4-15b": (15.6, None), "nemotron-4-340b": (340, None),
}  # fmt: skip


@pytest.mark.parametrize(("name", "sizes"), PUBLISHED_SIZES.items())
def test_parameters_are_as_many_as_published(name: str, sizes: tuple[float, float | None]) -> None:
    model = load_model(name)
    assert model.parameters / 1e9 == pytest.approx(sizes[0], rel=0.025)
    if sizes[1] is not None:
        assert model.active_parameters / 1e9 == pytest.approx(sizes[1], rel=0.03)


def test_every_preset_has_a_source_and_goes_by_its_file_name() -> None:
    for name in known_models():
        assert load_model(name).source
        assert load_model(name.upper()).name == name
    for name in known_clusters():
        cluster = load_cluster(name)
        assert cluster.source
        assert cluster.name == name
        assert 3 <= len(cluster.levels) <= 4
        assert all(level.source for level in cluster.levels)


@pytest.mark.parametrize("name", known_clusters())
def test_networks_get_no_faster_outwards(name: str) -> None:
    levels = load_cluster(name).levels
    assert [level.bytes_per_s for level in levels] == sorted((level.bytes_per_s for level in levels), reverse=True)
    assert [level.latency_ns for level in levels] == sorted(level.latency_ns for level in levels)


def test_the_innermost_network_has_the_rate_of_the_device() -> None:
    for name in known_clusters():
        cluster = load_cluster(name)
        assert cluster.levels[0].bytes_per_s == cluster.device.link_bytes_per_s


def test_an_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'llama-3-70b'"):
        load_model("llama3-70b")
    with pytest.raises(UnknownNameError, match=r"did you mean 'dgx-h100'"):
        load_cluster("dgx-h10")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MODEL)
    assert load_model(str(path)).layers == 2


MODEL = 'name = "m"\nlayers = 2\nhidden = 64\nffn = 256\nheads = 4\nkv_heads = 2\nhead_dim = 16\nvocab = 100\nseq = 8\n'
LEVEL = '[[level]]\nname = "a"\nbytes_per_s = 1e9\nlatency_ns = 1.0\nefficiency = 0.5\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (MODEL.replace("layers = 2\n", ""), "layers is missing"),
        (MODEL.replace("layers = 2", "layers = 2.5"), "layers must be a whole number"),
        (MODEL.replace("layers = 2", "layers = true"), "layers must be a whole number"),
        (MODEL + "hiden = 3\n", "unknown key 'hiden'; did you mean 'hidden'"),
        (MODEL + "experts = 8\n", "expected a table"),
        (MODEL + "[experts]\ncount = 2\ntop_k = 3\nffn = 8\n", "visits 1 to 2 experts"),
    ],
)
def test_a_bad_model_file_names_file_and_key(content: str, message: str) -> None:
    with pytest.raises(DataFileError, match=rf"m\.toml.*{message}"):
        parse_model(content.encode(), where="m.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('name = "c"\ndevice = "H200"\n', "has no network"),
        (f'name = "c"\n{LEVEL}', "device is missing"),
        (f'name = "c"\ndevice = "H200"\n{LEVEL}efficency = 2.0\n', "did you mean 'efficiency'"),
        (f'name = "c"\ndevice = "H200"\n{LEVEL}{LEVEL}', "only the outermost"),
        ('name = "c"\ndevice = "H200"\nlevel = 3\n', r"\[\[level\]\]"),
    ],
)
def test_a_bad_cluster_file_names_file_and_key(content: str, message: str) -> None:
    with pytest.raises(DataFileError, match=rf"c\.toml.*{message}"):
        parse_cluster(content.encode(), where="c.toml")


JITTER = """
name = "own"
device = "H100-SXM5-80GB"
[jitter]
transient = 0.01
persistent = {persistent}
source = "our own steps"
[[level]]
name = "NVLink"
bytes_per_s = 450e9
latency_ns = 2000.0
efficiency = 0.8
"""


def test_a_cluster_file_may_say_how_its_gpus_vary() -> None:
    cluster = parse_cluster(JITTER.format(persistent=0.02).encode(), where="c.toml")
    assert cluster.jitter == Jitter(transient=0.01, persistent=0.02, source="our own steps")
    with pytest.raises(DataFileError, match=r"c\.toml: jitter: .*from 0 to 1, got 0.01 and 2"):
        parse_cluster(JITTER.format(persistent=2).encode(), where="c.toml")
