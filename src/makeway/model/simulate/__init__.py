"""Predict what happens when compute kernels and collectives share a GPU."""

from makeway.model.simulate.predict import Prediction, Settings, simulate

__all__ = ["Prediction", "Settings", "simulate"]
