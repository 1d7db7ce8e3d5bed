"""Applying controls to running processes."""

from makeway.runtime.backend import Backend, NullBackend, Receipt, Status

__all__ = ["Backend", "NullBackend", "Receipt", "Status"]
