"""The texts that go with the next question, as a row of names.

Where a person writes: the prompt, what goes with it above, and what the word at the cursor may become.

Owns which part gets which key. Reads files itself, in a thread; what becomes of a question is told by a message.
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
from tui.chat.composer.attachments import files_below, finished, is_long, leads_outside, pasted, path_of, read_text_file
from tui.chat.composer.completion import (
    MAX_COMPLETIONS,
    Completion,
    PartialWord,
    command_completions,
    file_completions,
    wanted,
)
from tui.chat.composer.completion_list import CompletionList
from tui.chat.composer.prompt_input import PromptInput

__all__ = ["AttachmentBar", "Composer"]


class _Chip(Static):
    """One name, with its size; a click takes it away."""

    @dataclass
    class Removed(Message):
        """The person wants it no longer."""

        name: str

    def __init__(self, attachment: Attachment) -> None:
        super().__init__(markup=False)
        self.attachment = attachment
        self.tooltip = "Click to take it away; Backspace in an empty prompt takes away the last one"
        self.measure(None)

    def measure(self, n_tokens: int | None) -> None:
        """Say how large it is: in tokens once they are counted, in characters till then."""
        size = f"{len(self.attachment.content):,} characters" if n_tokens is None else f"{n_tokens:,} tokens"
        self.update(f"[{printable_line(self.attachment.name)} · {size} ×]")

    def on_click(self, _: Click) -> None:
        self.post_message(self.Removed(self.attachment.name))


class AttachmentBar(HorizontalScroll):
    """Holds them in order, each under a name of its own; hides when there are none."""

    can_focus = False

    @dataclass
    class Changed(Message):
        """One has come or gone."""

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self.attachments: tuple[Attachment, ...] = ()

    def add(self, attachment: Attachment) -> None:
        """Add one, in place of one with the same name."""
        self.take_away(attachment.name)
        self._become((*self.attachments, attachment))
        self.mount(_Chip(attachment))

    def take_away(self, name: str) -> None:
        """Take one away."""
        self._become(tuple(other for other in self.attachments if other.name != name))
        for chip in self.query(_Chip):
            if chip.attachment.name == name:
                chip.remove()

    def clear(self) -> None:
        """Take all away."""
        self._become(())
        self.remove_children(_Chip)

    def measure(self, name: str, n_tokens: int) -> None:
        """Say how many tokens one has."""
        for chip in self.query(_Chip):
            if chip.attachment.name == name:
                chip.measure(n_tokens)

    def on__chip_removed(self, event: _Chip.Removed) -> None:
        event.stop()
        self.take_away(event.name)

    def _become(self, attachments: tuple[Attachment, ...]) -> None:
        self.attachments = attachments
        self.display = bool(attachments)
        self.post_message(self.Changed())


Words = Callable[[], Iterable[tuple[str, str]]]


class Composer(Vertical):
    """`words` gives the slash words there are, each with what it does; files are offered from below `folder`."""

    @dataclass
    class Submitted(Message):
        """The person sent `text` with `attachments`."""

        text: str
        attachments: tuple[Attachment, ...]

    @dataclass
    class Attached(Message):
        """A text was added whose tokens nobody has counted yet; see `measure`."""

        attachment: Attachment

    @dataclass
    class Refused(Message):
        """A file cannot be attached."""

        error: UserError

    def __init__(self, words: Words, folder: Path | None = None) -> None:
        super().__init__()
        self._words = words
        self._folder = folder or Path.cwd()
        self._files: Sequence[str] = ()
        self._is_naming_file = False
        self._elsewhere: tuple[str, Sequence[str]] = ("", ())  # what was typed, and what it may become

    def compose(self) -> ComposeResult:
        yield AttachmentBar()
        yield CompletionList()
        yield PromptInput(self)

    @property
    def prompt(self) -> PromptInput:
        return self.query_one(PromptInput)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """What goes with the next question."""
        return self.query_one(AttachmentBar).attachments

    @property
    def draft(self) -> Draft:
        """What would be sent now."""
        return Draft(self.prompt.text, self.attachments)

    def put(self, text: str, attachments: Sequence[Attachment] = ()) -> None:
        """Replace what is typed and what goes with it."""
        self.prompt.put(text)
        self.query_one(AttachmentBar).clear()
        self.add(attachments)

    def add(self, attachments: Sequence[Attachment]) -> None:
        """Let these go with the next question too."""
        for attachment in attachments:
            self._add_attachment(attachment)

    def measure(self, name: str, n_tokens: int) -> None:
        """Show how many tokens an attachment has."""
        self.query_one(AttachmentBar).measure(name, n_tokens)

    def dismiss(self) -> bool:
        """Hide what is offered; False where nothing was."""
        offers = self.query_one(CompletionList)
        was_shown, offers.display = offers.display, False
        return was_shown

    # What the prompt asks before it handles a key itself, see `tui.chat.composer.prompt_input.PromptDelegate`

    def accept(self) -> bool:
        """Let the word become what is chosen; False where nothing is offered, or for what was typed by now."""
        offer, word = self.query_one(CompletionList).chosen, self._wanted()
        if offer is None or word is None or offer not in self._offers(word):
            self.dismiss()
            return False
        self._take(offer, word)
        return True

    def move(self, n_rows: int) -> bool:
        """Choose another offer; False where there is none."""
        offers = self.query_one(CompletionList)
        if offers.chosen is None:
            return False
        offers.move(n_rows)
        return True

    def paste(self, text: str) -> bool:
        """Attach a pasted text that is long; False for one that is to be typed."""
        if not is_long(text):
            return False
        self._add_attachment(pasted(text, self.attachments))
        return True

    def drop_last(self) -> bool:
        """Take the last attachment away; False where there is none."""
        if not self.attachments:
            return False
        self.query_one(AttachmentBar).take_away(self.attachments[-1].name)
        return True

    @on(PromptInput.Submitted)
    def _submitted(self, event: PromptInput.Submitted) -> None:
        event.stop()
        bar = self.query_one(AttachmentBar)
        self.post_message(self.Submitted(event.text, bar.attachments))
        bar.clear()

    @on(TextArea.Changed)
    async def _changed(self) -> None:
        word = self._wanted()
        if word is not None and word.kind == "file":
            await self._look_for_files(word.typed)
            word = self._wanted()
        self._is_naming_file = word is not None and word.kind == "file"
        self.query_one(CompletionList).show(self._offers(word) if word else ())

    async def _look_for_files(self, typed: str) -> None:
        """Find out which files there are, below the folder once for each word: others may come at any time."""
        if leads_outside(typed):
            self._elsewhere = (typed, await asyncio.to_thread(finished, typed, self._folder))
        elif not self._is_naming_file:
            self._files = await asyncio.to_thread(files_below, self._folder)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.accept()
        self.prompt.focus()

    def _wanted(self) -> PartialWord | None:
        return wanted(self.prompt.before_cursor)

    def _offers(self, word: PartialWord) -> list[Completion]:
        if word.kind == "command":
            offers = command_completions(word.typed, self._words())
            return [] if [offer.text for offer in offers] == [f"/{word.typed}"] else offers
        if leads_outside(word.typed):
            typed, names = self._elsewhere
            return [Completion(f"@{name}") for name in names[:MAX_COMPLETIONS]] if typed == word.typed else []
        return file_completions(word.typed, self._files)

    def _take(self, offer: Completion, word: PartialWord) -> None:
        self.dismiss()
        if word.kind == "command":
            self.prompt.replace_before_cursor(len(word.typed) + 1, f"{offer.text} ")
        elif offer.text.endswith("/"):  # a folder, to be gone on from
            self.prompt.replace_before_cursor(len(word.typed) + 1, offer.text)
        else:
            self.prompt.replace_before_cursor(len(word.typed) + 1, "")
            self.run_worker(self._attach_file(offer.text[1:]), group="attach")

    async def _attach_file(self, name: str) -> None:
        try:
            self._add_attachment(await asyncio.to_thread(read_text_file, path_of(name, self._folder), name))
        except UserError as error:
            self.post_message(self.Refused(error))

    def _add_attachment(self, attachment: Attachment) -> None:
        self.query_one(AttachmentBar).add(attachment)
        self.post_message(self.Attached(attachment))
