"""Decisions: what a recorded run says, and which controls to choose."""
