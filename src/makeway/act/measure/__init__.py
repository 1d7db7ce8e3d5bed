"""Measuring: real ranks, paced links, interleaved repetitions, and the result as data."""
