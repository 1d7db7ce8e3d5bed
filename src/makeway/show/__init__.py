"""Renderers: format what the library computed, and compute nothing."""
