"""All servers of this user's `mcp.json` for one window; none is started, and the package `mcp` is not imported."""

from __future__ import annotations

from app.tools.mcp.config_file import McpFile, mcp_file
from app.tools.mcp.names import server_names
from app.tools.mcp.server import McpServer

__all__ = ["mcp_servers"]


def mcp_servers(file: McpFile | None = None) -> tuple[McpServer, ...]:
    """Return the servers that are not disabled. Raises UsageError for a file that is no JSON."""
    file = file or mcp_file()
    configs = file.servers()
    names = server_names(config.name for config in configs)
    return tuple(McpServer(names[config.name], config, str(file.path)) for config in configs if not config.is_disabled)
