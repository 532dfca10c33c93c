"""The open chats of one window: the one on the screen, and those whose answers run on. Owns which chat is shown, and
which model a chat goes on with. An answer belongs to its `OpenChat`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from app.chat.branches import Conversation
from app.chat.compaction import AutoCompaction
from app.chat.events import Note
from app.chat.repository import ChatRepository, OpenedChat
from app.chat.session import Draw, OpenChat
from app.chat.state import Clock
from app.connection import ServiceConnection, local_models
from app.protocol.errors import ServiceError
from app.settings.settings import GUIDE
from app.tools.backend import ToolBackend
from quantizer.system.errors import UserError
from tui.design.words import model_label

_NAME_CELLS = 60
_IN_USE = ("loading", "ready", "unloaded")  # phases of a connection to a model that a person chose


class ChatSession:
    """Shows one chat at a time. Calls `on_change` when the shown chat's `activity` or queue or `asking` changes, and
    the callbacks of `watch` when `activities` do. `tools` runs what answers of all chats call."""

    def __init__(
        self,
        connection: ServiceConnection,
        repository: ChatRepository,
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
        tools: ToolBackend | None = None,
        compaction: Callable[[], AutoCompaction] = AutoCompaction,
        keeps_file_texts: Callable[[], bool] = lambda: False,
    ) -> None:
        self.connection = connection
        self._repository = repository
        self.clock = clock
        self._on_change = on_change
        self._on_gone: Callable[[], None] = lambda: None
        self._tools = tools
        self._compaction = compaction
        self._keeps_file_texts = keeps_file_texts
        self._callbacks: list[Callable[[Sequence[OpenChat]], None]] = []
        self._answering: Mapping[OpenChat, bool] = {}  # and whether it asks, as the callbacks know it
        self._asking: tuple[OpenChat, ...] = ()  # as `on_change` knows it
        self._view: Draw | None = None
        self._hidden: list[OpenChat] = []  # with news that are not shown yet
        self.unseen: frozenset[int] = frozenset()  # stored chats that were answered while another one was shown
        self._remembered_model = ""  # that of the shown chat, until it is loaded or replaced
        self._former_model = ""  # the one in use before that chat was opened
        self.chat = self._opened(OpenedChat(repository.new(), Conversation()))

    @property
    def conversation(self) -> Conversation:
        return self.chat.conversation

    @property
    def activity(self) -> str:
        """The phase of the connection, or what the shown chat is at: "reading", "answering", "asking" or
        "summarising"."""
        chat, phase = self.chat, self.connection.state.phase
        if chat.approvals.questions:
            return "asking"
        if not chat.activity or phase != "ready":
            return phase
        if chat.activity == "summarising":
            return "summarising"
        return "reading" if chat.figures.time_to_first_token_s is None else "answering"

    @property
    def activities(self) -> Mapping[int, str]:
        """What the stored chats with a running answer do, by their ids: "asking" while the person decides about a call,
        else "answering"."""
        running = ((chat.stored.id, chat) for chat in self._all() if chat.is_answering)
        return {id_: "asking" if chat.approvals.questions else "answering" for id_, chat in running if id_ is not None}

    @property
    def asking(self) -> tuple[OpenChat, ...]:
        """The chats that are not shown and wait for the person to decide about a call."""
        return tuple(chat for chat in self._hidden if chat.approvals.questions)

    def attach(
        self, view: Draw, on_change: Callable[[], None] | None = None, on_gone: Callable[[], None] | None = None
    ) -> None:
        """Draw the events of the shown chat by `view` from now on, and call `on_gone` when it was deleted."""
        self._view = self.chat.view = view
        self._on_change = on_change or self._on_change
        self._on_gone = on_gone or self._on_gone

    def watch(self, callback: Callable[[Sequence[OpenChat]], None]) -> None:
        """Call `callback` when `activities` change, with the chats that were answered just now while another one was
        shown."""
        self._callbacks.append(callback)

    async def open(
        self, chat_id: int | None = None, message_id: int | None = None, *, keeps_model: bool = False
    ) -> None:
        """Show a stored chat, without an id the latest one, on a branch with `message_id` if it has that message. It
        goes on with its own model unless `keeps_model`. Raises StorageError, UnknownChatError."""
        known = next((chat for chat in self._all() if chat_id is not None and chat.stored.id == chat_id), None)
        if known is None or not known.has_news:
            known = self._opened(await self._repository.open(chat_id))
        self._show(known)
        if message_id in self.conversation.messages:
            self.conversation.show(message_id)
        model = self.chat.pinned_model or self.chat.model_of_last_answer
        if not keeps_model:
            self.chat.pinned_model = self._remembered_model = ""
            if model and not self.connection.is_using(model):
                self._former_model = self.connection.state.model if self.connection.state.phase in _IN_USE else ""
                self._remembered_model = model
                await self.connection.use_model(model)

    def new_chat(self) -> None:
        self._show(self._opened(OpenedChat(self._repository.new(), Conversation())))

    async def keep_files(self, contents: Mapping[str, bytes]) -> None:
        """Store contents of attachments before a draft or a question names them. Raises StorageError."""
        await self._repository.keep_files(contents)

    async def stop_chat(self, chat_id: int) -> None:
        for chat in self._all():
            if chat.stored.id == chat_id:
                await chat.stop()

    def leave(self, chat_id: int) -> None:
        """Note that a stored chat was deleted: it is not shown any longer."""
        self.unseen -= {chat_id}
        if self.chat.stored.id == chat_id:
            self._on_gone()

    async def close(self) -> None:
        """Stop every answer and keep its text; then stop the tools."""
        await asyncio.gather(*(chat.close() for chat in self._all()))
        if self._tools is not None:
            await self._tools.close()

    async def replace_missing_model(self) -> str:
        """If the model that the shown chat was held with cannot be loaded, use another one, which new chats go on with
        too, and return a sentence about it; otherwise return an empty string."""
        state, remembered = self.connection.state, self._remembered_model
        if state.phase == "ready":
            self._remembered_model = ""
        is_missing = state.phase == "failed" and remembered and not isinstance(state.error, ServiceError)
        if not is_missing:
            return ""
        self._remembered_model = ""  # before the first wait: the connection may report it again meanwhile
        replacement = await self._replacement(remembered)
        if replacement == remembered:
            return ""
        await self.connection.use_model(replacement)
        return (
            f"This chat was held with {remembered}, which is not available: {state.error} "
            f"{model_label(replacement, _NAME_CELLS) or 'The default model'} answers from now on; F6 lists the others."
        )

    async def _replacement(self, missing: str) -> str:
        """Return the model that was used before a chat with a `missing` one was opened; at the start the default model,
        or the one of the latest chat that is still here where the default is only the built-in guide."""
        default = self.connection.default_model
        if self._former_model not in ("", missing):
            return self._former_model
        if default != GUIDE:
            return default
        try:
            models = await local_models(self.connection)
            recent = await self._repository.recent_models()
        except UserError:  # of another engine, or of a store that opening a chat reports
            return default
        names = {name: model.path for model in models for name in (model.id, model.file_stem, model.path)}
        return next((names[name] for name in recent if name in names and name not in (missing, GUIDE)), default)

    async def rename_model(self, formers: Collection[str], name: str) -> None:
        """Let all chats follow a model, which is not loaded, to another name than one of the `formers`. Raises
        StorageError."""
        await self._repository.rename_model(formers, name)
        has_it = [chat for chat in self._all() if chat.rename_model(formers, name)]
        self._remembered_model = name if self._remembered_model in formers else self._remembered_model
        self._former_model = name if self._former_model in formers else self._former_model
        self.connection.rename_model(formers, name)
        if self.chat in has_it and self._view is not None:
            await self._view(Note(f"Its model is called {name} now."))

    # Which chat is shown

    def _opened(self, opened: OpenedChat) -> OpenChat:
        return OpenChat(
            opened,
            self.connection,
            self.clock,
            self._changed,
            self._tools,
            self._compaction,
            self._keeps_file_texts,
        )

    def _show(self, chat: OpenChat) -> None:
        """Show `chat` instead of the present one, which goes on with its model if it is answering."""
        former = self.chat
        former.view = None
        former.pinned_model = self.connection.state.model
        self._hidden = [each for each in (*self._hidden, former) if each is not chat and each.has_news]
        self.chat = chat
        self.unseen -= {chat.stored.id or 0}
        chat.view = self._view
        self._on_change()

    def _all(self) -> tuple[OpenChat, ...]:
        return (self.chat, *self._hidden)

    def _changed(self, chat: OpenChat) -> None:
        self._hidden = [each for each in self._hidden if each.has_news]
        if chat is self.chat or self.asking != self._asking:
            self._asking = self.asking
            self._on_change()
        answering = {each: bool(each.approvals.questions) for each in self._all() if each.is_answering}
        if answering != self._answering:
            ended = [each for each in self._answering if each not in (*answering, self.chat)]
            self._answering = answering
            self.unseen |= {each.stored.id for each in ended if each.stored.id is not None}
            for callback in self._callbacks:
                callback(ended)
