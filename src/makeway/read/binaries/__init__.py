"""Kernel resources from real binaries: cubin, fatbin, shared library, hsaco."""

from makeway.read.binaries.inspect import Reader, inspect_file
from makeway.read.binaries.kernels import BinaryKernel

__all__ = ["BinaryKernel", "Reader", "inspect_file"]
