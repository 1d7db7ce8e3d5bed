"""Published results beside the model's, good and bad."""

from makeway.model.validate.rows import Row, Summary
from makeway.model.validate.run import PARTS, Validation, validate, validate_table

__all__ = ["PARTS", "Row", "Summary", "Validation", "validate", "validate_table"]
