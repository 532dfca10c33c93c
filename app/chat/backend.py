"""What a chat needs of the model that answers: the requests of an engine, and a connection that reopens it.

`app.client` implements both; a chat imports neither it nor httpx.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from app.chat.sampling_options import template_of, think_of
from app.common.terminal import printable_line
from app.tools.approval import KNOWLEDGE

if TYPE_CHECKING:
    from app.chat.conversation import ChatSettings, MediaFile
    from app.protocol.chat import AnswerEvent, GenerationOptions, MediaPart, Message, PromptProgress, ThreadUse, Tool
    from app.protocol.plan import Plan
    from app.protocol.sampling import ModelSampling
    from app.protocol.status import ModelStatus, ServiceStatus
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

    def read_ahead(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[PromptProgress, None]: ...

    def complete(
        self, prompt: str, model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[AnswerEvent, None]: ...

    async def end_thought(self, response_id: str) -> None: ...

    async def keep_draft_texts(
        self, draft_corpus: str, texts: Sequence[str], prompt_cache_key: str | None = None
    ) -> None: ...

    async def check_schema(self, schema: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionState:
    """The phase of the connection. `progress` runs from 0 to 1 while loading; `error` is set in the phase "failed". A
    model that was "unloaded" after idle time is loaded again for the next answer. `plan` is the plan the model was
    loaded with, None until known. What the model can do is None where the engine does not say it: it `sees` pictures,
    `hears` sounds, its chat template `takes_tools`, and it `thinks` where it is told to, or by default. `sampling` is
    what an answer is sampled with that the chat does not set. `load_bytes` are loaded (0: unknown), which takes about
    `load_left_s` more. `threads` compute, fewer beside other programs. A context that `can_grow` becomes longer where a
    question needs it."""

    phase: Literal["idle", "starting", "loading", "ready", "unloaded", "failed"] = "idle"
    model: str
    progress: float = 0.0
    n_ctx: int = 0
    notices: tuple[str, ...] = ()
    error: UserError | None = None
    plan: Plan | None = None
    sees: bool | None = None
    hears: bool | None = None
    takes_tools: bool | None = None
    thinks: bool | None = None
    thinks_by_default: bool | None = None
    sampling: ModelSampling | None = None
    load_bytes: int = 0
    load_left_s: float | None = None
    threads: ThreadUse | None = None
    can_grow: bool = False

    @classmethod
    def of_model(cls, model: ModelStatus, notices: tuple[str, ...] = ()) -> ConnectionState:
        """Return the state of a connection to a model of the service that has not failed."""
        assert model.state != "failed", "the error is the connection's"
        return cls(
            phase=model.state,
            model=model.id,
            progress=model.progress,
            n_ctx=model.n_ctx,
            notices=(*notices, *model.notices),
            plan=model.plan,
            sees=model.sees,
            hears=model.hears,
            takes_tools=model.takes_tools,
            thinks=model.thinks,
            thinks_by_default=model.thinks_by_default,
            sampling=model.sampling,
            load_bytes=sum(device.weights_bytes for device in model.plan.devices) if model.plan else 0,
            load_left_s=model.load_left_s,
            threads=model.threads,
            can_grow=model.can_grow,
        )

    def cannot_take(self, settings: ChatSettings) -> tuple[str, ...]:
        """Return a sentence for each thing that `settings` switch on and the model is not made for, as far as known.
        Tools are sent all the same: a large model calls them by what its prompt says of them. The person's folders are
        searched for such a model (`app.chat.retrieval`)."""
        model, level, unusable = printable_line(self.model), think_of(settings.options), []
        if (
            self.takes_tools is False
            and settings.tools.without(KNOWLEDGE).enabled
            and not template_of(settings.options)
        ):
            unusable.append(
                f"{model} has no place for tools in its chat template: they are written into its prompt, "
                "and it may call none. /tools switches them off."
            )
        if self.thinks is False and level not in ("", "off"):
            unusable.append(f"{model} does not think before it answers: /think {level} changes nothing.")
        return tuple(unusable)

    def reads(self, file: MediaFile) -> bool:
        """Return whether the model reads a picture or sound, as far as known."""
        return (self.hears if file.is_sound else self.sees) is not False


class ChatConnection(Protocol):
    """A model and the engine that runs it; `app.connection.ServiceConnection` reopens a lost one."""

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
