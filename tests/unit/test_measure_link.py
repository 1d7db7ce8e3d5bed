"""Rates of links in words, and what is said where a link cannot be paced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.measure import link
from makeway.act.measure.link import Rate, paced_link, parse_rate
from makeway.values.errors import InputError


@pytest.mark.parametrize(("text", "mbit"), [("2gbit", 2000), ("8Gbit", 8000), ("500mbit", 500), ("1.5 gbit", 1500)])
def test_rates_are_read_as_tc_spells_them(text: str, mbit: int) -> None:
    assert parse_rate(text) == Rate(mbit * 1_000_000)


@given(st.integers(1, 400))
def test_whole_gigabits_come_back_as_they_were_written(gigabits: int) -> None:
    assert str(parse_rate(f"{gigabits}gbit")) == f"{gigabits} Gbit/s"


@pytest.mark.parametrize("text", ["", "2", "2gb", "fast", "0gbit", "-1gbit"])
def test_other_words_are_answered_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="2gbit"):
        parse_rate(text)


def test_without_tools_the_link_is_plain_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with paced_link(Rate(10**9)) as found:
        assert not found.paced
        assert "UNPACED: 1 Gbit/s is not possible here" in found.description
        assert "install util-linux, iproute2" in found.description


def test_a_refusal_of_the_kernel_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_setup", lambda rate: "echo Operation not permitted >&2; exit 1")
    with paced_link(Rate(10**9)) as found:
        assert not found.paced
        assert "Operation not permitted" in found.description


@given(st.integers(1, 400_000), st.integers(0, 400_000))
def test_a_faster_link_never_has_smaller_packets_and_the_kernel_takes_them_all(mbit: int, more: int) -> None:
    packet, larger = (link.packet_bytes(Rate(rate * 1_000_000)) for rate in (mbit, mbit + more))
    assert link.LEAST_PACKET_BYTES <= packet <= larger <= link.MOST_PACKET_BYTES


def test_without_large_packets_the_link_is_paced_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_LARGER_PACKETS", "raise SystemExit(1)")
    with paced_link(Rate(10**9)) as found:
        if not found.paced:
            pytest.skip(found.description)
        assert "in packets of up to 64 KiB" in found.description
