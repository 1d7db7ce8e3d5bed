"""Gradients of DistributedDataParallel through direct collectives.

DistributedDataParallel compares a hook's annotations with its own types, so they must not be strings here.
"""

import torch
from torch._C._distributed_c10d import GradBucket  # where torch keeps it; torch.distributed only re-exports it

from makeway.act.cpu.direct import DirectGroup
from makeway.values.errors import UnsupportedError

_SETTLED = 2  # calls: DistributedDataParallel rebuilds its buckets after the first step, in the order of gradients


def direct_hook(state: DirectGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket while the backward pass goes on: `model.register_comm_hook(direct_group, direct_hook)`.

    Each gradient is multiplied by one over the number of ranks before it is added, as DistributedDataParallel itself
    does, and sums are added as Gloo adds them: the result is the same to the bit.
    """
    return _averaged(state, bucket)


class SharedBuckets:
    """The state of `shared_hook` for one model."""

    def __init__(self, group: DirectGroup) -> None:
        self.group = group
        self.why_not: str | None = None  # why buckets stay where they are
        self._calls: dict[int, int] = {}  # by bucket
        self._adopted: list[int] = []

    def notice(self, bucket: GradBucket) -> None:
        """Move a settled bucket to shared memory; every rank does so at the same call."""
        index = bucket.index()
        self._calls[index] = self._calls.get(index, 0) + 1
        if self._calls[index] == _SETTLED and self.why_not is None:
            try:
                self._adopted.append(self.group.adopt(bucket.buffer()))
            except UnsupportedError as error:
                self.why_not = str(error)

    def release(self) -> None:
        """Unmap the buckets of a model or a reducer that is gone."""
        while self._adopted:
            self.group.release(self._adopted.pop())


def shared_hook(state: SharedBuckets, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """As `direct_hook`, with buckets that ranks add up in place: `register_comm_hook(SharedBuckets(group), ...)`."""
    state.notice(bucket)
    return _averaged(state.group, bucket)


def _averaged(group: DirectGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = group.all_reduce(bucket.buffer(), "avg", async_op=True)
    assert work is not None
    return work.get_future()
