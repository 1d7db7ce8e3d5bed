"""The launch shim of this very process, and which of its rule sets is in force.

A call into the shim chooses the set: the next launch of every kernel is decided anew, and a launch in between costs
nothing more than before. A child made by fork keeps the set of its parent. Not yet run on hardware.
"""

from __future__ import annotations

import ctypes

from makeway.values.errors import UnsupportedError

NOT_LOADED = "the launch shim is not loaded in this process, so its pads and priorities cannot be switched"
NO_RULES = "the launch shim of this process has no usable rules file, so its pads and priorities cannot be switched"


class LoadedShim:
    """The functions that the shim offers to its own process."""

    def __init__(self) -> None:
        process = ctypes.CDLL(None)  # preloaded libraries are found before all others
        try:
            self._sets, self._use = process.makeway_rule_sets, process.makeway_use_rules
            self._graphs = process.makeway_graph_launches
        except AttributeError:
            raise UnsupportedError(NOT_LOADED) from None
        self._sets.argtypes, self._sets.restype = [], ctypes.c_uint32
        self._use.argtypes, self._use.restype = [ctypes.c_uint32], ctypes.c_int
        self._graphs.argtypes, self._graphs.restype = [], ctypes.c_uint64
        if not self.sets:
            raise UnsupportedError(NO_RULES)

    @property
    def sets(self) -> int:
        """Rule sets in the file that this process started with."""
        return int(self._sets())

    @property
    def graph_launches(self) -> int:
        """Launches of whole graphs so far; their kernels keep what they were captured with, whichever set is used."""
        return int(self._graphs())

    def use(self, number: int) -> None:
        """Put another set in force, from the next launch on."""
        if not 0 <= number < self.sets or self._use(number) != 0:
            raise UnsupportedError(f"the launch shim has no rule set {number}; this program started with {self.sets}")
