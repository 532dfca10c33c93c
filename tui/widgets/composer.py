"""Where a person writes: the prompt, what goes with it above, and what the word at the cursor may become.

Owns which part gets which key. Reads files itself, in a thread; what becomes of a question is told by a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import OptionList, TextArea

from app.chat.message import Attachment, Draft
from quantizer.errors import UserError
from tui.composing.attaching import is_long, pasted
from tui.composing.completion import MOST_OFFERS, Offer, Wanted, file_offers, wanted, word_offers
from tui.composing.files import files_below, read_text_file
from tui.composing.mentioning import finished, path_of, reaches_out
from tui.widgets.attachment_bar import AttachmentBar
from tui.widgets.offers import Offers
from tui.widgets.prompt_input import PromptInput

__all__ = ["Composer"]

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
        yield Offers()
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
        offers = self.query_one(Offers)
        was_shown, offers.display = offers.display, False
        return was_shown

    # What the prompt asks before it handles a key itself, see `tui.widgets.prompt_input.Neighbours`

    def accept(self) -> bool:
        """Let the word become what is chosen; False where nothing is offered, or for what was typed by now."""
        offer, word = self.query_one(Offers).chosen, self._wanted()
        if offer is None or word is None or offer not in self._offers(word):
            self.dismiss()
            return False
        self._take(offer, word)
        return True

    def move(self, n_rows: int) -> bool:
        """Choose another offer; False where there is none."""
        offers = self.query_one(Offers)
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
        self.query_one(Offers).show(self._offers(word) if word else ())

    async def _look_for_files(self, typed: str) -> None:
        """Find out which files there are, below the folder once for each word: others may come at any time."""
        if reaches_out(typed):
            self._elsewhere = (typed, await asyncio.to_thread(finished, typed, self._folder))
        elif not self._is_naming_file:
            self._files = await asyncio.to_thread(files_below, self._folder)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.accept()
        self.prompt.focus()

    def _wanted(self) -> Wanted | None:
        return wanted(self.prompt.before_cursor)

    def _offers(self, word: Wanted) -> list[Offer]:
        if word.kind == "command":
            offers = word_offers(word.typed, self._words())
            return [] if [offer.text for offer in offers] == [f"/{word.typed}"] else offers
        if reaches_out(word.typed):
            typed, names = self._elsewhere
            return [Offer(f"@{name}") for name in names[:MOST_OFFERS]] if typed == word.typed else []
        return file_offers(word.typed, self._files)

    def _take(self, offer: Offer, word: Wanted) -> None:
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
