"""The seam to a running process: receipts, and the backend that only remembers."""

from __future__ import annotations

from makeway.act.backend import Backend, NullBackend
from makeway.values.control import CommPriority, Control, SmPartition


def test_the_null_backend_remembers_and_says_that_nothing_happened() -> None:
    backend = NullBackend()
    asked: list[Control] = [CommPriority(), SmPartition(2)]
    with backend.applied(asked) as receipts:
        assert [receipt.control for receipt in receipts] == asked
        assert {receipt.status for receipt in receipts} == {"no effect"}
    assert backend.log == asked
    assert backend.refusal(CommPriority()) is None


def test_the_null_backend_is_a_backend() -> None:
    backend: Backend = NullBackend()
    assert backend.name == "null"
