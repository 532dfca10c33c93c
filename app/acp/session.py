"""One session of an editor: a chat that is asked, its events as updates, and its calls allowed by the person there.

A renderer of `app.chat`'s events, as the app, the chat in the scrollback and `run` are. What happens is stored before
it is told, so an editor that vanishes loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from acp.schema import (
    AvailableCommandsUpdate,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    RequestPermissionRequest,
    SessionInfoUpdate,
    StopReason,
    UsageUpdate,
)
from pydantic import BaseModel

from app.acp.choices import AUTO, MODE, MODEL, THINKING, ConfigOption, config_options
from app.acp.commands import available_commands, command_line
from app.acp.editor import Editor, EditorBuffers, EditorGoneError, EditorTerminal
from app.acp.forms import form_request, form_values
from app.acp.modes import Mode, decision_of, is_unasked, mode_of, permission_options
from app.acp.prompt import Block, read_prompt
from app.acp.updates import call_asked, call_changed, call_started, history, said, thought
from app.chat.attachments.prompt import media_of
from app.chat.branches import UNSAVED_ID, Ending, TranscriptEntry, empty_answer_text
from app.chat.compaction import AutoCompaction
from app.chat.conversation import Message
from app.chat.events import Added, ApprovalNeeded, Calling, ChatEvent, FormNeeded, Note, Repeating, Result, Written
from app.chat.repository import OpenedChat, SqliteChatRepository
from app.chat.rounds import RoundLimitError
from app.chat.session import OpenChat
from app.chat.settings_editor import SettingsEditor
from app.chat.tools_editor import ToolsEditor
from app.common.terminal import printable_line
from app.connection import ServiceConnection
from app.protocol.chat import MediaPart
from app.settings.settings import Settings
from app.tools.approval import ApprovalQuestion, Decision
from app.tools.backend import ToolBackend
from app.tools.tool import ToolOutcome
from quantizer.system.errors import StorageError, UsageError


class Models(Protocol):
    """The models of the connection that all sessions share."""

    async def names(self) -> Sequence[str]:
        """Return the ids of those that can be chosen, none where nothing says them."""

    async def find(self, typed: str) -> tuple[str, str]:
        """Return path and id of the one that a person typed. Raises UserError."""

    async def answer_with(self, session: EditorSession, begin: Callable[[], object]) -> None:
        """Load the session's model, let the session `prepare`, and call `begin`, before another session can change the
        model. Raises UserError."""


class EditorSession:
    """A chat in the folders that its editor has open, the first of which is where relative paths begin. `model` is what
    its next question is answered with, by any name that the service knows, and `model_name` how it is shown. With
    `has_default_tools` nobody chose the tools that are on."""

    def __init__(
        self,
        session_id: str,
        opened: OpenedChat,
        folders: Sequence[Path],
        mode: Mode,
        *,
        editor: Editor,
        models: Models,
        connection: ServiceConnection,
        repository: SqliteChatRepository,
        tools: ToolBackend,
        terminal: EditorTerminal,
        settings: Settings,
        has_default_tools: bool = False,
    ) -> None:
        self.id = session_id
        self.folders = tuple(folders)
        self.mode = mode
        self.models = models
        self.chat = OpenChat(
            opened,
            connection,
            on_change=lambda _: self._follow_title(),
            tools=tools,
            compaction=lambda: AutoCompaction.of(settings),
            keeps_file_texts=lambda: settings.draft_corpus,
        )
        self.chat.view = self._draw
        self.model = self.model_name = opened.model or connection.default_model
        self.settings_editor = SettingsEditor(lambda: self.chat, settings.data_dir)
        self.tools_editor = ToolsEditor(lambda: self.chat, tools, folders[0])
        self._editor = editor
        self._repository = repository
        self.tools = tools
        self.notices: list[str] = []  # for the person, told with the next answer
        self._has_default_tools = has_default_tools
        self._working: asyncio.Task[StopReason] | None = None
        self._told_options: list[ConfigOption] = []
        self._told_calls: dict[int, BaseModel | None] = {}  # by message: the last update of one that runs
        self._terminal_ids: dict[int, str] = {}  # by message, of commands that ran in the editor's terminals
        terminal.on_opened = self._show_terminal
        self._told_title = ""
        self._titling: asyncio.Task[None] | None = None

    # What the editor asks for

    async def prompt(self, blocks: Sequence[Block]) -> StopReason:
        """Answer a prompt, or run the command that it is. Raises UserError for one that cannot be answered, and while
        another one is."""
        if self._working is not None and not self._working.done():
            raise UsageError("This session answers a prompt already.", "Wait for its end, or cancel it.")
        working = self._working = asyncio.create_task(self._work(blocks))
        try:
            await asyncio.wait({working})
        except asyncio.CancelledError:
            await self.cancel()
            raise
        return "cancelled" if working.cancelled() else working.result()

    async def cancel(self) -> None:
        """Stop what a prompt began, and wait until what came is stored. Does nothing without one."""
        if self._working is not None and not self._working.done():
            self._working.cancel()
            await asyncio.wait({self._working})

    async def set_mode(self, mode_id: str) -> None:
        """Let the calls of a mode run unasked from now on. Raises UsageError for an unknown one."""
        self.mode = mode_of(mode_id)
        await self._tell_options()

    async def set_option(self, option_id: str, value: str | bool) -> list[ConfigOption]:
        """Change a configuration option, and return all. Raises UserError for what cannot be chosen."""
        if option_id == MODEL:
            self.model, self.model_name = await self.models.find(str(value))
        elif option_id == MODE:
            self.mode = mode_of(str(value))
            await self.tell(CurrentModeUpdate(session_update="current_mode_update", current_mode_id=self.mode.id))
        elif option_id == THINKING:
            self.settings_editor.set_thinking(str(value) or AUTO)
        else:
            raise UsageError(f"There is no option {option_id[:40]!r}.", f"Options: {MODE}, {MODEL}, {THINKING}.")
        return await self.options()

    async def options(self) -> list[ConfigOption]:
        """Return the configuration options, which the editor is told by that."""
        names, chat = await self.models.names(), self.chat
        self._told_options = config_options(
            self.model_name, names, self.mode, chat.conversation.settings, chat.connection.state
        )
        return self._told_options

    async def introduce(self) -> None:
        """Tell what can be typed in this session."""
        await self.tell(
            AvailableCommandsUpdate(session_update="available_commands_update", available_commands=available_commands())
        )

    async def replay(self) -> None:
        """Tell the chat as it was held."""
        for entry in self.chat.conversation.entries():
            parts = await self._media_parts(entry.message)  # one by one: all pictures of a chat may be gigabytes
            for update in history([entry], self.folders[0], parts):
                await self.tell(update)

    async def close(self) -> None:
        """Stop what runs, store what came, and stop the tools."""
        await self.cancel()
        await self.chat.close()
        if self._titling is not None:
            self._titling.cancel()
        await self.tools.close()

    # For its commands

    async def answer(self, begin: Callable[[], object]) -> StopReason:
        """Answer what `begin` asks the chat, once the model is ready. Raises the UserError that ends it."""
        conversation = self.chat.conversation
        former = {id(error) for error in conversation.errors.values()}
        await self.models.answer_with(self, begin)
        await self.chat.wait()
        n_ctx, used = self.chat.connection.state.n_ctx, self.chat.figures.n_context_tokens
        if n_ctx and used:  # another engine may count nothing
            await self.tell(UsageUpdate(session_update="usage_update", used=used, size=n_ctx))
        entries = conversation.entries()
        last = entries[-1] if entries else TranscriptEntry(message=Message(id=UNSAVED_ID, parent_id=None))
        if last.error is not None and id(last.error) not in former:
            if not isinstance(last.error, RoundLimitError):
                raise last.error
            await self.tell(said(f"\n\n{last.error}"))
            return "max_turn_requests"
        if text := empty_answer_text(last):
            await self.tell(thought(text))
        return "max_tokens" if last.ending is Ending.CUT else "end_turn"

    async def edit_tools(self, text: str) -> str:
        """Do what follows /tools: from now on the person has chosen them."""
        shown = await self.tools_editor.run(text)
        self._has_default_tools = self._has_default_tools and not text.strip()
        return shown

    async def prepare(self) -> None:
        """Adapt to the model, which is ready now: tools that nobody chose are not offered to one that has no place for
        them."""
        conversation, state = self.chat.conversation, self.chat.connection.state
        self.model = self.model_name = state.model
        await self._tell_options()
        tools = conversation.settings.tools
        if self._has_default_tools and tools.enabled and state.takes_tools is False:
            self._has_default_tools = False
            conversation.settings = replace(conversation.settings, tools=replace(tools, enabled=()))
            cause = f"{printable_line(state.model)} has no place for tools in its chat template: it is offered none."
            self.notices.append(f"{cause} /tools on files offers them all the same.")
        notices, self.notices = self.notices, []
        for notice in (*notices, *self.chat.new_sentences(*state.notices), *self.chat.new_refusals()):
            await self.tell(thought(f"{notice}\n"))

    async def tell(self, update: BaseModel) -> None:
        await self._editor.update(self.id, update)

    async def _tell_options(self) -> None:
        known = self._told_options
        if (options := await self.options()) != known:
            await self.tell(ConfigOptionUpdate(session_update="config_option_update", config_options=options))

    async def _work(self, blocks: Sequence[Block]) -> StopReason:
        if (line := command_line(blocks)) is not None:
            command, argument = line
            outcome = await command.run(self, argument)
            await self._tell_options()
            if not isinstance(outcome, str):
                return await self.answer(outcome)
            await self.tell(said(outcome))
            return "end_turn"
        question, contents = await read_prompt(blocks, EditorBuffers(self._editor, self.id))
        await self._repository.keep_files(contents)
        return await self.answer(lambda: self.chat.ask(question))

    # What happens in the chat

    async def _draw(self, event: ChatEvent) -> None:
        match event:
            case Added(message):
                summarised = thought("The older messages were summarised to make room.\n")
                await (self._record() if message.role == "user" else self.tell(summarised))
            case Written(message, text, reasoning) if message.role == "assistant":
                if reasoning:
                    await self.tell(thought(reasoning))
                if text:
                    await self.tell(said(text))
            case Calling(message) | Result(message):
                await self._tell_call(message)
            case ApprovalNeeded(question):
                await self._decide(question)
            case FormNeeded(form):
                content = await self._editor.fill(form_request(self.id, form))
                self.chat.approvals.filled(form, None if content is None else form_values(form, content))
            case Repeating():
                await self.tell(thought("The answer repeats itself; cancel stops it.\n"))
            case Note(text):
                await self.tell(said(f"{text}\n\n"))

    async def _record(self) -> None:
        """Note which chat this session is, so that the editor finds it after a restart."""
        chat_id = self.chat.stored.id
        if chat_id is not None:
            await self._repository.thread.do(lambda store: store.sessions.keep(self.id, chat_id))

    def _entry(self, message_id: int) -> TranscriptEntry:
        entries = self.chat.conversation.entries()
        entry = next(entry for entry in reversed(entries) if entry.message.id == message_id)
        return replace(entry, live=self.chat.conversation.live.get(message_id))

    async def _tell_call(self, message: Message) -> None:
        entry, folder = self._entry(message.id), self.folders[0]
        is_new, parts = message.id not in self._told_calls, await self._media_parts(message)
        terminal_id = self._terminal_ids.get(message.id, "")
        update = call_started(entry, folder) if is_new else call_changed(entry, folder, parts, terminal_id)
        if update != self._told_calls.get(message.id):
            has_ended = message.result is not None and message.result.outcome is not ToolOutcome.RUNNING
            self._told_calls[message.id] = None if has_ended else update
            await self.tell(update)

    async def _show_terminal(self, terminal_id: str) -> None:
        """Show the terminal in which a command begins to run within the call, which is the last message."""
        call = self.chat.conversation.branch[-1]
        if call.id not in self._told_calls:
            await self._tell_call(call)
        self._terminal_ids[call.id] = terminal_id
        await self._tell_call(call)

    async def _media_parts(self, message: Message) -> Mapping[str, MediaPart]:
        """Return the pictures and sounds of a result; none where one is missing: the next question says so."""
        with suppress(StorageError):
            return await self.chat.stored.media_parts(media_of(message.attachments) if message.role == "tool" else ())
        return {}

    async def _decide(self, question: ApprovalQuestion) -> None:
        """Let the mode or the person decide about a call. Where the editor cannot ask, it does not run."""
        approvals = self.chat.approvals
        if is_unasked(self.mode, question, self.folders):
            approvals.answer(question, Decision.ONCE)
            return
        entry = self._entry(self.chat.conversation.branch[-1].id)
        request = RequestPermissionRequest(
            session_id=self.id,
            tool_call=call_asked(entry, question, self.folders[0]),
            options=permission_options(question),
        )
        decision: Decision | None = Decision.DENY
        with suppress(EditorGoneError):
            answer = await self._editor.permission(request)
            decision = Decision.DENY if answer is None else decision_of(answer, question)
            if decision is not None:
                approvals.answer(question, decision)
                return
        # Nobody decided: what the prompt began is stopped, and the call is stored as one that did not run.
        if self._working is not None:
            self._working.cancel()

    def _follow_title(self) -> None:
        if not self.chat.is_answering and (self._titling is None or self._titling.done()):
            self._titling = asyncio.create_task(self._tell_title())

    async def _tell_title(self) -> None:
        """Tell the title of the chat where it is another one now: its first question, or what the model made of it."""
        chat_id = self.chat.stored.id
        if chat_id is None:
            return
        with suppress(StorageError):  # the next question reports it
            title = (await self._repository.thread.do(lambda store: store.chats.get(chat_id))).title
            if title and title != self._told_title:
                self._told_title = title
                await self.tell(SessionInfoUpdate(session_update="session_info_update", title=printable_line(title)))
