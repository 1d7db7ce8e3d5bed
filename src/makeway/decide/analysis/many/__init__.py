"""Thousands of ranks: each trace becomes a small summary where it lies, and summaries become one answer."""
