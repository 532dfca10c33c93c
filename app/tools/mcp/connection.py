"""What is needed of a connection to a server, and whether the optional package `mcp` is there to speak the protocol.

Raw results are the JSON objects of the protocol, unchecked beyond their rough form. `app.tools.mcp.sdk` has the real
connections; tests have scripted ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from app.tools.mcp.config import ServerConfig, ToolError
from app.tools.server_requests import FormValue, SampledText, SamplingRequest
from app.tools.tool import ToolProgress


class RefusedError(ToolError):
    """The server answered a request with an error, or with something that is no answer; the connection goes on."""


class ConnectionEndedError(ToolError):
    """The connection ended before the answer came."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """How a server introduced itself; its texts are printable and short."""

    name: str
    version: str
    protocol_version: str
    has_tools: bool
    has_prompts: bool
    has_resources: bool


class Observer(Protocol):
    """Who hears what a server does without being asked, and what it asks for."""

    def roots(self) -> Sequence[Path]:
        """Return the folders that a server may be told of."""

    def changed(self) -> None:
        """The server says that what it lists has changed."""

    async def fill(self, message: str, schema: Mapping[str, Any]) -> Mapping[str, FormValue] | None:
        """Return what the person fills into a form, None where they do not. Raises UserError."""

    async def agree_to_address(self, message: str, url: str) -> bool:
        """Return whether the person agrees to open an address. Raises UserError."""

    async def sample(self, request: SamplingRequest) -> SampledText:
        """Return an answer of the model. Raises UserError."""

    def log(self, text: str) -> None:
        """The server wrote a line, to its standard error or as a log message; untrusted."""


class Connection(Protocol):
    """An open connection. Its methods raise RefusedError and ConnectionEndedError."""

    @property
    def info(self) -> ServerInfo: ...

    @property
    def n_received(self) -> int:
        """How many messages came from the server."""

    async def wait_ended(self) -> str:
        """Wait until the connection ends by itself, and return why, as a part of a sentence ("exit status 3")."""

    async def list_tools(self) -> list[object]:
        """Return the entries of all pages of `tools/list`, as far as one may list."""

    async def list_prompts(self) -> list[object]: ...

    async def list_resources(self) -> list[object]: ...

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], on_progress: Callable[[ToolProgress], None]
    ) -> Mapping[str, Any]:
        """Return the result of `tools/call`. Cancelling it sends the protocol's cancellation."""

    async def read_resource(self, uri: str) -> Mapping[str, Any]: ...

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> Mapping[str, Any]: ...

    async def roots_changed(self) -> None:
        """Tell the server that the folders are others now."""


Connect = Callable[[ServerConfig, Observer], AbstractAsyncContextManager[Connection]]
