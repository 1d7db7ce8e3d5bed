"""Gradients reduce-scattered by blocks and gathered by copy engines, in place of an all-reduce. Not yet run on a GPU.

The two move as many bytes over the links as a ring's all-reduce, and only the first needs SMs. DistributedDataParallel
looks at a hook's annotations, so they must not be strings here.
"""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, _register_comm_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.torch.where import where_runs
from makeway.act.torch.windows import NOT_SEEN, ON_CPU, first_window, window, zero_cta
from makeway.values.control import CopyEngine
from makeway.values.receipt import Receipt

SEVERAL_HOSTS = "the ranks are on several hosts, and NCCL copies only within one NVLink domain"
HOOKED = "the module has a hook for gradients or no reducer for one, and stays as it is"
_MOST_TEXT = 300  # characters of a host's name or a reason, at most 6 bytes each in JSON
_MESSAGE_BYTES = 4096
_PROBE = 1_024  # numbers per rank in the window that shows whether windows work


class SplitGradients:
    """The hook's state for one module: its windows, and how many buckets went through them."""

    def __init__(
        self, group: Any, *, refusal: str | None, make_window: Callable[[int, Any], Any], on: Any = dist
    ) -> None:
        self.group, self.refusal = group, refusal
        self.ranks, self.rank = on.get_world_size(group), on.get_rank(group)
        self.on = on
        self.buckets = self.bytes = 0
        self._make_window = make_window
        self._windows: dict[int, Any] = {}  # by bucket; several are under way at once

    def window_for(self, bucket: int, like: Any) -> Any:
        """The bucket's window, of equal parts for all ranks; a new one when buckets were rebuilt, on every rank."""
        numbers = -(-like.numel() // self.ranks) * self.ranks
        held = self._windows.get(bucket)
        if held is None or held.numel() != numbers or held.dtype != like.dtype:
            held = self._windows[bucket] = self._make_window(numbers, like.dtype)
            held.zero_()  # the end that no gradient fills
        return held

    @property
    def receipt(self) -> Receipt:
        """What became of `copy-engine` so far."""
        carrier = TORCH_CARRIERS["cuda"]
        if self.refusal is not None:
            return Receipt(control=CopyEngine(), status="refused", detail=self.refusal, carrier=carrier)
        if not self.buckets:
            return Receipt(control=CopyEngine(), status="not seen", detail="no gradients yet", carrier=carrier)
        detail = (
            f"{self.buckets:,} gradient buckets ({self.bytes:,} B) reduce-scattered, then gathered into symmetric "
            f"windows; {NOT_SEEN}"
        )
        counts = (("gradient buckets", self.buckets), ("bytes", self.bytes))
        return Receipt(control=CopyEngine(), status="applied", detail=detail, carrier=carrier, evidence=counts)


def split_hook(state: SplitGradients, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket in its window: reduce-scatter, then all-gather, both in place and in NCCL's stream of the group.

    Gradients are divided before they are added, as DistributedDataParallel does by itself. The order of additions is
    that of NCCL's reduce-scatter, so the last bits may differ from its all-reduce.
    """
    buffer = bucket.buffer()
    if buffer.layout != torch.strided:
        return allreduce_hook(state.group, bucket)
    held = state.window_for(bucket.index(), buffer)
    averaged = held[: buffer.numel()]
    torch.div(buffer, state.ranks, out=averaged)
    own = held.view(state.ranks, -1)[state.rank]
    state.on.reduce_scatter_tensor(own, held, group=state.group, async_op=True)
    gathered = state.on.all_gather_into_tensor(held, own, group=state.group, async_op=True)
    state.buckets += 1
    state.bytes += buffer.nbytes
    future: torch.futures.Future[torch.Tensor] = gathered.get_future().then(lambda _: averaged)
    return future


def split_all_reduce(module: DistributedDataParallel, *, environ: Mapping[str, str] = os.environ) -> SplitGradients:
    """Reduce-scatter and copied all-gather for a module's gradients; the module stays as it is where that cannot work.

    A collective call, before the first backward pass. The module's group needs the zero-CTA policy
    (`init_process_group` with `copy-engine` in the plan), and its ranks one NVLink domain; ranks on several hosts are
    refused. All ranks decide the same.
    """
    group = module.process_group
    refusal = _refusal(module, group, environ)
    state = SplitGradients(group, refusal=refusal, make_window=lambda numbers, dtype: _window(group, numbers, dtype))
    if refusal is None:
        try:
            _register_comm_hook(module.reducer, state, split_hook)
        except RuntimeError:  # one of torch's hooks in C++, which the module does not record
            state.refusal = HOOKED
    return state


def _window(group: Any, numbers: int, dtype: Any) -> Any:
    return window(torch, (numbers,), dtype, torch.device("cuda", torch.cuda.current_device()), group)


def _refusal(module: DistributedDataParallel, group: Any, environ: Mapping[str, str]) -> str | None:
    if where_runs(group) == "cpu" or module.device_type == "cpu":
        return ON_CPU
    own = zero_cta(torch, group, environ)[0]
    if own is None and (module._comm_hooks or module._use_python_reducer or not hasattr(module, "reducer")):
        own = HOOKED
    return agreed_refusal(own, group, probe=lambda: _probe(group))


def _probe(group: Any) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    first_window(torch, (_PROBE * dist.get_world_size(group),), torch.float32, device, group)


def agreed_refusal(own: str | None, group: Any, *, probe: Callable[[], None], on: Any = dist) -> str | None:
    """The first rank's reason against it, the same on every rank; `probe` is called on all or on none."""
    if reason := _first(_from_all((socket.gethostname(), own), group, on)):
        return reason
    try:
        probe()
        failed = None
    except Exception as error:  # torch's or NCCL's, in their own words
        failed = f"no symmetric window: {type(error).__name__}: {error}"
    return _first(_from_all((socket.gethostname(), failed), group, on))


def _from_all(mine: tuple[str, str | None], group: Any, on: Any) -> list[tuple[str, str | None]]:
    """What every rank says, as bytes: torch's gathering of objects would unpickle what peers send."""
    host, reason = mine
    message = msgspec.json.encode((host[:_MOST_TEXT], reason and reason[:_MOST_TEXT]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    sent = torch.zeros(_MESSAGE_BYTES, dtype=torch.uint8)
    sent[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    sent = sent.to(device)
    answers = [torch.zeros_like(sent) for _ in range(on.get_world_size(group))]
    on.all_gather(answers, sent, group=group)
    texts = [bytes(answer.tolist()).rstrip(b"\0") for answer in answers]
    return [msgspec.json.decode(text, type=tuple[str, str | None]) for text in texts]


def _first(answers: list[tuple[str, str | None]]) -> str | None:
    reason: str | None = next((reason for _, reason in answers if reason is not None), None)
    return reason or (SEVERAL_HOSTS if len({host for host, _ in answers}) > 1 else None)
