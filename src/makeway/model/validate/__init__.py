"""Published results beside the model's, good and bad."""

from makeway.model.validate.run import PARTS, Validation, validate

__all__ = ["PARTS", "Validation", "validate"]
