"""The plugin and its driver compiled with sanitizers."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.preload.test_preload_sanitizers import OPTIONS, SANITIZERS
from tests.tuner.programs import ALL_REDUCE, MIB, VERSIONS, Bench, compile_driver, compile_plugin

from makeway.act.tuner.channels import ChannelRule, encode_file
from makeway.act.tuner.live import set_channels

RULES = encode_file(
    (
        ChannelRule(collective="all-reduce", channels=4, algorithm="tree", protocol="simple", only_simple=False),
        ChannelRule(channels=8, min_bytes=1 << 18),
    ),
    most_channels=8,
)


@pytest.fixture(scope="module", params=sorted(SANITIZERS))
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    home, flags = tmp_path_factory.mktemp("watched"), SANITIZERS[request.param]
    driver, plugin = compile_driver(home / "driver", *flags), compile_plugin(home / "plugin.so", *flags)
    return Bench(driver=driver, plugin=plugin, home=home, extra=OPTIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_calls_are_clean(watched: Bench, version: int) -> None:
    calls = [word for kind in range(-1, 7) for size in (0, 1, MIB, 2**63 - 1) for word in ("call", kind, size)]
    steps = ("comm", 8, *calls, "end", "reopen", "comm", 2, *calls, "fork", *calls, "end")
    assert len(watched.ask(version, *steps, rules=RULES).answers) == 4 * 32


def test_threads_and_changes_are_clean(watched: Bench) -> None:
    path = watched.rules(RULES)
    for number in range(1, 20):
        set_channels(path, 1 + number % 8, from_call=number * 50)
    for way in ("threads", "churn"):
        asked = watched.ask(6, "comm", 8, way, 8, 1000, MIB, rules=path)
        assert sum(row.calls for row in asked.tally.counts) == 8000


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), min_size=1, max_size=8))
def test_any_damage_to_the_rules_leaves_the_plan_or_nccl_in_charge(
    watched: Bench, damage: list[tuple[int, int]]
) -> None:
    content = bytearray(RULES)
    for at, value in damage:
        content[at] = value
    asked = watched.ask(6, "comm", 8, *("call", ALL_REDUCE, MIB) * 2, rules=bytes(content))
    assert {answer[0] for answer in asked.answers} <= {0, 4}


@pytest.mark.parametrize("rules", [None, b"", RULES[:100], RULES[:80] + b"\xff" * 60 + RULES[140:]])
def test_bad_rules_are_clean(watched: Bench, rules: bytes | None) -> None:
    asked = watched.ask(5, "comm", 8, *("call", ALL_REDUCE, MIB) * 70, rules=rules)
    assert {answer[0] for answer in asked.answers} == {0}
