"""What stands in for a function: called in every way, looking as before, and never in the way of the program."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import pydoc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from makeway.act.torch.replacing import Original, replaced, stand_in

REPLACED = [
    dist.init_process_group,
    dist.new_group,
    dist.destroy_process_group,
    dist.all_reduce,
    dist.all_gather_single,
    dist.reduce_scatter_single,
    dist.all_to_all_single,
    DistributedDataParallel.__init__,
    DistributedDataParallel._pre_forward,
    DistributedDataParallel.register_comm_hook,
    DistributedDataParallel._register_builtin_comm_hook,
]


class Example:
    """Stands for a class of torch."""

    def method(self, first: int, *, second: int = 2) -> tuple[int, int]:
        """Give back what is given."""
        return first, second


def example(first: int, second: int = 2, *rest: int, third: int = 3, **others: int) -> tuple[Any, ...]:
    """Give back what is given."""
    if first < 0:
        raise KeyError(first)
    return first, second, rest, third, others


class Seen:
    """Calls of a function, and errors of ours."""

    def __init__(self, function: Callable[..., Any] = example) -> None:
        self.calls: list[Any] = []
        self.errors: list[Exception] = []
        self._function = function

    def standing_in(self, around: Callable[[Original], Any], **options: Any) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((args, kwargs))
            return self._function(*args, **kwargs)

        counted.__signature__ = inspect.signature(self._function)  # type: ignore[attr-defined]
        return stand_in(counted, around, self.errors.append, **options)


def fails(original: Original) -> Any:
    raise ValueError("ours")


def fails_after(original: Original) -> Any:
    original()
    raise ValueError("ours")


def calls_of(function: Callable[..., Any]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Every split of a signature into positional and keyword arguments, for each number of optional ones."""
    parameters = [one for one in inspect.signature(function).parameters.values() if one.kind not in (2, 4)]
    needed = [one for one in parameters if one.default is inspect.Parameter.empty]
    for chosen in (parameters[:count] for count in range(len(needed), len(parameters) + 1)):
        places = sum(one.kind is not inspect.Parameter.KEYWORD_ONLY for one in chosen)
        for leading in range(places + 1):
            names = [one.name for one in chosen]
            yield names[:leading], {name: name for name in names[leading:]}


# --- every call -----------------------------------------------------------------------------------


@pytest.mark.parametrize("function", REPLACED, ids=lambda function: function.__qualname__)
@pytest.mark.parametrize("around", [Original.__call__, fails, fails_after])
def test_every_call_that_the_signature_allows_reaches_the_original_once_and_unchanged(
    function: Callable[..., Any], around: Callable[[Original], Any]
) -> None:
    signature, number = inspect.signature(function), 0

    def bound(*args: Any, **kwargs: Any) -> Any:
        return signature.bind(*args, **kwargs).arguments

    bound.__signature__ = signature  # type: ignore[attr-defined]
    for args, kwargs in calls_of(function):
        seen = Seen(bound)
        assert seen.standing_in(around)(*args, **kwargs) == bound(*args, **kwargs)
        assert seen.calls == [(tuple(args), kwargs)]
        assert [str(error) for error in seen.errors] == ([] if around is Original.__call__ else ["ours"])
        number += 1
    assert number > 1


@given(
    st.lists(st.integers(min_value=0), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(["third", "other"]), st.integers()),
    st.sampled_from([Original.__call__, fails, fails_after]),
)
def test_any_arguments_give_what_the_original_gives(
    args: list[int], kwargs: dict[str, int], around: Callable[[Original], Any]
) -> None:
    seen = Seen()
    assert seen.standing_in(around)(*args, **kwargs) == example(*args, **kwargs)
    assert len(seen.calls) == 1


def test_one_argument_can_be_changed_however_it_is_passed() -> None:
    function = Seen().standing_in(lambda original: original(second=9))
    assert function(1)[1] == function(1, 5)[1] == function(1, second=5)[1] == function(second=5, first=1)[1] == 9


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("around", [Original.__call__, fails, fails_after])
def test_an_error_of_the_program_passes_unchanged(around: Callable[[Original], Any]) -> None:
    seen = Seen()
    with pytest.raises(KeyError) as caught:
        seen.standing_in(around)(-1)
    assert caught.value.args == (-1,)
    assert caught.value.__context__ is caught.value.__cause__ is None
    assert len(seen.calls) == 1


def test_a_wrong_call_gets_the_words_of_the_original_and_is_no_error_of_ours() -> None:
    seen = Seen()
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'") as caught:
        seen.standing_in(fails)()
    assert caught.value.__context__ is None
    assert seen.errors == []


def test_an_error_after_the_original_has_failed_does_not_hide_its_error() -> None:
    def hides(original: Original) -> Any:
        try:
            original()
        finally:
            raise ValueError("ours")

    with pytest.raises(KeyError):
        Seen().standing_in(hides)(-1)


def test_an_interrupt_is_not_taken_for_an_error_of_ours() -> None:
    def interrupted(original: Original) -> Any:
        raise KeyboardInterrupt

    seen = Seen()
    with pytest.raises(KeyboardInterrupt):
        seen.standing_in(interrupted)(1)
    assert (seen.calls, seen.errors) == ([], [])


def test_once_peers_rely_on_a_call_its_error_is_the_programs() -> None:
    def breaks_off(original: Original) -> Any:
        original.committed = True
        raise ConnectionError("a peer has gone")

    seen = Seen()
    with pytest.raises(ConnectionError):
        seen.standing_in(breaks_off)(1)
    assert seen.calls == []


def test_errors_that_cannot_be_recorded_do_not_reach_the_program() -> None:
    def cannot(error: Exception) -> None:
        raise OSError("the disk is full")

    assert stand_in(example, fails, cannot)(1) == example(1)


def test_a_function_can_be_left_alone_for_now() -> None:
    seen = Seen()
    assert seen.standing_in(fails, unless=lambda first: first == 1)(1) == example(1)
    assert seen.errors == []


# --- looks ----------------------------------------------------------------------------------------


@contextmanager
def in_place(function: Callable[..., Any], owner: type | None = None) -> Iterator[Callable[..., Any]]:
    other = stand_in(function, Original.__call__, lambda error: None)
    with replaced(function, other, owner):
        yield other


@pytest.mark.parametrize("function", REPLACED, ids=lambda function: function.__qualname__)
def test_it_looks_like_the_original_and_is_pickled_by_name(function: Callable[..., Any]) -> None:
    owner = DistributedDataParallel if "." in function.__qualname__ else None
    looks = ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__")
    before = (
        [getattr(function, name) for name in looks],
        inspect.signature(function),
        pydoc.plain(pydoc.render_doc(function)),
    )
    with in_place(function, owner) as other:
        assert before == (
            [getattr(other, name) for name in looks],
            inspect.signature(other),
            pydoc.plain(pydoc.render_doc(other)),
        )
        assert inspect.isfunction(other)
        assert pickle.loads(pickle.dumps(other)) is copy.deepcopy(other) is other
    assert pickle.loads(pickle.dumps(function)) is function


def test_a_function_is_replaced_wherever_it_is_known_and_put_back() -> None:
    with in_place(json.dumps) as other:
        assert json.dumps is other is not inspect.unwrap(other)
    assert json.dumps is inspect.unwrap(other)
    with in_place(Example.method, Example) as method:
        assert Example().method(1) == (1, 2)
        assert Example.__dict__["method"] is method
    assert Example.method is inspect.unwrap(method)


def test_what_the_program_puts_in_its_place_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def its_own() -> None: ...

    module: Any = sys.modules[__name__]
    for owner, name in ((Example, "method"), (module, "example")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back at the end
    with in_place(Example.method, Example), in_place(example):
        setattr(Example, "method", its_own)  # noqa: B010  # as a program does it
        module.example = its_own
    assert vars(Example)["method"] is module.example is its_own


def test_one_can_stand_in_for_another() -> None:
    with in_place(Example.method, Example) as outer, in_place(outer, Example) as inner:
        assert inspect.unwrap(inner) is inspect.unwrap(outer)
        assert Example().method(1, second=5) == (1, 5)
