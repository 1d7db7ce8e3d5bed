"""Applies plans inside a torch program; `makeway.torch` is its public face."""
