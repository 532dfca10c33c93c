"""The composer: the prompt, the attachments above it, and the completions of the word at the cursor. Owns which part
handles which key. Reads files itself, in a thread."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import OptionList, Static, TextArea
from textual.worker import Worker

from app.chat.conversation import Attachment, MessageContent
from app.common.terminal import printable, printable_line
from quantizer.system.errors import UsageError, UserError
from tui.chat.composer.attachment_bar import (
    MAX_EDITED_CHARACTERS,
    AttachmentBar,
    AttachmentChip,
    AttachmentOutcome,
    AttachmentScreen,
    MediaScreen,
)
from tui.chat.composer.attachments import (
    AttachmentReader,
    MentionReader,
    ServerResources,
    has_mention,
    is_long,
    is_resource,
    mention_of,
    pasted_paths,
    path_of,
    unused_name,
    without_mention,
)
from tui.chat.composer.completion import (
    Arguments,
    Completion,
    CompletionList,
    CompletionSource,
    Offer,
    PartialWord,
    SlashWords,
    partial_word,
)
from tui.chat.composer.context_forecast import TokenCount
from tui.chat.composer.external_programs import ClipboardTool, clipboard_tool, read_picture
from tui.chat.composer.prompt_input import PromptInput
from tui.chat.composer.shell_command import shell_command
from tui.commands import slash_line

_PASTED = "attach-pasted"  # the group of workers that read pasted files


class Composer(Vertical):
    """`words` returns the slash words with their descriptions, `arguments` what may follow one; files are completed
    below the current folder and read by `reader`."""

    @dataclass
    class Submitted(Message):
        """The user sent a question with its attachments, or a command."""

        question: MessageContent

    @dataclass
    class Attached(Message):
        """An attachment without a token count was added; see `measure`."""

        attachment: Attachment

    @dataclass
    class Commanded(Message):
        """The user typed a command for the shell."""

        command: str

    @dataclass
    class RecordingEnded(Message):
        """The user has said what is to be written into the prompt."""

    @dataclass
    class TakenBack(Message):
        """The user wants the last waiting question back."""

    @dataclass
    class Refused(Message):
        """A file cannot be attached; `command` is the line that asked for it, if one did."""

        error: UserError
        command: str = ""

    def __init__(
        self,
        reader: AttachmentReader,
        words: SlashWords,
        arguments: Arguments,
        resources: ServerResources | None = None,
    ) -> None:
        super().__init__()
        self._reader = reader
        self._resources = resources
        self._folder = Path.cwd()
        self._source = CompletionSource(words, arguments, self._folder, resources)
        self._warning = Static(markup=False, id="attachment-warning")
        self._warning.display = False
        self._mention_reader = MentionReader(self._folder, reader, resources)
        self.has_waiting = False  # whether a question waits for the running answer
        self.is_recording = False  # whether what the user says is being recorded

    def compose(self) -> ComposeResult:
        yield self._warning
        yield AttachmentBar()
        yield CompletionList()
        yield PromptInput(self)

    @property
    def prompt(self) -> PromptInput:
        return self.query_one(PromptInput)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        return self.query_one(AttachmentBar).attachments

    @property
    def draft(self) -> MessageContent:
        return MessageContent(content=self.prompt.text, attachments=self.attachments)

    async def expected_draft(self) -> MessageContent:
        """Return the draft as it would be sent: with the files that it mentions."""
        text, attachments = self.prompt.text, self.attachments
        names = {attachment.name for attachment in attachments}
        mentioned = await self._mention_reader.find(text, names, is_typed=self.prompt.is_typed)
        return MessageContent(content=text, attachments=(*attachments, *mentioned.attachments))

    def put(self, text: str, attachments: Sequence[Attachment] = ()) -> None:
        self.prompt.put(text)
        self.query_one(AttachmentBar).clear()
        self.add(attachments)

    def add(self, attachments: Sequence[Attachment]) -> None:
        for attachment in attachments:
            self.query_one(AttachmentBar).add(attachment)
            self.post_message(self.Attached(attachment))

    def attach(self, name: str, command: str) -> None:
        """Attach a file that a `command` names."""
        self.run_worker(self._attach_file(name, command=command), group=_PASTED)

    def open_attachment(self, name: str) -> None:
        attachment = next(each for each in self.attachments if each.name == name)
        if attachment.media:
            self.app.push_screen(MediaScreen(attachment), partial(self._edited, attachment))
        elif len(attachment.content) > MAX_EDITED_CHARACTERS:
            size = f"{len(attachment.content):,} characters, more than the {MAX_EDITED_CHARACTERS:,} that can be shown"
            self.post_message(self.Refused(UsageError(f"{name} has {size}.", "It is attached as it is.")))
        else:
            self.app.push_screen(AttachmentScreen(attachment), partial(self._edited, attachment))

    def warn(self, text: str) -> None:
        """Show a line about the attachments above them; an empty text hides it."""
        if printable_line(text) != self._warning.content:  # each update lays the screen out
            self._warning.update(printable_line(text))
            self._warning.display = bool(text)

    def replace(self, attachment: Attachment) -> None:
        self.query_one(AttachmentBar).replace(attachment)
        self.post_message(self.Attached(attachment))

    def measure(self, name: str, count: TokenCount) -> None:
        self.query_one(AttachmentBar).measure(name, count)

    def dismiss(self) -> bool:
        """Hide the completions; return False if there were none."""
        completions = self.query_one(CompletionList)
        was_shown, completions.display = completions.display, False
        return was_shown

    # What the prompt asks before it handles a key itself: each method returns whether it did so here

    def accept(self, *, is_sending: bool = False) -> bool:
        """Apply the selected completion; return False if there is none, if it no longer matches the text, or if
        `is_sending` a text whose last word it already is."""
        completions = self.query_one(CompletionList)
        completion, word = completions.chosen, self._partial_word()
        if completion is None or word is None or completion not in self._source.completions(word).best:
            self.dismiss()
            return False
        # Enter sends a word as it is that is typed in full, or an argument of which nothing was chosen. One that was
        # begun it completes and sends: nothing follows it. What tools may do is not sent before it was seen in full.
        is_argument = word.kind == "argument"
        has_chosen = bool(not is_argument or word.typed or completions.highlighted)
        self.dismiss()
        if is_sending and (word.equals(completion) or not has_chosen):
            return False
        self._apply(completion, word)
        return not (is_sending and is_argument and word.command.lower() != "tools")

    def move(self, n_rows: int) -> bool:
        completions = self.query_one(CompletionList)
        if completions.chosen is None:
            return False
        completions.move(n_rows)
        return True

    def paste(self, text: str) -> bool:
        """Attach the files that a pasted text names, or a long text itself; return False for any other."""
        typed, before = self.prompt.text, self.prompt.before_cursor
        # A path that is pasted behind a command or the sign of a mention belongs to it.
        is_part = slash_line(typed) is not None or typed.startswith("/") or before.endswith(("@", '@"'))
        if paths := () if is_part else pasted_paths(text):
            self.run_worker(self._attach_pasted(paths), group=_PASTED)
            return True
        if not is_long(text):
            return False
        self.add([Attachment(unused_name("pasted", self.attachments), text)])
        return True

    def paste_clipboard(self) -> bool:
        """Attach the picture in the clipboard of the desktop, if it has one; return False where nothing can tell."""
        tool = clipboard_tool()
        if tool is not None:
            self.run_worker(self._attach_clipboard(tool), group=_PASTED)
        return tool is not None

    def drop_last(self) -> bool:
        if not self.attachments:
            return False
        self.query_one(AttachmentBar).remove_attachment(self.attachments[-1].name)
        return True

    def take_back(self) -> bool:
        if self.has_waiting:
            self.post_message(self.TakenBack())
        return self.has_waiting

    def end_recording(self) -> bool:
        if self.is_recording:
            self.post_message(self.RecordingEnded())
        return self.is_recording

    @on(PromptInput.Submitted)
    def _submitted(self, event: PromptInput.Submitted) -> None:
        event.stop()
        if slash_line(event.text) is not None:  # attachments wait for the question
            self.post_message(self.Submitted(MessageContent(content=event.text)))
            return
        self.workers.cancel_group(self, "attach")  # a file still being read is read again with its mention
        attachments = self._taken_attachments()
        pasted_files = [work for work in self.workers if work.node is self and work.group == _PASTED]
        if pasted_files or has_mention(event.text):
            self.run_worker(self._send_when_read(event, attachments, pasted_files), group="send")
        else:
            self.post_message(self.Submitted(MessageContent(content=event.text, attachments=attachments)))

    @on(PromptInput.Commanded)
    def _commanded(self, event: PromptInput.Commanded) -> None:
        event.stop()
        self.post_message(self.Commanded(event.command))

    @on(PromptInput.Unfilled)
    def _unfilled(self, event: PromptInput.Unfilled) -> None:
        event.stop()
        self.post_message(self.Refused(event.error))

    @on(PromptInput.Withheld)
    def _withheld(self, event: PromptInput.Withheld) -> None:
        event.stop()
        error = UsageError("What was pasted is not run.", "Type it, or put a space before the ! to ask it.")
        burst = UsageError("The line came all at once.", "Enter again runs it.")
        self.post_message(self.Refused(error if event.is_pasted else burst))

    async def _send_when_read(
        self, event: PromptInput.Submitted, attachments: tuple[Attachment, ...], pasted_files: Sequence[Worker[bool]]
    ) -> None:
        try:
            are_read = [await work.wait() for work in pasted_files]
            attachments = (*attachments, *self._taken_attachments())
            names = {attachment.name for attachment in attachments}
            mentioned = await self._mention_reader.read(event.text, names, is_typed=event.is_typed)
        except UserError as error:
            self._put_back(event.text, attachments)
            self.post_message(self.Refused(error))
            return
        if all(are_read):
            whole = MessageContent(content=event.text, attachments=(*attachments, *mentioned))
            self.post_message(self.Submitted(whole))
        else:
            self._put_back(event.text, attachments)

    def _put_back(self, text: str, attachments: tuple[Attachment, ...]) -> None:
        self.put("\n".join(filter(None, (text, self.prompt.text))), (*attachments, *self.attachments))

    def _taken_attachments(self) -> tuple[Attachment, ...]:
        bar = self.query_one(AttachmentBar)
        attachments = bar.attachments
        bar.clear()
        return attachments

    @on(TextArea.Changed)
    async def _changed(self) -> None:
        await self._source.prepare(self._partial_word())
        word = self._partial_word()  # it may have grown meanwhile
        self.query_one(CompletionList).show(self._source.completions(word) if word else Offer())

    @on(AttachmentChip.Opened)
    def _opened(self, event: AttachmentChip.Opened) -> None:
        event.stop()
        self.open_attachment(event.name)

    @on(AttachmentChip.Removed)
    def _removed(self, event: AttachmentChip.Removed) -> None:
        event.stop()
        self._remove(event.name)

    def _remove(self, name: str) -> None:
        """Remove an attachment with its mention, which would attach the file again."""
        self.query_one(AttachmentBar).remove_attachment(name)
        text = without_mention(self.prompt.text, name)
        if text != self.prompt.text:
            self.prompt.put(text)

    def _edited(self, attachment: Attachment, outcome: AttachmentOutcome | None) -> None:
        if outcome is not None and outcome.action == "save":
            self.replace(replace(attachment, content=outcome.text))
        elif outcome is not None:
            self._remove(attachment.name)
            if outcome.action == "insert":
                self.prompt.insert_pasted(outcome.text)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.accept()
        self.prompt.focus()

    def _partial_word(self) -> PartialWord | None:
        return None if shell_command(self.prompt.text) else partial_word(self.prompt.before_cursor)

    def _apply(self, completion: Completion, word: PartialWord) -> None:
        if word.kind != "file":
            behind = " " if word.kind == "command" else ""
            self.prompt.replace_before_cursor(word.n_characters, f"{completion.text}{behind}")
            return
        name = completion.text[1:]
        is_folder = name.endswith("/")  # continue inside it
        mention = mention_of(name, is_finished=not is_folder)
        if printable(mention) == mention:
            self.prompt.replace_before_cursor(word.n_characters, mention)
        elif not is_folder:  # a name that cannot be shown is attached without a mention
            self.prompt.replace_before_cursor(word.n_characters, "")
        if not is_folder:
            self._source.note_attached(name)
            self.run_worker(self._attach_file(name), group="attach")

    async def _attach_pasted(self, paths: Sequence[Path]) -> bool:
        """Attach files by their names, or by their paths where a name is taken; return whether all could be read."""
        are_read = []
        for path in paths:
            taken = {attachment.name for attachment in self.attachments}
            names = (path.name, f"{path.parent.name}/{path.name}", str(path))
            are_read.append(await self._attach_file(next(n for n in names if n not in taken or n == str(path)), path))
        return all(are_read)

    async def _attach_file(self, name: str, path: Path | None = None, command: str = "") -> bool:
        if path is None and self._resources is not None and is_resource(name):
            return await self._attach_read(name, self._resources.attachment(name), command)
        reading = self._reader.read_file(path or path_of(name, self._folder), name)
        return await self._attach_read(name, reading, command)

    async def _attach_clipboard(self, tool: ClipboardTool) -> bool:
        """Attach the picture in the clipboard; without one, paste what the app has copied."""
        try:
            data = await read_picture(tool)
        except UserError as error:
            self.post_message(self.Refused(error))
            return False
        if data is None:
            self.prompt.paste_copied()
            return True
        name = unused_name("picture", self.attachments)
        return await self._attach_read(name, self._reader.read_data(data, name))

    async def _attach_read(self, name: str, reading: Coroutine[Any, Any, Attachment], command: str = "") -> bool:
        """Attach what is being read, and show that until then; return whether it could be read."""
        bar = self.query_one(AttachmentBar)
        bar.begin(name)
        try:
            attachment = await reading
        except UserError as error:
            self.post_message(self.Refused(error, command))
            return False
        finally:
            bar.end(name)
        self.add([attachment])
        return True
