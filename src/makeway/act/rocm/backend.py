"""Controls on one rank's AMD GPU through torch's HIP build, which keeps CUDA's names. Not yet run on hardware.

As on NVIDIA except for the partition: instead of green contexts there are streams with CU masks.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from makeway.act.cuda.backend import CudaBackend
from makeway.act.cuda.machine import look
from makeway.act.cuda.streams import ConfinedStream
from makeway.act.export.values import Library
from makeway.act.rocm.masks import check_split, hip_library, mask_words, masked_stream
from makeway.values.errors import MakewayError
from makeway.values.support import Platform


@dataclass
class RocmBackend(CudaBackend):
    """A backend for the current AMD device of this process; `hip` stands in for HIP's runtime."""

    name: Platform = "rocm"
    hip: Any | None = None

    def __post_init__(self) -> None:
        self.machine = look("amd", self.torch)

    @property
    def library(self) -> Library:
        return Library(name="rccl")

    def _partition_refusal(self, comm_sms: int) -> str | None:
        assert self.machine.sms is not None
        assert self.machine.arch is not None
        try:
            check_split(self.machine.sms, comm_sms, self.machine.arch)
            self.hip = self.hip or hip_library()
        except MakewayError as error:
            return str(error)
        return None

    def _partition(self, torch: Any, device: int, comm_sms: int) -> AbstractContextManager[ConfinedStream]:
        """Compute on all but the first CUs in mask order; RCCL's own streams are not masked."""
        assert self.machine.sms is not None
        return masked_stream(
            torch, self.hip or hip_library(), device, mask_words(comm_sms, self.machine.sms - comm_sms)
        )
