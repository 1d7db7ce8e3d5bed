"""Kernel resources from real binaries: cubin, fatbin, shared library, hsaco."""

from makeway.binaries.inspect import Reader, inspect_file
from makeway.binaries.kernels import BinaryKernel

__all__ = ["BinaryKernel", "Reader", "inspect_file"]
