"""Exports: a plan as settings of libraries and frameworks."""
