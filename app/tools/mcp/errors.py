"""The error of an MCP server."""

from __future__ import annotations

from quantizer.system.errors import UserError, registered


@registered
class ToolError(UserError):
    """A server of tools cannot be started, died, or does not do what it was asked."""
