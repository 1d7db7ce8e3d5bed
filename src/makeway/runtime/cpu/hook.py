"""Gradients of DistributedDataParallel through direct collectives.

DistributedDataParallel compares a hook's annotations with its own types, so they must not be strings here.
"""

import torch
from torch._C._distributed_c10d import GradBucket  # where torch keeps it; torch.distributed only re-exports it

from makeway.runtime.cpu.direct import DirectGroup


def direct_hook(state: DirectGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket while the backward pass goes on: `model.register_comm_hook(direct_group, direct_hook)`.

    Each gradient is divided by the number of ranks before it is added, as DistributedDataParallel itself does; with two
    ranks the result is the same to the bit.
    """
    work = state.all_reduce(bucket.buffer(), "avg", async_op=True)
    assert work is not None
    return work.get_future()
