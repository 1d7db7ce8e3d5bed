"""Splitting a JSON document into pieces: nothing lost, nothing invented, wherever the chunks happen to end."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from makeway.read.traces import stream
from makeway.read.traces.stream import ByteSource, EventStream, read_head
from makeway.values.errors import TraceError

Events = list[dict[str, Any]]

# Text that looks like the end of an event, or of the array.
tricky = st.sampled_from(
    [
        '},{"ph":',
        '"',
        "\\",
        "]}",
        "},",
        '\\"',
        "{",
        "}",
        "[",
        "]",
        '"traceEvents": [',
        "void f<{lambda()#1}>",
        "é",
        "\n",
    ]
)
texts = st.lists(st.one_of(tricky, st.text(max_size=3)), max_size=4).map("".join)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)
keys = st.sampled_from(["ph", "name", "cat", "ts", "args"])
events = st.lists(st.dictionaries(keys, values, max_size=4), max_size=8)
headers = st.dictionaries(texts.filter(lambda key: key != "traceEvents"), values, max_size=3)
layouts = st.sampled_from([(None, (",", ":")), (None, (", ", ": ")), (2, (",", ": ")), (1, (" , ", " : "))])


def written(before: dict[str, Any], inside: Events, after: dict[str, Any], layout: Any) -> bytes:
    indent, separators = layout
    document = {**before, "traceEvents": inside, **{key: after[key] for key in after if key not in before}}
    return json.dumps(document, indent=indent, separators=separators, ensure_ascii=False).encode(errors="replace")


def split(data: bytes, folder: Path, chunk_bytes: int = 64) -> tuple[Events, EventStream[dict[str, Any]]]:
    path = folder / "document"
    path.unlink(missing_ok=True)  # writing over a file can wait for the disk
    path.write_bytes(data)
    found = EventStream(ByteSource(path, chunk_bytes=chunk_bytes), msgspec.json.Decoder(list[dict[str, Any]]))
    return [event for piece in found.pieces() for event in piece], found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stream")


@settings(max_examples=120)
@given(before=headers, inside=events, after=headers, layout=layouts, chunk=st.integers(1, 200), packed=st.booleans())
def test_the_pieces_are_the_array_and_the_header_is_the_rest(
    folder: Path, before: dict[str, Any], inside: Events, after: dict[str, Any], layout: Any, chunk: int, packed: bool
) -> None:
    data = written(before, inside, after, layout)
    read, found = split(gzip.compress(data) if packed else data, folder, chunk)
    expected = json.loads(data)
    assert read == expected.pop("traceEvents")
    assert found.header == expected
    assert found.events == len(read)
    assert not found.cut_short
    assert found.unreadable == 0


@settings(max_examples=120)
@given(inside=events, layout=layouts, chunk=st.integers(1, 200), share=st.floats(0, 1))
def test_a_prefix_of_a_file_gives_a_prefix_of_its_events(
    folder: Path, inside: Events, layout: Any, chunk: int, share: float
) -> None:
    data = written({"a": 1}, inside, {"b": 2}, layout)
    cut = data[: int(share * (len(data) - 1))]
    read, found = split(cut, folder, chunk)
    assert read == inside[: len(read)]
    assert found.cut_short


@settings(max_examples=120)
@given(inside=events, chunk=st.integers(1, 200), share=st.floats(0, 0.999))
def test_a_prefix_of_a_gzip_file_gives_a_prefix_of_its_events(
    folder: Path, inside: Events, chunk: int, share: float
) -> None:
    packed = gzip.compress(written({}, inside, {}, (None, None)))
    read, found = split(packed[: max(2, int(share * len(packed)))], folder, chunk)
    assert read == inside[: len(read)]
    assert found.cut_short


@settings(max_examples=120)
@given(inside=events, chunk=st.integers(1, 200), layout=layouts)
def test_a_bare_array_of_events_is_read_too(folder: Path, inside: Events, chunk: int, layout: Any) -> None:
    data = json.dumps(inside, indent=layout[0], separators=layout[1]).encode()
    read, found = split(data, folder, chunk)
    assert (read, found.header, found.cut_short) == (inside, {}, False)


@pytest.mark.parametrize("chunk", [7, 64, 1000, 1 << 20])
def test_every_complete_event_of_a_file_that_was_cut_is_delivered(folder: Path, chunk: int) -> None:
    inside = [{"ph": "X", "name": f"kernel {number}", "args": {"a": [{"ph": 1}, {"ph": 2}]}} for number in range(40)]
    data = written({}, inside, {}, (1, (",", ": ")))
    for event, nearly in ((20, data.index(b"kernel 20")), (39, data.index(b"kernel 39"))):
        read, _ = split(data[:nearly], folder, chunk)
        assert read == inside[:event]


def test_an_event_larger_than_many_chunks_is_read(folder: Path) -> None:
    inside: Events = [{"name": "small"}, {"name": "x" * 100_000, "args": [{"ph": 1}] * 1000}, {"name": "last"}]
    read, _ = split(written({}, inside, {}, (None, None)), folder, 100)
    assert read == inside


def test_infinities_that_printf_wrote_become_null(folder: Path) -> None:
    read, found = split(b'{"traceEvents":[{"name":"inf, nan","args":{"a": inf,"b":-nan}},{"name":"b"}]}', folder)
    assert read == [{"name": "inf, nan", "args": {"a": None, "b": None}}, {"name": "b"}]
    assert found.unreadable == 0


def test_one_damaged_event_costs_no_other(folder: Path) -> None:
    read, found = split(b'{"traceEvents":[{"name":"a"},{"name" 1},3,{"name":"C:\\qemp"},{"name":"b"}],"x":1}', folder)
    assert [event["name"] for event in read] == ["a", "b"]
    assert found.unreadable == 3
    assert found.header == {"x": 1}


def test_a_damaged_entry_of_the_header_costs_no_other(folder: Path) -> None:
    read, found = split(b'{"a":1,"b":{"c":tru},"d":"}","traceEvents":[{"name":"a"}],"e":[1,2],"f":C}', folder)
    assert read == [{"name": "a"}]
    assert found.header == {"a": 1, "d": "}", "e": [1, 2]}
    assert found.cut_short


def test_gzip_files_in_several_members_or_padded_with_zeros_are_whole(folder: Path) -> None:
    data = written({}, [{"name": "a"}, {"name": "b"}], {}, (None, None))
    for packed in (gzip.compress(data[:20]) + gzip.compress(data[20:]), gzip.compress(data) + bytes(600)):
        read, found = split(packed, folder)
        assert (read, found.cut_short) == ([{"name": "a"}, {"name": "b"}], False)


def test_events_are_found_by_the_key_of_the_outermost_object_only(folder: Path) -> None:
    data = b'{"metadata":{"traceEvents":[{"name":"no"}]},"note":"\\"traceEvents\\":[","traceEvents":[{"name":"yes"}]}'
    assert split(data, folder, 5)[0] == [{"name": "yes"}]


def test_a_document_without_events_has_no_pieces(folder: Path) -> None:
    for data in (b"", b"  ", b"{}", b'{"traceEvents": null}', b'{"traceEvents": {"a": [1]}}', b"1", b'"a"', b"nothing"):
        read, found = split(data, folder)
        assert (read, found.cut_short) == ([], True)


def test_a_head_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_BYTES", 1000)
    endless = (b'{"a": 1, ' if number == 0 else b'"b": 2, ' * 10 for number in iter(int, 1))
    assert read_head(endless).key is None


def test_progress_counts_the_bytes_of_the_file(folder: Path) -> None:
    path, told = folder / "progress", list[int]()
    path.write_bytes(gzip.compress(written({}, [{"name": str(number)} for number in range(500)], {}, (None, None))))
    for _ in ByteSource(path, told.append, 1000).chunks():
        pass
    assert told == sorted(told)
    assert told[-1] == path.stat().st_size


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read .*missing"):
        next(ByteSource(tmp_path / "missing").chunks())
