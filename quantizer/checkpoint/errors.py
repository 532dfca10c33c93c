"""The error of a checkpoint."""

from __future__ import annotations

from quantizer.system.errors import UserError, registered


@registered
class CheckpointError(UserError):
    """A checkpoint folder that cannot be read or converted."""
