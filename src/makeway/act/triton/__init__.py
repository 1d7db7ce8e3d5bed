"""Kernels of our own in Triton, whose tile, grid and pad a plan can set. Not yet run on hardware."""
