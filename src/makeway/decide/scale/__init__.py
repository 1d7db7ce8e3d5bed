"""A training step on many GPUs."""
