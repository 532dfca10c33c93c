"""All servers of this user's `mcp.json` for one window; none is started, and the package `mcp` is not imported."""

from __future__ import annotations

from app.tools.mcp.config.entry import ServerConfig
from app.tools.mcp.config.file import McpFile, mcp_file
from app.tools.mcp.names import server_names
from app.tools.mcp.server import McpServer
from quantizer.system.errors import UserError


def mcp_servers(file: McpFile | None = None) -> tuple[McpServer, ...]:
    """Return the servers that are not disabled; for a file that cannot be read one that failed and says why.

    A name that models cannot write, or that a built-in server has, becomes another.
    """
    file = file or mcp_file()
    try:
        configs = file.servers()
    except UserError as error:
        configs = (ServerConfig(file.path.name, None, problem=str(error)),)
    names = server_names(config.name for config in configs)
    return tuple(McpServer(names[config.name], config, str(file.path)) for config in configs if not config.is_disabled)
