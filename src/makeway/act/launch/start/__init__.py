"""The directory of the start hook: `makeway run` puts it on PYTHONPATH."""
