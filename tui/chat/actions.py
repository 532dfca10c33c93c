"""The open chat on its screen, and the commands for its messages, its settings and its tools. `ChatView` has the
widgets that show the chat and take its text; the classes after it have a method for each command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

from textual.events import Paste
from textual.worker import Worker

from app.chat.branches import RemovedMessages, TranscriptEntry
from app.chat.conversation import MessageContent, searched_texts
from app.chat.presets import VARIABLE
from app.chat.session import ANSWERED_ELSEWHERE, OpenChat, joined
from app.chat.settings_editor import SettingsEditor
from app.chat.steps import undone_text
from app.chat.tools_editor import ToolsEditor
from app.common.terminal import printable_line
from app.connection import ServiceConnection
from app.protocol.chat import Source
from quantizer.system.errors import StorageError, UsageError
from quantizer.system.files import is_file
from tui.chat.composer.composer import Composer
from tui.chat.composer.prompt_input import PromptInput
from tui.chat.notices import OtherQuestions
from tui.chat.tools.calls import ApprovalPanel
from tui.chat.transcript.transcript import Transcript
from tui.context import BaseApp
from tui.history.sidebar import ChatSidebar
from tui.markdown.document import code_blocks
from tui.widgets.screens import CommandScreen

if TYPE_CHECKING:
    from tui.chat.tools.form import FormDialog
    from tui.knowledge.updater import KnowledgeUpdater


class ChatView:
    """`is_open` is set once the last chat was opened, before which nothing is sent. `edited_id` is the message that the
    prompt's text will replace; `removed` are the deletions in the open chat, the last one last."""

    def __init__(self, screen: CommandScreen) -> None:
        self.screen = screen
        self.session = screen.app_context.session
        self.is_open = asyncio.Event()
        self.removed: list[RemovedMessages] = []
        self.edited_id: int | None = None

    @property
    def chat(self) -> OpenChat:
        return self.session.chat

    @property
    def connection(self) -> ServiceConnection:
        return self.session.connection

    @property
    def transcript(self) -> Transcript:
        return self.screen.query_one(Transcript)

    @property
    def composer(self) -> Composer:
        return self.screen.query_one(Composer)

    @property
    def prompt(self) -> PromptInput:
        return self.composer.prompt

    async def show_all(self, at: int | None = None) -> None:
        """Show the branch, scrolled to its end or to the message with the id `at`."""
        await self.transcript.show(self.session.conversation.entries(), at)

    def answer(self, begin: Callable[[OpenChat], object]) -> None:
        """Call `begin` with the open chat, once that is open, and report what breaks its answer unexpectedly."""
        if self.is_open.is_set():
            begin(self.chat)
            waiting: Callable[[], Coroutine[Any, Any, None]] = self.chat.wait
        else:
            waiting = partial(self._answer_when_open, begin)
        self.run(waiting, "answer")

    def choose(
        self,
        title: str,
        labels: Mapping[str, str],
        take: Callable[[str], None],
        hint: str = "",
        *,
        is_numbered: bool = True,
    ) -> None:
        """Call `take` with the key of the label that is chosen from a list, unless that is left with Esc."""
        from tui.widgets.dialogs import ChoiceDialog

        def chosen(key: str | None) -> None:
            if key is not None:
                take(key)

        self.screen.app.push_screen(ChoiceDialog(title, hint, labels, is_numbered=is_numbered), chosen)

    def run(self, work: Callable[[], Coroutine[Any, Any, None]], group: str, *, exclusive: bool = False) -> None:
        _: Worker[None] = self.screen.run_worker(work, group=group, exclusive=exclusive)

    async def _answer_when_open(self, begin: Callable[[OpenChat], object]) -> None:
        await self.is_open.wait()
        begin(self.chat)
        await self.chat.wait()

    def refuses_while_answering(self) -> bool:
        if self.chat.is_answering:
            self.screen.inform("An answer is running: Esc stops it.")
        return self.chat.is_answering

    def end_edit(self) -> None:
        if self.edited_id is not None:
            self.edited_id = None
            self.prompt.border_title = None
            self.composer.put("")

    def focus_prompt(self) -> None:
        """Give the keys to the prompt at once: the next one may be queued already."""
        self.screen.set_focus(self.prompt)

    def give_to_prompt(self, text: str) -> None:
        self.focus_prompt()
        self.prompt.post_message(Paste(text))

    def put_back(self, draft: MessageContent | None) -> bool:
        """Put unsent text before that in the prompt; return whether there is any."""
        if draft is None:
            return False
        whole = joined(draft, self.composer.draft)
        self.composer.put(whole.content, whole.attachments)
        return True


_EDITING: Mapping[str, str] = {
    "user": "Editing the question: Enter sends it, Esc cancels",
    "summary": "Editing the summary: Enter takes it, Esc cancels",
}


_NOT_WHILE_ANSWERING = ("edit", "delete")
_LOOK_FOR_FOLDERS_S = 60.0


@lru_cache(1)
def _has_code(text: str) -> bool:
    return bool(code_blocks(text))  # the row of keys asks with every change of the status


class MessageActions:
    """The methods that commands call; they work on `view`."""

    def __init__(self, view: ChatView) -> None:
        self._view = view
        self._screen = view.screen

    def take_back(self) -> None:
        if not self._view.put_back(self._view.chat.take_back()):
            self._screen.inform("No question is waiting.")

    async def answer_again(self) -> None:
        """Answer the selected question, or the last one, again; without one, reconnect."""
        await self._view.is_open.wait()
        selected = self._view.transcript.selected
        await self._view.chat.stop()
        self._view.answer(partial(self._answer_again, selected.entry.message.id if selected else None))

    async def select_step(self, n_steps: int) -> None:
        """Select the message `n_steps` below the selected one (above if negative); the prompt is below the last one."""
        if not await self._view.transcript.select_step(n_steps):
            self._view.transcript.mark(None)
            self._view.focus_prompt()

    async def step_to_version(self, n_steps: int) -> None:
        if (selected := self._editable_selection()) is None:
            return
        with self._screen.inform_on_error(StorageError):
            version_id = await self._view.chat.step_to_version(selected.message.id, n_steps)
            if version_id is not None:
                await self._view.transcript.show(self._view.session.conversation.entries(), at=version_id)

    async def keep_version(self, index: int) -> None:
        """End the comparison, and go on with the answer at `index` of the two."""
        compared = [entry for entry in self._view.session.conversation.entries() if entry.beside is not None]
        if not compared or self._view.refuses_while_answering():
            if not compared:
                self._screen.inform("No answers are compared: /compare MODEL does that.")
            return
        entry = compared[-1]
        kept = sorted(filter(None, (entry, entry.beside)), key=lambda version: version.message.id)[index].message
        with self._screen.inform_on_error(StorageError):
            await self._view.chat.keep_version(kept.id)
            self._view.transcript.mark(None)
            self._view.focus_prompt()
            model = printable_line(kept.model)
            is_own = not model or model == self._view.connection.state.model
            others = "" if is_own else f" /model {model} lets that model answer from now on."
            self._screen.inform(f"The chat goes on with this answer.{others}")

    def edit(self) -> None:
        """Load the selected question or summary, or the last one, into the prompt; sending it adds a version."""
        conversation = self._view.session.conversation
        selected = self._view.transcript.selected
        message_id = selected.entry.message.id if selected else conversation.leaf_id
        question = None if message_id is None else conversation.editable(message_id)
        if question is None:
            self._screen.inform("There is no question to edit yet.")
            return
        self._view.edited_id = question.id
        self._view.prompt.push_recall(self._view.prompt.text)  # what was typed is not lost
        self._view.prompt.border_title = _EDITING[question.role]
        self._view.composer.put(question.content, question.attachments)
        self._view.focus_prompt()  # at once: the next key edits the question

    async def continue_answer(self) -> None:
        await self._view.is_open.wait()
        with self._screen.inform_on_error(StorageError):
            await self._view.chat.catch_up()
        conversation = self._view.session.conversation
        answer = None if self._view.chat.is_answering else conversation.unfinished_answer
        if answer is None and conversation.is_answered_elsewhere:
            self._screen.inform(ANSWERED_ELSEWHERE)
        elif answer is None:
            self._screen.inform("There is no unfinished answer.")
        else:
            self._view.answer(lambda chat: chat.continue_answer(answer))

    async def delete(self) -> None:
        """Delete the selected message and its descendants; undo stays possible while the chat is open."""
        if (selected := self._editable_selection()) is None:
            return
        with self._screen.inform_on_error(StorageError):
            self._view.removed.append(await self._view.chat.remove(selected.message.id))
            self._view.focus_prompt()  # Textual would select the next message
            await self._view.show_all()
            await self._view.transcript.add_deletion(len(self._view.removed[-1].messages))

    async def undo(self) -> None:
        """Restore the messages of the last deletion; without one, undo the last change of the prompt."""
        if not self._view.removed:
            self._view.prompt.action_undo()
        elif not self._view.refuses_while_answering():
            removed = self._view.removed.pop()
            with self._screen.inform_on_error(StorageError):
                await self._view.chat.restore(removed)
                await self._view.transcript.remove_last_deletion()
            await self._view.show_all(at=removed.messages[0].id)

    def applies(self, command_id: str) -> bool:
        """Whether the command does something with the selected message."""
        selected, conversation = self._view.transcript.selected, self._view.session.conversation
        if selected is None or (self._view.chat.is_answering and command_id in _NOT_WHILE_ANSWERING):
            return False
        message = selected.entry.message
        if command_id == "edit":
            return message.id in conversation.messages and conversation.editable(message.id) is not None
        if command_id == "again":
            return message.id in conversation.messages and conversation.question_of(message.id) is not None
        return command_id != "copy-code" or _has_code(message.content)

    def toggle_thoughts(self) -> None:
        if not self._view.transcript.toggle_thoughts():
            self._screen.inform("There are no thoughts here.")

    def toggle_call(self) -> None:
        """Expand or collapse the selected call of a tool, or the last one; of an answer, its reasoning."""
        if not self._view.transcript.toggle_call() and not (
            self._view.transcript.selected and self._view.transcript.toggle_thoughts()
        ):
            self._screen.inform("There is no call of a tool here.")

    def copy_message(self) -> None:
        if selected := self._view.transcript.selected:
            self.copy(selected.entry.message.content)

    def copy_answer(self) -> None:
        if text := self._view.session.conversation.last_answer:
            self.copy(text)
        else:
            self._screen.inform("There is no answer to copy yet.")

    def copy_code(self, number: str = "") -> None:
        """Copy a code block of the selected message, or of the last answer: the only one, the one with this number, or
        one chosen from a list."""
        selected = self._view.transcript.selected
        text = selected.entry.message.content if selected else self._view.session.conversation.last_answer
        blocks = {str(n): block for n, block in enumerate(code_blocks(text), start=1)}
        wanted = number or ("1" if len(blocks) == 1 else "")
        if not blocks:
            self._screen.inform("There is no code block to copy.")
        elif not wanted:
            titles = {number: block.title for number, block in blocks.items()}
            self._view.choose("Copy a code block", titles, lambda number: self.copy(blocks[number].text))
        elif block := blocks.get(wanted):
            self.copy(block.text)
        else:
            raise UsageError(f"There is no code block {wanted}.", f"There are {len(blocks)} code blocks.")

    def open_source(self, number: str = "") -> None:
        """Show a passage that the selected answer was given, or the last one that has any: the only one, the one with
        this number, or one chosen from a list."""
        selected = self._view.transcript.selected
        entries = [selected.entry] if selected else list(reversed(self._view.session.conversation.entries()))
        sources = next((entry.sources for entry in entries if entry.sources), ())
        by_number = {str(n): source for n, source in enumerate(sources, start=1)}
        wanted = number or ("1" if len(sources) == 1 else "")
        if not sources:
            self._screen.inform("No passage of your documents was given to this answer.")
        elif not wanted:
            labels = {number: printable_line(source.label) for number, source in by_number.items()}
            self._view.choose("Open a source", labels, lambda number: self.show_source(by_number[number]))
        elif source := by_number.get(wanted):
            self.show_source(source)
        else:
            raise UsageError(f"There is no source {wanted}.", f"This answer has {len(sources)}.")

    def show_source(self, source: Source) -> None:
        from tui.chat.transcript.citation import CitationScreen

        texts = searched_texts(self._view.session.conversation.messages.values())
        self._screen.app.push_screen(CitationScreen(self._screen.app_context.settings.data_dir, source, texts))

    async def go_to_start(self) -> None:
        await self._view.transcript.go_to_start()

    async def go_to_end(self) -> None:
        await self._view.transcript.go_to_end()

    def _editable_selection(self) -> TranscriptEntry | None:
        selected = self._view.transcript.selected
        if self._view.refuses_while_answering():
            return None
        if selected is None:
            self._screen.inform("Select a message first: Ctrl+Up.")
        return selected.entry if selected else None

    def _answer_again(self, message_id: int | None, chat: OpenChat) -> None:
        if not chat.answer_again(message_id):
            self._view.connection.start()

    def copy(self, text: str) -> None:
        self._screen.app.copy_to_clipboard(text)
        self._screen.inform(f"Copied {len(text)} characters.")


class SettingsActions:
    """The methods that commands call. `show_status` is called when what it shows changes."""

    def __init__(self, view: ChatView, editor: SettingsEditor, show_status: Callable[[], None]) -> None:
        self._view = view
        self._screen = view.screen
        self._editor = editor
        self._show_status = show_status

    async def set_system_prompt(self, text: str) -> None:
        await self._view.is_open.wait()
        await self._tell(self._editor.set_system_prompt(text))

    async def edit_options(self, text: str) -> None:
        """Set sampling options from text such as `temperature=0.2`; without a text, open the form."""
        from tui.chat.options_screen import OptionsScreen

        await self._view.is_open.wait()
        if not text:
            editor = self._editor
            self._screen.app.push_screen(OptionsScreen(editor.settings.options, editor.sampling, self._set_options))
            return
        await self._tell(await self._editor.change_options(text))

    async def _set_options(self, texts: Mapping[str, str], preset: str) -> None:
        await self._tell(await self._editor.set_options(texts, preset))

    async def set_thinking(self, text: str) -> None:
        await self._view.is_open.wait()
        await self._tell(self._editor.set_thinking(text))

    async def use_preset(self, name: str) -> None:
        await self._view.is_open.wait()
        await self._tell(await self._editor.use_preset(name))
        system = self._editor.settings.system
        if name and VARIABLE.search(system):
            self._view.prompt.put_template(f"/system {system}")
            self._screen.inform("Fill in the {{placeholders}} of its system prompt: Enter takes it.")

    async def use_template(self, name: str) -> None:
        """Use a prompt template, or ask which; a question that failed without one is answered."""
        from tui.widgets.dialogs import ChoiceDialog

        await self._view.is_open.wait()
        if not name:
            choices = {slash: f"{slash}: {note}" for slash, note in self._editor.templates()}
            hint = "For a base model, which has no template of its own. It is stored with the chat."
            self._screen.app.push_screen(ChoiceDialog("Prompt template", hint, choices), self._template_chosen)
            return
        await self._tell(self._editor.use_template(name))
        if self._view.chat.lacks_template and not self._view.chat.is_answering:
            await self._screen.run_command("retry")

    async def _template_chosen(self, name: str | None) -> None:
        if name is not None:
            await self._screen.run_command("template", name)

    async def _tell(self, text: str) -> None:
        """Say what was set, and show it."""
        await self._view.transcript.add_notice(text)
        self._show_status()

    async def use_prompt(self, name: str) -> None:
        if name:
            self._view.prompt.put_template(await self._editor.prompt(name))
        else:
            await self._view.transcript.add_notice(await self._editor.list_prompts())


class ToolActions:
    """The methods that commands call. `show_status` is called when the tools that are on change; /undo restores what
    `messages` deleted first."""

    def __init__(
        self, view: ChatView, messages: MessageActions, editor: ToolsEditor, show_status: Callable[[], None]
    ) -> None:
        self._view = view
        self._screen = view.screen
        self._messages = messages
        self._tools_editor = editor
        self._show_status = show_status
        self._form_dialog: FormDialog | None = None
        self._asking: tuple[OpenChat, ...] = ()  # chats that are not shown, as the person knows it
        self._updater: KnowledgeUpdater | None = None

    @property
    def updater(self) -> KnowledgeUpdater:
        """What updates the folders of knowledge; made when it is first needed, few chats have any."""
        if self._updater is None:
            from tui.knowledge.updater import KnowledgeUpdater

            self._updater = KnowledgeUpdater.of_app(self._screen.app_context.settings)
        return self._updater

    async def edit_knowledge(self, text: str) -> None:
        """Change the folders of knowledge, or whether this chat searches them, from text such as `add ~/papers`;
        without a text, open the list."""
        from tui.knowledge.actions import edit_knowledge

        await self._view.is_open.wait()
        data_dir = self._screen.app_context.settings.data_dir
        shown = await edit_knowledge(text, self.updater, self._tools_editor, data_dir)
        if isinstance(shown, str):
            await self._view.transcript.add_notice(shown)
            self._show_status()
        else:
            self._screen.app.push_screen(shown, lambda _: self._show_status())

    async def look_for_changes(self) -> None:
        """Read what changed in the folders of knowledge, once there are any, behind everything else."""
        context = self._screen.app_context
        while not await asyncio.to_thread(is_file, context.settings.data_dir / "knowledge.db"):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_FOR_FOLDERS_S)  # another program may add the first one
        await self.updater.look_for_changes(
            lambda: context.settings_controller.settings.update_knowledge, lambda: self._view.chat.is_answering
        )

    async def close(self) -> None:
        if self._updater is not None:
            await self._updater.stop()

    async def answer_approval(self) -> None:
        panel = self._screen.query_one(ApprovalPanel)
        asking = [chat for chat in self._view.session.asking if chat.stored.id is not None]
        if panel.display:
            self._screen.set_focus(panel)
        elif asking and asking[0].stored.id is not None:
            await cast("BaseApp", self._screen.app).open_chat(asking[0].stored.id)
        else:
            self._screen.inform("No tool asks for your permission.")

    def scroll_pages(self, n_pages: int) -> None:
        """Scroll the chats at the side or the question if they have the focus, else the conversation."""
        panel, sidebar = self._screen.query_one(ApprovalPanel), self._screen.query_one(ChatSidebar)
        if sidebar.has_keys:
            sidebar.scroll_pages(n_pages)
        elif panel.has_focus:
            panel.scroll_pages(n_pages)
        else:
            self._view.transcript.scroll_pages(n_pages)

    async def edit_tools(self, text: str) -> None:
        """Switch tools, name folders and more from text such as `on files`; without a text, open the list."""
        from tui.chat.tools.screen import ToolsScreen

        await self._view.is_open.wait()
        if not text:
            self._screen.app.push_screen(ToolsScreen(self._tools_editor), lambda _: self._show_status())
            return
        try:
            await self._view.transcript.add_notice(await self._tools_editor.run(text))
        finally:  # of several names those before a wrong one are switched
            self._show_status()

    async def undo_step(self) -> None:
        """Bring deleted messages back; without any, take back the last step of the chat with its files."""
        await self._view.is_open.wait()
        if self._view.removed:
            await self._messages.undo()
        elif not self._view.refuses_while_answering():
            with self._screen.warn_on_error():
                step = await self._view.chat.undo_step()
                await self._view.transcript.add_notice(undone_text(step) if step else "There is nothing to take back.")
                if step is not None and step.question is not None:
                    self._view.put_back(step.question)

    async def redo_step(self) -> None:
        await self._view.is_open.wait()
        with self._screen.inform_on_error(StorageError):
            step = await self._view.chat.redo_step()
            await self._view.transcript.add_notice("It is done again." if step else "There is nothing to do again.")

    def show_questions(self) -> None:
        for panel in self._screen.own(ApprovalPanel):  # none is left while the app closes
            had_focus = panel.has_focus
            is_other = panel.show(self._view.chat.approvals.questions)
            if is_other and had_focus:
                self._view.focus_prompt()  # at once: the next key is for no question that was not seen
            if is_other and panel.display:
                self._call_attention()
        self._show_form()
        for line in self._screen.own(OtherQuestions):
            asking = self._view.session.asking
            line.show([chat.title for chat in asking])
            if set(asking) - set(self._asking):
                self._call_attention()
            self._asking = asking

    def _show_form(self) -> None:
        """Open the form to which the person agreed, and close one that is withdrawn."""
        approvals = self._view.chat.approvals
        form, dialog = approvals.form, self._form_dialog
        if dialog is not None and dialog.form is not form:
            self._form_dialog = None
            if dialog.is_attached and dialog.is_current:
                dialog.dismiss(None)
        if form is not None and self._form_dialog is None:
            from tui.chat.tools.form import FormDialog

            opened = self._form_dialog = FormDialog(form)

            def closed(_: object) -> None:
                if self._form_dialog is opened:
                    self._form_dialog = None
                approvals.filled(form, opened.values)

            self._screen.app.push_screen(opened, closed)

    def _call_attention(self) -> None:
        """Say that a question waits, where it cannot be seen; ring if the person may be away."""
        if self._screen.app.screen is not self._screen:
            self._screen.inform("A tool asks for your permission: Esc goes back to the chat.")
        if not self._screen.app.app_focus:
            self._screen.app.bell()
