"""Traces of real runs, in the formats of the profilers people use, as timelines."""
