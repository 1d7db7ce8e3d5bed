"""Renderers: they draw what the library computed, and compute nothing."""
