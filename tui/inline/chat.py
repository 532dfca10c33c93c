"""A chat in the scrollback: its questions, which of the app's commands it has, and what they do. Words, aliases and
meanings of commands are the app's. `tui.chat.session` runs the answers, `tui.inline.scrollback` reads the input."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

from app.chat.activity import activity_of
from app.chat.conversation import Attachment, ChatSettings, Message, MessageContent
from app.chat.events import Changed, ChatEvent
from app.chat.session import ANSWERED_ELSEWHERE
from app.chat.settings_editor import SettingsEditor
from app.chat.steps import undone_text
from app.chat.tool_switches import RequestedTools
from app.chat.tools_editor import KNOWLEDGE_MODES, ToolsEditor
from app.cli.output.answer import ending_note, source_lines, stats_line
from app.common.help_topics import read_topic
from app.connection import find_model, local_models, localllm_service, model_lines, resolve_model
from app.settings.settings import Settings
from app.tools.backend import ToolBackend
from app.tools.lazy import LazyTools
from quantizer.system.errors import UserError
from tui.chat.commands import CHAT_COMMANDS
from tui.chat.composer.attachments import (
    AttachmentReader,
    MentionReader,
    ServerResources,
    names_in,
    pasted_paths,
)
from tui.chat.composer.external_programs import edit_text
from tui.chat.composer.templates import Templates
from tui.chat.format import figures_text
from tui.chat.session import ChatSession
from tui.commands import APP_COMMANDS, Command, CommandTable, slash_line, unknown_command
from tui.inline.scrollback import Scrollback, breaks_lines

_TABLES = (CHAT_COMMANDS, APP_COMMANDS)
_IDS = (
    "retry", "continue", "edit", "editor", "new", "model", "compact", "compare", "newest", "figures", "system",
    "options", "think", "preset", "template", "prompt", "thoughts", "tools", "knowledge", "undo-step", "redo-step",
    "copy", "speak", "help", "quit",
)  # fmt: skip
COMMANDS: tuple[Command, ...] = tuple(
    command for command_id in _IDS for table in _TABLES if (command := table.find(command_id)) is not None
)
_COMMANDS = CommandTable(*COMMANDS)
SLASH_WORDS = tuple(word for command in COMMANDS for word in (command.slash, *command.also) if word.isalpha())

_KEYS = (
    ("Ctrl+C", "Stop the answer and keep the text so far; at the prompt: clear the line, and say how to quit"),
    ("Ctrl+D", "Quit"),
    ("Up, Down", "Recall earlier questions"),
    ('"""', "Start and end a question of several lines"),
    ("@FILE", "Attach a file, pages of a PDF with @FILE#3-5; Tab completes its name"),
    ("PATH", "A dropped or pasted path alone: attach the file to the next question"),
)
_BREAK = ("Alt+Enter", "Start a new line")
_WORDS = {"speak": "Read the last answer aloud; Ctrl+C stops it"}  # where there is no selection
_FORGETTING = {"new": "Start a new chat; this one is discarded (also /clear)"}
# What else does it, of commands that need the full screen.
_INSTEAD = {
    "part": "`localllm run --search-files` searches a long text, @FILE.pdf#3-5 attaches pages.",
    "record": "`localllm transcribe` writes down a recording.",
}


def parse_command(text: str) -> tuple[Command | None, str, str] | None:
    """Return command, word and argument of a text such as `/system Be brief`; None for a question. The command is None
    for an unknown word."""
    line = slash_line(text)
    return None if line is None else (_COMMANDS.of_word(line[0]), *line)


def needs_full_screen(word: str) -> bool:
    return any(table.of_word(word) for table in _TABLES)


def help_text(*, is_saved: bool, breaks_lines: bool) -> str:
    """Return commands and keys, one per line; `breaks_lines` if Alt+Enter is available."""
    words = _WORDS if is_saved else _WORDS | _FORGETTING
    rows = [(f"/{each.slash} {each.argument}".rstrip(), words.get(each.id, each.help_text)) for each in COMMANDS]
    rows += [*_KEYS, *([_BREAK] if breaks_lines else [])]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {meaning}" for label, meaning in rows)


_SHOWN_AFTER_S = 0.3  # progress would only flicker before
_EVERY_S = 0.2


class InlineChat:
    """Implements the methods that `COMMANDS` call. Cancelling a method stops the answer. `edited` is the question that
    the next one replaces, `held_back` a text that was not sent, `dropped` are files that go with the next question;
    /quit sets `is_quitting`. Mentioned files are relative to `folder`, by default that in which this process works."""

    def __init__(
        self,
        session: ChatSession,
        data_dir: Path,
        scrollback: Scrollback,
        *,
        is_saved: bool,
        shows_stats: bool,
        folder: Path | None = None,
        tools: ToolBackend | None = None,
    ) -> None:
        self.edited: Message | None = None
        self.held_back = ""
        self._templates = Templates()
        self._speaker = ""  # the model that spoke last; empty: the only one that there is
        self.dropped: tuple[Attachment, ...] = ()
        self.is_quitting = False
        self._followed: int | None = None  # the message after which another window goes on, as it was printed
        self._session = session
        self._settings_editor = SettingsEditor(lambda: session.chat, data_dir)
        self._tools = tools or LazyTools(Settings(data_dir=data_dir))
        self._tools_editor = ToolsEditor(lambda: session.chat, self._tools, folder or Path.cwd())
        self._scrollback = scrollback
        self._is_saved = is_saved
        self._shows_stats = shows_stats
        self._reader = AttachmentReader(session.keep_files)
        self._mention_reader = MentionReader(
            folder or Path.cwd(), self._reader, ServerResources(lambda: session.chat, self._reader)
        )
        session.attach(self._draw)

    @property
    def error(self) -> UserError | None:
        """The error that ended the last answer; it is printed already."""
        entries = self._session.conversation.entries()
        return entries[-1].error if entries else None

    def arguments_of(self, slash: str) -> Sequence[str]:
        """Return what may follow a slash word; nothing if that cannot be read. Reads files."""
        try:
            return [name for name, _ in self._settings_editor.read_arguments(slash)]
        except UserError:  # the command itself reports it
            return ()

    @property
    def branch(self) -> Sequence[Message]:
        return self._session.conversation.branch

    @property
    def is_answered_elsewhere(self) -> bool:
        return self._session.conversation.is_answered_elsewhere

    async def open(
        self,
        chat_id: int | None,
        *,
        is_new: bool,
        answered: ChatSettings,
        keeps_model: bool = False,
        settings: Settings | None = None,
    ) -> None:
        """Open a stored chat, as `ChatSession.open`, or start one if `is_new`; override its settings by `answered`. A
        new chat begins with the defaults of `settings`. Raises StorageError, UnknownChatError."""
        if not is_new:
            await self._session.open(chat_id, keeps_model=keeps_model)
        if settings is not None:
            try:
                defaults = await self._settings_editor.defaults(settings)
            except UserError as error:
                self._scrollback.print_line(str(error))
                defaults = ChatSettings(settings.system)
            self._settings_editor.begin(defaults)
        conversation = self._session.conversation
        conversation.settings = conversation.settings.overridden(answered)

    async def use_tools(self, requested: RequestedTools) -> None:
        """Switch on what options of the command line ask for. Raises UsageError for an unknown name."""
        conversation = self._session.conversation
        tools = await requested.applied(conversation.settings.tools, self._tools)
        conversation.settings = replace(conversation.settings, tools=tools)

    async def submit(self, text: str) -> None:
        """Run a command, attach the file whose full path is all of `text`, or ask a question."""
        self.held_back = ""
        if unfilled := self._templates.unfilled(text):
            self._scrollback.print_line(str(unfilled))
            self.held_back = text
            return
        paths = await asyncio.to_thread(pasted_paths, text)
        for path in paths:
            with self._print_errors():
                attachment = await self._reader.read_file(path, path.name)
                others = (each for each in self.dropped if each.name != attachment.name)
                self.dropped = (*others, attachment)
                self._scrollback.print_line(f"Attached {attachment.label}: it goes with your next question.")
        if paths:
            return
        line = parse_command(text)
        if line is None:
            attached = await self._attached(text)
            if attached is not None:
                self.dropped = ()
                await self.ask(text, attached)
            return
        command, word, argument = line
        if command is not None:
            outcome = command.run(self, argument)
            if isawaitable(outcome):
                await outcome
        elif needs_full_screen(word):
            remedy = _INSTEAD.get(word, "/help lists the commands available here.")
            self._scrollback.print_line(f"/{word} needs the full screen: localllm chat. {remedy}")
        else:
            self._scrollback.print_line(unknown_command(word, COMMANDS, "/help lists the commands."))

    async def ask(self, question: str, attachments: tuple[Attachment, ...] = ()) -> None:
        content = MessageContent(role="user", content=question, attachments=attachments)
        edited, self.edited = self.edited, None
        if edited is None:
            await self._answer(partial(self._session.chat.ask, content))
        else:
            await self._answer(partial(self._session.chat.ask_instead, edited.id, content))

    @property
    def begun(self) -> str:
        return self.held_back or (self.edited.content if self.edited else "")

    def cancel_edit(self) -> None:
        self.edited, self.held_back = None, ""

    async def wait_for(self, work: Coroutine[Any, Any, object]) -> None:
        """Await `work`, with its progress in the last row."""
        showing = asyncio.create_task(self._show_progress())
        try:
            await work
        finally:
            showing.cancel()
            self._scrollback.busy.clear()

    async def replace_missing_model(self) -> bool:
        """If the model of the opened chat cannot be loaded, print that the default one answers; return whether."""
        text = await self._session.replace_missing_model()
        if text:
            self._scrollback.print_line(text)
        return bool(text)

    async def close(self) -> None:
        await self._session.close()

    # Commands, see `COMMANDS`

    async def answer_again(self) -> None:
        if self._session.conversation.leaf_id is None:
            self._scrollback.print_line("There is no question yet.")
        else:
            await self._answer(self._session.chat.answer_again)

    async def continue_answer(self) -> None:
        with self._print_errors():
            await self._session.chat.catch_up()
        answer = self._session.conversation.unfinished_answer
        if answer is None and self._session.conversation.is_answered_elsewhere:
            self._scrollback.interrupt()  # what it wrote since is printed
            self._scrollback.print_line(ANSWERED_ELSEWHERE)
        elif answer is None:
            self._scrollback.print_line("There is no unfinished answer.")
        else:
            await self._answer(partial(self._session.chat.continue_answer, answer))

    def edit(self) -> None:
        leaf_id = self._session.conversation.leaf_id
        self.edited = None if leaf_id is None else self._session.conversation.question_of(leaf_id)
        if self.edited is None:
            self._scrollback.print_line("There is no question to edit yet.")
        else:
            self._scrollback.print_line("Edit the question; Ctrl+C cancels.")

    async def edit_in_editor(self, text: str) -> None:
        with self._print_errors():
            self.held_back = await edit_text(text or self.begun)

    async def new_chat(self) -> None:
        settings = self._session.conversation.settings
        self.dropped = ()
        self._session.new_chat()
        self._session.conversation.settings = settings
        self._scrollback.print_line("New chat." if self._is_saved else "Chat discarded.")

    def set_system_prompt(self, text: str) -> None:
        self._scrollback.print_line(self._settings_editor.set_system_prompt(text))

    async def edit_options(self, text: str) -> None:
        with self._print_errors():
            self._scrollback.print_line(await self._settings_editor.change_options(text))

    def set_thinking(self, text: str) -> None:
        with self._print_errors():
            self._scrollback.print_line(self._settings_editor.set_thinking(text))

    async def use_preset(self, name: str) -> None:
        with self._print_errors():
            self._scrollback.print_line(await self._settings_editor.use_preset(name))

    async def choose_model(self, name: str) -> None:
        """Chat with the local model `name`, which may be abbreviated; without a name, print the models."""
        connection = self._session.connection
        former = connection.state.model
        with self._print_errors():
            models = await local_models(connection)
            if not name:
                self._scrollback.print_line("\n".join(model_lines(models, former)))
                return
            await connection.use_model(find_model(name, models).path)
            try:
                await self.wait_for(connection.client())
            except UserError:
                await connection.use_model(former)
                raise
            refusals = self._session.chat.new_refusals()
            self._scrollback.print_line(" ".join([f"{connection.state.model} answers from now on.", *refusals]))

    async def use_template(self, name: str) -> None:
        """Use a prompt template, or list them; a question that failed without one is answered."""
        with self._print_errors():
            self._scrollback.print_line(self._settings_editor.use_template(name))
            if name and self._session.chat.lacks_template:
                await self.answer_again()

    async def use_prompt(self, name: str) -> None:
        with self._print_errors():
            if name:
                self.held_back = await self._settings_editor.prompt(name)
                self._templates.add(self.held_back)
                self._scrollback.print_line("Edit the prompt; Enter sends it, Ctrl+C cancels.")
            else:
                self._scrollback.print_line(await self._settings_editor.list_prompts())

    @contextmanager
    def _print_errors(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            self._scrollback.print_line(str(error))

    async def edit_tools(self, text: str) -> None:
        with self._print_errors():
            self._scrollback.print_line(await self._tools_editor.run(text))

    async def edit_knowledge(self, text: str) -> None:
        """Let the chat search the folders of knowledge, or not; the shell has the commands that change them."""
        if text not in KNOWLEDGE_MODES:
            mode = self._tools_editor.knowledge_mode
            change = "`localllm knowledge` adds and lists them; /knowledge on, off or auto is for this chat."
            self._scrollback.print_line(f"Search in your folders is {mode}. {change}")
            return
        with self._print_errors():
            self._scrollback.print_line(await self._tools_editor.search_folders(text))

    async def undo_step(self) -> None:
        """Take back the last step of the chat with its files; a question that was taken back is held for the prompt."""
        with self._print_errors():
            step = await self._session.chat.undo_step()
            self._scrollback.print_line(undone_text(step) if step else "There is nothing to take back.")
            if step is not None and step.question is not None:
                self.held_back = step.question.content

    async def redo_step(self) -> None:
        with self._print_errors():
            step = await self._session.chat.redo_step()
            self._scrollback.print_line("It is done again." if step else "There is nothing to do again.")

    async def go_to_newest(self) -> None:
        with self._print_errors():
            if not await self._session.chat.go_to_newest():
                self._scrollback.print_line("This is the newest message.")
            elif self._session.chat.is_answering:
                await self._answer(lambda: None)
            else:
                self._scrollback.recall(self.branch)

    async def compare(self, name: str) -> None:
        chat = self._session.chat
        former = chat.conversation.branch[-1] if chat.conversation.last_answer else None
        if not name or former is None:
            self._scrollback.print_line("/compare MODEL answers the last question with another model.")
            return
        with self._print_errors():
            model = await resolve_model(self._session.connection, name)
            await self._answer(partial(chat.compare, model))
            for message in (former, chat.conversation.branch[-1]):
                self._scrollback.print_line(f"{message.model}: {figures_text(message.stats) or 'no figures'}")

    async def compact(self, focus: str = "") -> None:
        """Summarise the older messages; `focus` is what to keep in mind above all."""
        if self._session.conversation.leaf_id is None:
            self._scrollback.print_line("There is nothing to compact yet.")
        else:
            await self._awaited(partial(self._session.chat.compact, focus))

    def toggle_figures(self) -> None:
        self._shows_stats = not self._shows_stats
        self._scrollback.print_line("Figures are now shown." if self._shows_stats else "Figures are now hidden.")

    def toggle_thoughts(self) -> None:
        folds = self._scrollback.collapses_reasoning = not self._scrollback.collapses_reasoning
        self._scrollback.print_line("Thoughts are now collapsed." if folds else "Thoughts are now shown.")
        reasoning = self.branch[-1].reasoning if self.branch else ""
        if reasoning and not folds:
            self._scrollback.unfold(reasoning)

    def copy_answer(self) -> None:
        text = self._session.conversation.last_answer
        if not text:
            self._scrollback.print_line("There is no answer to copy yet.")
        elif self._scrollback.copy(text):
            self._scrollback.print_line(f"Copied {len(text)} characters.")
        else:
            self._scrollback.print_line("This terminal has no clipboard access.")

    async def read_aloud(self, model: str = "") -> None:
        """Read the last answer aloud by `model`, without one by the model of the last time."""
        from app.sound.devices import play  # few chats need it
        from app.sound.spoken_text import spoken_text

        words = spoken_text(self._session.conversation.last_answer)
        if not words:
            self._scrollback.print_line("There is nothing to read aloud.")
            return
        speaker = model or self._speaker

        def began(_said: object) -> None:
            self._speaker = speaker  # which is one

        with self._print_errors():
            client = await localllm_service(self._session.connection)
            self._scrollback.print_line("Reading aloud; Ctrl+C stops it.")
            await play(client.speak(words, speaker), began)

    def show_help(self, topic: str = "") -> None:
        if topic:
            self._scrollback.print_line(read_topic(topic))
            return
        self._scrollback.print_line(help_text(is_saved=self._is_saved, breaks_lines=breaks_lines()))

    def quit_app(self) -> None:
        self.is_quitting = True

    # Helpers

    async def _attached(self, question: str) -> tuple[Attachment, ...] | None:
        """Return the attachments of a question: dropped files, those that it mentions, and those of the question it
        replaces that were not mentioned there. Print the fault of a mention and return None if the question is held
        back. In a text of several lines, possibly pasted, only files below the folder count."""
        try:
            names = {attachment.name for attachment in self.dropped}
            read = await self._mention_reader.read(question, names, is_typed="\n" not in question)
        except UserError as error:
            self._scrollback.print_line(str(error))
            self.held_back = question
            return None
        for attachment in read:
            self._scrollback.print_line(f"Attached {attachment.label}.")
        read = (*self.dropped, *read)
        if self.edited is not None:
            named = {*names_in(self.edited.content), *(attachment.name for attachment in read)}
            read = (*(each for each in self.edited.attachments if each.name not in named), *read)
        return read

    async def _answer(self, begin: Callable[[], object]) -> None:
        await self._awaited(begin)
        entry = self._session.conversation.entries()[-1]
        self._scrollback.end(ending_note(entry))
        if entry.sources:
            self._scrollback.print_line(source_lines(entry.sources))
        cost = self._session.chat.figures.cost
        if entry.error is not None:
            self._scrollback.print_line(f"Error: {entry.error}")
        elif self._shows_stats and cost is not None:
            self._scrollback.print_line(stats_line(cost))

    async def _awaited(self, begin: Callable[[], object]) -> None:
        """Wait until what `begin` begins has ended; a question that had not been asked yet is not sent by the next."""
        self._scrollback.begin()
        begin()
        try:
            await self.wait_for(self._session.chat.wait())
        except asyncio.CancelledError:
            self._scrollback.end("stopped")
            if waiting := self._session.chat.take_back_all():
                self.held_back = waiting.content
                self.dropped = (*self.dropped, *waiting.attachments)
            raise

    async def _draw(self, event: ChatEvent) -> None:
        conversation, former = self._session.conversation, self._followed
        self._followed = conversation.leaf_id if conversation.is_answered_elsewhere else None
        if isinstance(event, Changed) and self._followed is not None and former not in (None, self._followed):
            self._scrollback.interrupt()  # the window that is waited for asked its next question
            self._scrollback.recall(self.branch)
        await self._scrollback.draw(event, self._session.chat.approvals)
        if former is not None and self._followed is None:  # its text has ended, what follows is ours
            self._scrollback.interrupt()
            self._scrollback.begin()

    async def _show_progress(self) -> None:
        await asyncio.sleep(_SHOWN_AFTER_S)
        while True:
            if not (self._scrollback.has_begun or self._scrollback.is_asking):
                now_s = self._session.clock()
                if (activity := activity_of(self._session.chat, now_s)) is not None:
                    self._scrollback.busy.put(activity.words)
            await asyncio.sleep(_EVERY_S)
