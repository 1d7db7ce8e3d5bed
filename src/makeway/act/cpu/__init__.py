"""Ranks on the CPUs of one host: direct collectives through shared memory, and controls of threads and cores."""
