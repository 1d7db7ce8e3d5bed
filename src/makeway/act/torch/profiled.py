"""Direct collectives in a recording of torch.profiler, where Gloo's would appear, under the names that Gloo uses."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import torch
from torch._C import _autograd  # torch.autograd only re-exports it

T = TypeVar("T")


class Recording:
    """One collective in the profiler of the calling thread: from the call until a future is complete.

    Gloo records its collectives the same way: as an asynchronous range with the shape of its input. The profiler takes
    a range for asynchronous when it ends in another thread.
    """

    def __init__(self, name: str, given: torch.Tensor) -> None:
        self._thread = threading.get_ident()
        self._handle: Any = _autograd._record_function_with_args_enter(f"gloo:{name}", given)

    def until(self, future: torch.futures.Future[T]) -> torch.futures.Future[T]:
        """End the range with the future; the one returned is complete once the range has ended."""
        # Ends the range with the profiler of the thread that began it, whoever completes it.
        end: torch.futures.Future[None] = torch.futures.Future()
        torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(self._handle, end)

        def ended(done: torch.futures.Future[T]) -> T:
            if threading.get_ident() != self._thread:
                end.set_result(None)
            else:  # the collective was faster than this call
                other = threading.Thread(target=end.set_result, args=(None,))
                other.start()
                other.join()
            return done.value()

        return future.then(ended)

    def cancel(self) -> None:
        """End the range now: the collective was not started."""
        _autograd._record_function_with_args_exit(self._handle)


def recording(name: str, given: torch.Tensor) -> Recording | None:
    """The beginning of a collective in the profiler; None when nothing is recorded in this thread."""
    return Recording(name, given) if _autograd._profiler_enabled() else None
