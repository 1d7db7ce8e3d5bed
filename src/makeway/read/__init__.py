"""Readers: traces, binaries, plan files and workload files become values."""
