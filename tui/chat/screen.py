"""The chat screen: questions in, answers streamed, figures at the bottom. Owns the way from typed text to a question,
and which chat is open. Messages and answers belong to `tui.chat.session`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.events import Resize
from textual.message import Message
from textual.widgets import TextArea
from textual.worker import Worker

from app.chat.activity import Activity, activity_of
from app.chat.conversation import ChatSettings, MessageContent
from app.chat.events import Added, ChatEvent, Note, Reading, Repeating, Written
from app.chat.repository import DraftAutosave
from app.chat.session import OpenChat
from app.chat.settings_editor import SettingsEditor
from app.chat.tools_editor import KNOWLEDGE_FORMS, ToolsEditor
from app.common.help_topics import TOPICS
from app.common.terminal import printable_line
from app.connection import local_models, resolve_model
from app.settings.parsing import parse_variable_names
from quantizer.system.errors import StorageError, UsageError, UserError
from tui.chat.actions import ChatView, MessageActions, SettingsActions, ToolActions
from tui.chat.activity_line import ActivityLine
from tui.chat.commands import CHAT_COMMANDS, KEY_HINTS, MESSAGE_COMMANDS, PALETTE_KEY
from tui.chat.composer.attachment_bar import AttachmentBar
from tui.chat.composer.attachments import AttachmentReader, ServerResources, files_below, folders_below
from tui.chat.composer.composer import Composer
from tui.chat.composer.prompt_input import PromptInput
from tui.chat.composer.shell_command import SIGN
from tui.chat.draft_actions import DraftActions
from tui.chat.format import advice
from tui.chat.notices import NewTextLine, OtherQuestions, WaitingQuestions
from tui.chat.other_windows import OtherWindows
from tui.chat.shell_actions import ShellActions
from tui.chat.state_line import StateLine, chat_facts
from tui.chat.tools.calls import ApprovalPanel
from tui.chat.transcript.message_view import AnswerView, MessageView
from tui.chat.transcript.transcript import Transcript
from tui.commands import APP_COMMANDS, HOME, slash_line, unknown_command
from tui.context import AppContext
from tui.design.header import ScreenHeader
from tui.design.key_bar import KeyBar, KeyHint
from tui.history.open_chat import OpenChatActions
from tui.history.sidebar import ChatSidebar
from tui.widgets.notifications import NotificationLine
from tui.widgets.screens import CommandScreen

if TYPE_CHECKING:
    from app.cli.prompts import ChatOptions
    from tui.chat.transcript.find import FindBar
    from tui.chat.voice import Voice
    from tui.markdown.widget import MarkdownText
    from tui.widgets.help import HelpSections

_NAMES_WITHIN_S = 0.5
_LOOK_AFTER_S = 30.0  # for changed documents: the start comes first


class ChatScreen(CommandScreen):
    """A conversation with a model. Its commands are methods of this class and of its parts."""

    CSS_PATH = "chat.tcss"
    TABLE = CHAT_COMMANDS
    KEYS = PromptInput.KEYS
    BINDINGS = CHAT_COMMANDS.bindings()
    HORIZONTAL_BREAKPOINTS = [(0, "-stacked"), (100, "-beside")]  # noqa: RUF012 - Textual declares no class variable
    VERTICAL_BREAKPOINTS = [(0, "-short"), (14, "-tall")]  # noqa: RUF012 - the same

    class ConnectionChanged(Message):
        """The connection has a new state."""

    def __init__(self, app_context: AppContext) -> None:
        super().__init__(app_context)
        self._connection = app_context.connection
        self._session = app_context.session
        self._repository = app_context.repository
        self._settings_editor = SettingsEditor(lambda: self._session.chat, app_context.settings.data_dir)
        self._tools_editor = ToolsEditor(lambda: self._session.chat, app_context.tools, Path.cwd())
        self._drafts = DraftAutosave(lambda error: self.inform(str(error)))
        self._shown_notices: set[str] = set()
        self._find_bar: FindBar | None = None
        self._voice: Voice | None = None
        self._view = ChatView(self)
        self._messages = MessageActions(self._view)
        self._draft = DraftActions(self._view, self._show_status)
        self._other_windows = OtherWindows(self._view)
        self._tools = ToolActions(self._view, self._messages, self._tools_editor, self._settings_changed)
        options = SettingsActions(self._view, self._settings_editor, self._settings_changed)
        stored = OpenChatActions(self, lambda: self.sidebar.read_soon())
        self._shell = ShellActions(self._view, Path.cwd(), parse_variable_names(app_context.settings.command_variables))
        self.command_targets = (self._messages, self._draft, self._tools, options, stored, self._other_windows, self)

    @property
    def transcript(self) -> Transcript:
        return self._view.transcript

    @property
    def composer(self) -> Composer:
        return self._view.composer

    @property
    def prompt(self) -> PromptInput:
        return self._view.prompt

    @property
    def is_answering(self) -> bool:
        """Whether a question is waiting for its answer or the answer is running."""
        return self._session.chat.is_answering

    @property
    def can_stop(self) -> bool:
        """Whether an answer, a command of the person, a recording or a reading aloud is running."""
        return self.is_answering or self._shell.is_running or (self._voice is not None and self._voice.is_running)

    def compose(self) -> ComposeResult:
        yield ScreenHeader(HOME, self.app_context.settings_controller.keys)
        sidebar = ChatSidebar(self.app_context)
        sidebar.fit(self.app.size.width)  # now: the first frame is laid out once
        yield sidebar
        yield Transcript()
        yield NewTextLine()
        yield OtherQuestions()
        yield ApprovalPanel()
        yield WaitingQuestions()
        yield NotificationLine()
        yield ActivityLine(self._activity, self._session.clock)
        reader = AttachmentReader(self._session.keep_files)
        resources = ServerResources(lambda: self._session.chat, reader)
        yield Composer(reader, self._slash_words, self._arguments_of, resources)
        yield StateLine()
        yield KeyBar()

    def key_hints(self) -> Iterator[KeyHint]:
        if self.sidebar.has_keys:
            place = "sidebar"
        elif isinstance(self.focused, MessageView):
            place = "message"
        elif self._session.chat.approvals.questions:
            place = "asking"
        else:
            place = "answering" if self.is_answering else "prompt"
        custom = self.app_context.settings_controller.keys
        for name, word in KEY_HINTS[place]:
            command = self.TABLE.find(name) or APP_COMMANDS.find(name)
            if place == "message" and name != "stop" and not self._messages.applies(name):
                continue
            if command is None:
                yield KeyHint(PALETTE_KEY if name == "palette" else name, word)
            else:
                key = command.key_name(custom).lower()
                yield KeyHint(key, word, f"command('{name}')", self)
        yield KeyHint("f1", "help", "command('help')", self)

    @property
    def sidebar(self) -> ChatSidebar:
        return self.query_one(ChatSidebar)

    async def on_resize(self, event: Resize) -> None:
        self.sidebar.fit(event.size.width)
        if self._view.is_open.is_set():
            await self.sidebar.fill()

    def on_screen_resume(self) -> None:
        self.sidebar.read_soon()
        self.query_one(ScreenHeader).show_keys(self.app_context.settings_controller.keys)

    def on_mount(self) -> None:
        self.prompt.focus()
        # held, not queried: an answer that ends while the app does finds the transcript removed
        self._session.attach(partial(self._draw, self.transcript), self._chat_changed, self._chat_gone)
        self._session.watch(self._answers_changed)
        self._show_status()
        self._other_windows.begin()
        self._connection.watch(lambda: self.post_message(self.ConnectionChanged()))
        # Of the app: it mounts its first screen in a batch of updates, in which "after refresh" of the screen is before
        # anything is on the terminal.
        self.app.call_after_refresh(self._connection.connect)
        self.app.call_after_refresh(self.run_worker, self._open_last, group="reopen")
        self.set_timer(_LOOK_AFTER_S, lambda: self._view.run(self._tools.look_for_changes, "knowledge"))

    async def on_unmount(self) -> None:
        await self._draft.close()
        await self._stop_voice()
        await self._shell.stop()
        await self._tools.close()
        await self._drafts.close()
        await self._session.close()

    async def _draw(self, transcript: Transcript, event: ChatEvent) -> None:
        if isinstance(event, Reading) and event.progress is not None:
            return  # the activity line shows it
        if isinstance(event, Written):
            await transcript.write(event.message, event.text)
        elif not isinstance(event, Added) or event.message.role != "user":  # a question is drawn with its answer
            await transcript.show(self._session.conversation.entries())
        if isinstance(event, Note):
            await transcript.add_notice(event.text)
        elif isinstance(event, Repeating):
            await transcript.add_repetition()

    # From keys and words to commands

    @on(Composer.Submitted)
    async def _submitted(self, event: Composer.Submitted) -> None:
        text = event.question.content
        line = slash_line(text)
        if line is None:
            if refusal := self._draft.refusal(event.question):  # else the engine refuses it, and the prompt is empty
                self.composer.put(event.question.content, event.question.attachments)
                self.warn(refusal)
                return
            self.ask(event.question)
        elif command := self.command_of_word(line[0]):
            if not await self.run_command(command.id, line[1]):
                self._give_back(text)
        else:
            self._give_back(text)
            self.warn(unknown_command(line[0], self.all_commands(), "F1 lists the commands."))

    def _give_back(self, line: str) -> None:
        """Put a command that was refused back, to be mended; what was typed meanwhile stays, and Up has the command."""
        if not self.prompt.text:
            self.prompt.put(line)

    @on(TextArea.Changed)
    @on(AttachmentBar.Changed)
    def _typed(self) -> None:
        chat = self._session.chat
        chat.unsent = self.composer.draft
        self._drafts.write(chat.draft)
        self._draft.changed()

    @on(AttachmentBar.Changed)
    def _attachments_changed(self) -> None:
        self._draft.check_senses()

    @on(Transcript.NewText)
    def _new_text(self, event: Transcript.NewText) -> None:
        for line in self.own(NewTextLine):  # none is left while the app closes
            line.show(event.n_lines)

    @on(Composer.Commanded)
    def _commanded(self, event: Composer.Commanded) -> None:
        if not self._shell.run(event.command):
            self.prompt.put(f"{SIGN}{event.command}")

    @on(Composer.Attached)
    def _attached(self, event: Composer.Attached) -> None:
        self._draft.attached(event.attachment)

    @on(Composer.Refused)
    def _refused(self, event: Composer.Refused) -> None:
        self.warn(str(event.error))  # long enough to be read: what was typed is still in the prompt
        if event.command:
            self._give_back(event.command)

    @on(Composer.TakenBack)
    def _taken_back(self) -> None:
        self._messages.take_back()

    @on(AnswerView.SourceClicked)
    def _source_clicked(self, event: AnswerView.SourceClicked) -> None:
        event.stop()
        self._messages.show_source(event.source)

    @on(MessageView.Clicked)
    def _clicked(self, event: MessageView.Clicked) -> None:
        """Leave the keys to the prompt: a click gives letters no other meaning."""
        event.stop()
        self._view.focus_prompt()

    @on(ChatSidebar.Left)
    def _left_sidebar(self, event: ChatSidebar.Left) -> None:
        event.stop()
        self._view.focus_prompt()

    @on(MessageView.Typed)
    @on(ApprovalPanel.Typed)
    @on(ChatSidebar.Typed)
    def _typed_elsewhere(self, event: MessageView.Typed | ApprovalPanel.Typed | ChatSidebar.Typed) -> None:
        event.stop()
        self._view.give_to_prompt(event.text)

    @on(PromptInput.Passed)
    def _passed(self, event: PromptInput.Passed) -> None:
        event.stop()
        panel = self.query_one(ApprovalPanel)
        if panel.display:
            self.set_focus(panel)

    @on(ApprovalPanel.Decided)
    def _decided(self, event: ApprovalPanel.Decided) -> None:
        event.stop()
        self._view.focus_prompt()
        self._session.chat.approvals.answer(event.question, event.decision)

    @on(ApprovalPanel.Left)
    def _left_panel(self, event: ApprovalPanel.Left) -> None:
        event.stop()
        self._view.focus_prompt()

    def _chat_changed(self) -> None:
        """Show the status, and the questions that wait: for the answer, or for the person. If the answer was stopped or
        failed, those that wait for it go back to the prompt."""
        self._show_status()
        chat = self._session.chat
        for waiting in self.own(WaitingQuestions):
            waiting.show([question.content for question in chat.queue])
            if not chat.is_answering and self._view.is_open.is_set():
                self._view.put_back(chat.take_back_all())
        if not chat.is_answering:
            for transcript in self.own(Transcript):
                transcript.end_repetition()
        self._tools.show_questions()
        for composer in self.own(Composer):
            composer.has_waiting = bool(chat.queue)
        self._drafts.write(chat.draft)
        for sidebar in self.own(ChatSidebar):
            sidebar.follow()

    def _chat_gone(self) -> None:
        """Show a new chat in place of one that was deleted."""
        self._view.run(self.new_chat, "reopen")

    def _activity(self) -> tuple[Activity | None, list[tuple[str, str]]]:
        """Return what the person or the chat is at, and the keys that matter meanwhile."""
        if self._voice is not None and self._voice.activity is not None:
            return self._voice.activity, self._voice.keys
        chat = self._session.chat
        activity = activity_of(chat, self._session.clock())
        if activity is None or not (activity.is_moving and chat.is_answering):
            return activity, []
        custom, found = self.app_context.settings_controller.keys, []
        for name, word in (("end-thought", "answer now"), ("stop", "stop")):
            command = self.TABLE.find(name)
            if command is not None and (name == "stop" or chat.thinking_id):
                found.append((command.key_name(custom).lower(), word))
        return activity, found

    def _show_status(self) -> None:
        for activity_line in self.own(ActivityLine):
            activity_line.look()
        chat, forecast = self._session.chat, self._draft.forecast
        for line in self.own(StateLine):  # none is left while the app closes
            settings, reading = chat.conversation.settings, self._draft.reading
            line.show(chat_facts(self._connection.state, chat.figures, settings, forecast, reading))
        for header in self.own(ScreenHeader):
            header.show_model(self._connection.state, self._session.activity)
        for bar in self.own(KeyBar):
            bar.show()

    def _settings_changed(self) -> None:
        """Show the settings, and what they take of the context, to which the draft is added anew."""
        self._show_status()
        self._draft.changed()

    def _answers_changed(self, ended: Sequence[OpenChat]) -> None:
        for sidebar in self.own(ChatSidebar):
            sidebar.follow()
        for chat in ended:
            self.inform(f"“{printable_line(chat.title)}” has its answer: F5 opens it.")

    @on(Worker.StateChanged)
    def _worked(self, event: Worker.StateChanged) -> None:
        if event.worker.group == "answer" and event.worker.is_finished and self.own(Composer):  # not while it closes
            self._draft.changed()  # the context has an answer more

    async def _arguments_of(self, slash: str) -> Sequence[tuple[str, str]]:
        if slash == "attach":
            return [(name, "") for name in await asyncio.to_thread(files_below, Path.cwd())]
        if slash == "tools":
            return await self._tools_editor.arguments(await asyncio.to_thread(folders_below, Path.cwd()))
        if slash == "knowledge":
            return KNOWLEDGE_FORMS
        if slash in ("model", "compare"):
            return await self._model_names()
        if slash == "theme":
            from tui.settings.themes import theme_choices

            return list(theme_choices(self.app.available_themes).items())
        if slash == "help":
            return list(TOPICS.items())
        return await self._settings_editor.arguments_of(slash)

    async def _model_names(self) -> Sequence[tuple[str, str]]:
        """Return the local models with their sizes; none before the service answers, for which typing must not wait."""
        from tui.models.rows import format_size

        if self._connection.state.phase in ("idle", "starting"):
            return ()
        try:
            async with asyncio.timeout(_NAMES_WITHIN_S):
                models = await local_models(self._connection)
        except (TimeoutError, UserError):  # the command itself reports it
            return ()
        return [(model.id, f"{format_size(model.n_bytes)} {model.file_type}".rstrip()) for model in models]

    def _slash_words(self) -> list[tuple[str, str]]:
        commands = [command for command in self.all_commands() if command.slash]
        named = [(command.slash, command.tooltip) for command in commands]
        return named + [(word, command.tooltip) for command in commands for word in command.also if word.isalpha()]

    # Command handlers

    def help_sections(self) -> HelpSections:
        """Return the keys and commands by where they are of use: here, in the prompt, and on a selected message."""
        from tui.widgets.help import help_rows

        keys = self.app_context.settings_controller.keys
        others = [command for command in self.TABLE if command not in tuple(MESSAGE_COMMANDS)]
        everywhere = super().help_sections()["Everywhere"]
        return {
            "This screen": tuple(help_rows((), others, keys)),
            "The prompt": tuple(help_rows(self.KEYS, (), keys)),
            "Messages": tuple(help_rows((), MESSAGE_COMMANDS, keys)),
            "Everywhere": everywhere,
        }

    async def stop_answer(self) -> None:
        """Drop the recording, or stop reading aloud; else leave the search or the chats at the side, or hide the
        completions; else stop the own command, or the answer and keep its text; else focus the prompt."""
        if await self._stop_voice():
            return
        if self._find_bar is not None and await self._find_bar.close():
            self._view.focus_prompt()
        elif self.sidebar.back() or self.composer.dismiss() or await self._shell.stop():
            pass
        elif self.is_answering:
            await self._session.chat.stop()
        else:
            self._view.end_edit()
            self.transcript.mark(None)
            self._view.focus_prompt()

    async def find_in_chat(self, text: str = "") -> None:
        if self._find_bar is None:
            from tui.chat.transcript.find import FindBar

            self._find_bar = FindBar(self.transcript)
            await self.mount(self._find_bar, before=self.transcript)
        self._find_bar.open(text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave F3 to the search while it is open."""
        if action == "command" and str(parameters[0]).startswith("example-"):
            return self._find_bar is None or not self._find_bar.display
        return super().check_action(action, parameters)

    def clear_line(self) -> bool:
        """Clear the prompt, or end an edit; Up brings the text back. Return False if there is nothing to clear."""
        text = self.prompt.text
        if not text and self._view.edited_id is None:
            return False
        self.composer.dismiss()
        self._view.end_edit()
        self.prompt.put("")
        self.prompt.push_recall(text)
        self._view.focus_prompt()
        return True

    async def end_thought(self) -> None:
        with self.inform_on_error():
            if not await self._session.chat.end_thought():
                is_thinking = self._session.activity == "answering" and not self._session.conversation.last_answer
                no_way = "This engine cannot end a thought: Esc stops the answer."
                self.inform(no_way if is_thinking else "No thought is running.")

    def ask(self, question: MessageContent) -> None:
        """Send `question`. While an answer is running it waits; an edited one goes back into the composer."""
        edited_id = self._view.edited_id
        if edited_id is not None and self._view.refuses_while_answering():
            self.composer.put(question.content, question.attachments)
            return
        edited = self._session.conversation.messages.get(edited_id) if edited_id is not None else None
        self._draft.sent()
        self._view.end_edit()
        self.transcript.mark(None)
        if edited_id is None:
            self._view.answer(lambda chat: chat.ask(question))
        elif edited is not None and edited.role == "summary":
            self.run_worker(self._edit_summary(edited.id, question), group="edit")
        else:
            self._view.answer(lambda chat: chat.ask_instead(edited_id, question))

    async def _edit_summary(self, message_id: int, content: MessageContent) -> None:
        if content.attachments:
            self.composer.put(content.content, content.attachments)
            self.inform("A summary has no attachments: remove them, or send them with a question.")
            return
        with self.inform_on_error(StorageError):
            await self._session.chat.edit_summary(message_id, content.content)

    async def ask_example(self, question: str) -> None:
        """Ask one of the questions of an empty chat; never in another one. The prompt keeps what is typed."""
        await self._view.is_open.wait()
        if self.transcript.is_greeting and not self.is_answering:
            self.ask(MessageContent(content=question))
        else:
            self.inform("The examples are for an empty chat: Ctrl+N.")

    async def new_chat(self) -> None:
        await self._view.is_open.wait()
        await self._leave_draft()
        defaults = await self._defaults()
        self._session.new_chat()
        self._settings_editor.begin(defaults)
        await self._clear()
        await self._open_draft()

    async def compare(self, name: str) -> None:
        """Answer the last question with the model `name` too; without a name, show two versions side by side, or one
        again."""
        await self._view.is_open.wait()
        if not name:
            if not await self._session.chat.show_beside():
                self.inform("There is one answer only: /compare MODEL adds another.")
            return
        chat = self._session.chat
        if self.is_answering:
            raise UsageError("An answer is running.", "Esc stops it.")
        if not chat.conversation.last_answer:
            raise UsageError("There is no answer to compare.", "Ask something first.")
        model = await resolve_model(self._connection, name)
        if chat is self._session.chat:
            self._view.answer(lambda chat: chat.compare(model))

    async def compact(self, focus: str = "") -> None:
        """Summarise the older messages of the chat; `focus` is what to keep in mind above all."""
        await self._view.is_open.wait()
        if self.is_answering:
            raise UsageError("An answer is running.", "Esc stops it.")
        if not self._session.conversation.branch:
            self.inform("There is nothing to compact yet.")
        else:
            self._view.answer(lambda chat: chat.compact(focus))

    async def read_aloud(self, model: str = "") -> None:
        """Read the selected message, or the last answer, aloud; again, stop it."""
        selected = self.transcript.selected
        text = selected.entry.message.content if selected else self._session.conversation.last_answer
        await self._opened_voice().speak(text, model)

    async def record(self) -> None:
        """Begin to record what the person says; again, write it into the prompt."""
        await self._opened_voice().record()
        self._view.focus_prompt()  # Enter ends it there

    @on(Composer.RecordingEnded)
    def _recording_ended(self) -> None:
        self._opened_voice().end_recording()

    def _opened_voice(self) -> Voice:
        if self._voice is None:
            from tui.chat.voice import Voice  # not at the start

            self._voice = Voice(self._view, self._voice_changed)
        return self._voice

    def _voice_changed(self) -> None:
        for composer in self.own(Composer):  # none is left while the app closes
            composer.is_recording = self._voice is not None and self._voice.is_recording
        self._show_status()

    async def _stop_voice(self) -> bool:
        return self._voice is not None and await self._voice.stop()

    async def toggle_sidebar(self) -> None:
        await self.sidebar.toggle()

    async def toggle_figures(self) -> None:
        await self._view.is_open.wait()
        await self._session.chat.toggle_figures()

    def edit_in_editor(self, text: str = "") -> None:
        """Edit `text`, or that of the prompt, in the user's editor; what it saves is the prompt."""
        # after letters that the prompt has not taken yet
        self.prompt.call_later(self.run_worker, partial(self._edit_in_editor, text), group="editor", exclusive=True)

    async def _edit_in_editor(self, text: str) -> None:
        from tui.chat.composer.external_programs import edit_text_outside

        try:
            self.prompt.put(await edit_text_outside(self.app, text or self.prompt.text))
        except UserError as error:
            self.warn(str(error))
            if text:
                self._give_back(f"/editor {text}")

    # Events of the store, the service and the model

    async def open_chat(self, chat_id: int, message_id: int | None = None) -> None:
        await self._view.is_open.wait()
        await self._leave_draft()
        await self._open_stored(chat_id, message_id)
        self._view.focus_prompt()
        if message_id in self._session.conversation.messages:
            await self.transcript.show(self._session.conversation.entries(), at=message_id)
        await self._open_draft()

    async def _open_last(self) -> None:
        opening = self.app_context.opening
        try:
            await self._open_stored(
                opening.chat_id if opening else None,
                keeps_model=self.app_context.settings_controller.is_flag("model"),
            )
            if opening is not None:
                await self._open_as(opening)
            with self.inform_on_error(StorageError):
                self.prompt.remember(await self._repository.recent_questions())
            await self._open_draft()
        finally:
            self._view.is_open.set()
            self.call_after_refresh(self.sidebar.fill)
            if self._connection.state.phase != "failed":
                self._connection.start()  # with the model of the chat

    async def _open_as(self, options: ChatOptions) -> None:
        """Begin as the command line says: with a new chat, other settings, tools."""
        if options.is_new:
            self._session.new_chat()
            self._settings_editor.begin(await self._defaults())
            await self.transcript.clear()
        conversation = self._session.conversation
        conversation.shows_figures = options.shows_stats
        conversation.settings = conversation.settings.overridden(options.chat)
        if options.tools:
            with self.warn_on_error():
                tools = await options.tools.applied(conversation.settings.tools, self.app_context.tools)
                conversation.settings = replace(conversation.settings, tools=tools)
        await self._view.show_all()
        self._show_status()

    async def _open_draft(self) -> None:
        """Restore the unsent text of the open chat; if the user is typing already, make it recallable."""
        chat = self._session.chat
        with self.inform_on_error(StorageError):
            stored = await self._drafts.open(chat.stored)
            draft = chat.left_unsent if chat.queue else stored  # with questions that wait
            if self.prompt.text:
                self.prompt.push_recall(draft.content)
                self.composer.add(draft.attachments)
            else:
                self.composer.put(draft.content, (*draft.attachments, *self.composer.attachments))
        self._typed()

    async def _leave_draft(self) -> None:
        self._view.end_edit()
        self._typed()
        self._session.chat.left_unsent = self.composer.draft
        await self._drafts.close()

    async def _clear(self) -> None:
        await self._stop_voice()
        await self._shell.stop()
        self._view.removed.clear()
        self.composer.put("")
        await self.transcript.clear()

    async def _open_stored(
        self, chat_id: int | None = None, message_id: int | None = None, *, keeps_model: bool = False
    ) -> None:
        try:
            defaults = await self._defaults()
            await self._session.open(chat_id, message_id, keeps_model=keeps_model)
            self._settings_editor.begin(defaults)
            if self._view.is_open.is_set():  # what was typed during the start stays
                await self._clear()
            await self._view.show_all()
            self._chat_changed()
        except StorageError as error:
            await self.transcript.add_error(error)

    async def _defaults(self) -> ChatSettings:
        settings = self.app_context.settings_controller.settings
        try:
            return await self._settings_editor.defaults(settings)
        except UserError as error:
            self.warn(str(error))
            return ChatSettings(settings.system)

    @on(ConnectionChanged)
    async def _connection_changed(self) -> None:
        if text := await self._session.replace_missing_model():
            await self.transcript.add_notice(text)
        self._show_status()
        if self.own(Composer):  # none is left while the app closes
            self._draft.model_changed()
        state = self._connection.state
        if state.error is not None and not self.is_answering:
            await self.transcript.add_error(state.error)
        for sentence in self._session.chat.new_refusals():
            await self.transcript.add_notice(sentence)
        for notice in filter(None, (*state.notices, advice(state.plan))):
            if notice not in self._shown_notices:
                self._shown_notices.add(notice)
                await self.transcript.add_notice(notice)

    def on_markdown_text_code_clicked(self, event: MarkdownText.CodeClicked) -> None:
        self._messages.copy(event.code)

    def on_markdown_text_address_clicked(self, event: MarkdownText.AddressClicked) -> None:
        """Copy the address of a link instead of opening it: a model wrote it."""
        self.app.copy_to_clipboard(event.address)
        self.inform(f"Link copied, not opened: {event.address}")
