"""A training step on thousands of GPUs: what it costs, by layout."""
