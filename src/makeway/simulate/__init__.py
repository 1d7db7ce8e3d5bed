"""Predict what happens when compute kernels and collectives share a GPU."""
