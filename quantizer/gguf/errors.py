"""The error of a model file."""

from __future__ import annotations

from quantizer.system.errors import UserError, registered


@registered
class ModelFileError(UserError):
    """A model file that is missing, malformed, hostile or of an unsupported kind."""
