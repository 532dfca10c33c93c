"""The composer: the prompt, the attachments above it, and the completions of the word at the cursor.

Owns which part handles which key. Reads files itself, in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import HorizontalScroll, Vertical
from textual.events import Click
from textual.message import Message
from textual.widgets import OptionList, Static, TextArea

from app.chat.conversation import Attachment, Draft
from app.terminal import printable_line
from quantizer.errors import UserError
from tui.chat.composer.attachments import (
    complete_path,
    files_below,
    is_long,
    leads_outside,
    pasted,
    path_of,
    read_text_file,
)
from tui.chat.composer.completion import (
    MAX_COMPLETIONS,
    Completion,
    CompletionList,
    PartialWord,
    command_completions,
    file_completions,
    partial_word,
)
from tui.chat.composer.mentions import MentionReader, has_mention, mention_of, without_mention
from tui.chat.composer.prompt_input import PromptInput
from tui.commands import slash_line

__all__ = ["AttachmentBar", "Composer"]

SlashWords = Callable[[], Iterable[tuple[str, str]]]


class _Chip(Static):
    """One attachment's name and size; a click removes it."""

    @dataclass
    class Removed(Message):
        """The user removed the attachment."""

        name: str

    def __init__(self, attachment: Attachment) -> None:
        super().__init__(markup=False)
        self.attachment = attachment
        self.tooltip = "Click to remove it; Backspace in an empty prompt removes the last one"
        self.measure(None)

    def measure(self, n_tokens: int | None) -> None:
        """Show the size: in tokens once counted, until then in characters."""
        size = f"{len(self.attachment.content):,} characters" if n_tokens is None else f"{n_tokens:,} tokens"
        self.update(f"[{printable_line(self.attachment.name)} · {size} ×]")

    def on_click(self, _: Click) -> None:
        self.post_message(self.Removed(self.attachment.name))


class AttachmentBar(HorizontalScroll):
    """The attachments of the next question, by unique name; hidden if there are none."""

    can_focus = False

    @dataclass
    class Changed(Message):
        """An attachment was added or removed."""

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self.attachments: tuple[Attachment, ...] = ()

    def add(self, attachment: Attachment) -> None:
        """Add an attachment, replacing one with the same name."""
        self.remove_attachment(attachment.name)
        self._set_attachments((*self.attachments, attachment))
        self.mount(_Chip(attachment))

    def remove_attachment(self, name: str) -> None:
        """Remove an attachment."""
        self._set_attachments(tuple(other for other in self.attachments if other.name != name))
        for chip in self.query(_Chip):
            if chip.attachment.name == name:
                chip.remove()

    def clear(self) -> None:
        """Remove all attachments."""
        self._set_attachments(())
        self.remove_children(_Chip)

    def measure(self, name: str, n_tokens: int) -> None:
        """Show the token count of an attachment."""
        for chip in self.query(_Chip):
            if chip.attachment.name == name:
                chip.measure(n_tokens)

    def _set_attachments(self, attachments: tuple[Attachment, ...]) -> None:
        self.attachments = attachments
        self.display = bool(attachments)
        self.post_message(self.Changed())


class Composer(Vertical):
    """`words` returns the slash words with their descriptions; files are completed below `folder`."""

    @dataclass
    class Submitted(Message):
        """The user sent `text` with `attachments`."""

        text: str
        attachments: tuple[Attachment, ...]

    @dataclass
    class Attached(Message):
        """An attachment without a token count was added; see `measure`."""

        attachment: Attachment

    @dataclass
    class Refused(Message):
        """A file cannot be attached."""

        error: UserError

    def __init__(self, words: SlashWords, folder: Path | None = None) -> None:
        super().__init__()
        self._slash_words = words
        self._folder = folder or Path.cwd()
        self._mention_reader = MentionReader(self._folder)
        self._files: Sequence[str] = ()
        self._is_naming_file = False
        self._outside_paths: tuple[str, Sequence[str]] = ("", ())  # typed text, and its completions

    def compose(self) -> ComposeResult:
        yield AttachmentBar()
        yield CompletionList()
        yield PromptInput(self)

    @property
    def prompt(self) -> PromptInput:
        return self.query_one(PromptInput)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The attachments of the next question."""
        return self.query_one(AttachmentBar).attachments

    @property
    def draft(self) -> Draft:
        """The unsent text and attachments."""
        return Draft(self.prompt.text, self.attachments)

    def put(self, text: str, attachments: Sequence[Attachment] = ()) -> None:
        """Replace text and attachments."""
        self.prompt.put(text)
        self.query_one(AttachmentBar).clear()
        self.add(attachments)

    def add(self, attachments: Sequence[Attachment]) -> None:
        """Add attachments."""
        for attachment in attachments:
            self._add_attachment(attachment)

    def measure(self, name: str, n_tokens: int) -> None:
        """Show the token count of an attachment."""
        self.query_one(AttachmentBar).measure(name, n_tokens)

    def dismiss(self) -> bool:
        """Hide the completions; return False if there were none."""
        completions = self.query_one(CompletionList)
        was_shown, completions.display = completions.display, False
        return was_shown

    # What the prompt asks before it handles a key itself, see `tui.chat.composer.prompt_input.PromptDelegate`

    def accept(self, *, is_sending: bool = False) -> bool:
        """Apply the selected completion; return False if there is none, if it no longer matches the text, or if
        `is_sending` a text whose last word it already is."""
        completion, word = self.query_one(CompletionList).chosen, self._partial_word()
        is_done = is_sending and completion is not None and word is not None and word.equals(completion)
        if completion is None or word is None or is_done or completion not in self._completions(word):
            self.dismiss()
            return False
        self._apply(completion, word)
        return True

    def move(self, n_rows: int) -> bool:
        """Select another completion; return False if there is none."""
        completions = self.query_one(CompletionList)
        if completions.chosen is None:
            return False
        completions.move(n_rows)
        return True

    def paste(self, text: str) -> bool:
        """Attach a long pasted text; return False for a short one."""
        if not is_long(text):
            return False
        self._add_attachment(pasted(text, self.attachments))
        return True

    def drop_last(self) -> bool:
        """Remove the last attachment; return False if there is none."""
        if not self.attachments:
            return False
        self.query_one(AttachmentBar).remove_attachment(self.attachments[-1].name)
        return True

    @on(PromptInput.Submitted)
    def _submitted(self, event: PromptInput.Submitted) -> None:
        event.stop()
        self.workers.cancel_group(self, "attach")  # a file still being read is read again with its mention
        bar = self.query_one(AttachmentBar)
        attachments = bar.attachments
        bar.clear()
        if has_mention(event.text) and (attachments or slash_line(event.text) is None):
            self.run_worker(self._send_with_mentions(event, attachments), group="send")
        else:
            self.post_message(self.Submitted(event.text, attachments))

    async def _send_with_mentions(self, event: PromptInput.Submitted, attachments: tuple[Attachment, ...]) -> None:
        """Send a question with the files that it mentions, or put it back if there is a fault in one."""
        names = {attachment.name for attachment in attachments}
        try:
            mentioned = await self._mention_reader.read(event.text, names, is_typed=event.is_typed)
        except UserError as error:
            self.put("\n".join(filter(None, (event.text, self.prompt.text))), (*attachments, *self.attachments))
            self.post_message(self.Refused(error))
        else:
            self.post_message(self.Submitted(event.text, (*attachments, *mentioned)))

    @on(TextArea.Changed)
    async def _changed(self) -> None:
        word = self._partial_word()
        if word is not None and word.kind == "file":
            await self._list_files(word.typed)
            word = self._partial_word()
        self._is_naming_file = word is not None and word.kind == "file"
        self.query_one(CompletionList).show(self._completions(word) if word else ())

    async def _list_files(self, typed: str) -> None:
        """List the files for completion, once per word: files may change at any time."""
        if leads_outside(typed):
            self._outside_paths = (typed, await asyncio.to_thread(complete_path, typed, self._folder))
        elif not self._is_naming_file:
            self._files = await asyncio.to_thread(files_below, self._folder)

    @on(_Chip.Removed)
    def _removed(self, event: _Chip.Removed) -> None:
        """Remove the mention with the attachment: it would attach the file again."""
        event.stop()
        self.query_one(AttachmentBar).remove_attachment(event.name)
        text = without_mention(self.prompt.text, event.name)
        if text != self.prompt.text:
            self.prompt.put(text)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.accept()
        self.prompt.focus()

    def _partial_word(self) -> PartialWord | None:
        return partial_word(self.prompt.before_cursor)

    def _completions(self, word: PartialWord) -> list[Completion]:
        if word.kind == "command":
            completions = command_completions(word.typed, self._slash_words())
            is_whole = f"/{word.typed}" in (completion.text for completion in completions)
            return [] if is_whole else completions  # Enter runs /model and does not complete it to /models
        if leads_outside(word.typed):
            typed, names = self._outside_paths
            return [Completion(f"@{name}") for name in names[:MAX_COMPLETIONS]] if typed == word.typed else []
        return file_completions(word.typed, self._files)

    def _apply(self, completion: Completion, word: PartialWord) -> None:
        self.dismiss()
        if word.kind == "command":
            self.prompt.replace_before_cursor(word.n_characters, f"{completion.text} ")
            return
        name = completion.text[1:]
        is_folder = name.endswith("/")  # continue inside it
        self.prompt.replace_before_cursor(word.n_characters, mention_of(name, is_finished=not is_folder))
        if not is_folder:
            self.run_worker(self._attach_file(name), group="attach")

    async def _attach_file(self, name: str) -> None:
        try:
            self._add_attachment(await asyncio.to_thread(read_text_file, path_of(name, self._folder), name))
        except UserError as error:
            self.post_message(self.Refused(error))

    def _add_attachment(self, attachment: Attachment) -> None:
        self.query_one(AttachmentBar).add(attachment)
        self.post_message(self.Attached(attachment))
