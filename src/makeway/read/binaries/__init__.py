"""Kernel resources from real binaries: cubin, fatbin, shared library, hsaco."""

from makeway.read.binaries.inspect import Inspection, Reader, inspect, inspect_file
from makeway.read.binaries.kernels import BinaryKernel

__all__ = ["BinaryKernel", "Inspection", "Reader", "inspect", "inspect_file"]
