"""What a chat needs of the model that answers: the requests of an engine, and a connection that reopens it.

`app.client` implements both; a chat imports neither it nor httpx.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from app.chat.conversation import MediaFile
    from app.protocol.chat import AnswerEvent, GenerationOptions, MediaPart, Message, Tool
    from app.protocol.plan import Plan
    from app.protocol.status import ServiceStatus
    from quantizer.system.errors import UserError


class ChatBackend(Protocol):
    """The chat part of `app.client.service_client.ServiceClient`, which documents the errors."""

    async def status(self) -> ServiceStatus: ...

    async def load(self, model: str) -> str: ...

    async def count_tokens(self, text: str, model: str = "") -> int: ...

    async def count_media_tokens(self, media: Sequence[MediaPart], model: str = "") -> int: ...

    async def count_tool_tokens(self, tools: Sequence[Tool], model: str = "") -> int: ...

    def chat(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[AnswerEvent, None]: ...

    def complete(
        self, prompt: str, model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[AnswerEvent, None]: ...

    async def end_thought(self, response_id: str) -> None: ...

    async def check_schema(self, schema: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionState:
    """The phase of the connection. `progress` runs from 0 to 1 while loading; `error` is set in the phase "failed". A
    model that was "unloaded" after idle time is loaded again for the next answer. `plan` is the plan the model was
    loaded with, None until known. `sees` pictures and `hears` sounds: None where the engine does not say it."""

    phase: Literal["idle", "starting", "loading", "ready", "unloaded", "failed"] = "idle"
    model: str
    progress: float = 0.0
    n_ctx: int = 0
    notices: tuple[str, ...] = ()
    error: UserError | None = None
    plan: Plan | None = None
    sees: bool | None = None
    hears: bool | None = None

    def reads(self, file: MediaFile) -> bool:
        """Return whether the model reads a picture or sound, as far as known."""
        return (self.hears if file.is_sound else self.sees) is not False


class ChatConnection(Protocol):
    """A model and the engine that runs it; `tui.connection.ChatConnection` reopens a lost one."""

    @property
    def state(self) -> ConnectionState:
        """The phase of the connection, and its model."""

    async def service(self) -> ChatBackend:
        """Return the client once the engine is reachable, whatever the state of the model. Raises what prevents it."""

    async def client(self) -> ChatBackend:
        """Return the client once the model is ready. Raises the UserError that prevented it."""

    async def report_failure(self, error: UserError) -> None:
        """Handle an error that ended an answer: reload the model, or reconnect."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A `ChatConnection` to a model that is loaded already, which nothing loads again: for one question."""

    backend: ChatBackend
    state: ConnectionState

    async def service(self) -> ChatBackend:
        return self.backend

    async def client(self) -> ChatBackend:
        return self.backend

    async def report_failure(self, error: UserError) -> None: ...
