"""A question in the transcript: its pictures, the names of all attachments, and its text."""

from __future__ import annotations

from functools import partial

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from app.chat.conversation import Attachment, MediaFile
from app.common.terminal import printable, printable_line
from tui.pictures.picture_view import PictureView, media_content, picture_bounds

_MAX_PICTURES = 4  # of a question; the names say how many it has


class QuestionView(Static):
    """The text of a question as typed, below the names of its attachments and how much each one is."""

    def __init__(self, text: str, attachments: tuple[Attachment, ...] = ()) -> None:
        labels = "  ".join(f"[{printable_line(attachment.label)}]" for attachment in attachments)
        super().__init__("\n".join(filter(None, (labels, printable(text)))), markup=False)


class PictureRow(Horizontal):
    """The first pictures of a question, side by side."""

    def __init__(self, pictures: tuple[MediaFile, ...]) -> None:
        super().__init__()
        self._pictures = pictures[:_MAX_PICTURES]

    def compose(self) -> ComposeResult:
        bounds = partial(picture_bounds, n_beside=len(self._pictures))
        for file in self._pictures:
            yield PictureView(file.sha256, partial(media_content, self.app, file), bounds)


def pictures_of(attachments: tuple[Attachment, ...]) -> tuple[MediaFile, ...]:
    """Return the pictures among attachments, the pages of documents too."""
    return tuple(file for attachment in attachments for file in attachment.media if not file.is_sound)
