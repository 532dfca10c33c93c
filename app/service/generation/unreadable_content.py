"""Pictures, sounds and files in a conversation that its model does not read: the notes in their place, and the error.

Owns the text of a note, and what the client is told of them. Independent of dialects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.protocol.chat import Message
from app.protocol.errors import RequestError
from app.service.models.model_file import TEXT_ONLY, Senses

# What a type of content is called in the note that replaces it; others by their type.
_KINDS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "document": "document",
    "file": "file",
    "input_file": "file",
}
_ASKED = {"image": "a picture", "audio": "a sound", "video": "a video", "document": "a document", "file": "a file"}
_MOST_SHOWN = 100
_UNREAD, _REFUSED = ": not readable for this model, which reads ", ": left out, it could not be read]"
_NOTE = re.compile(f"{re.escape(_UNREAD)}|{re.escape(_REFUSED)}")


class UnreadableError(RequestError):
    """The user has just sent content of a type that the model, which has `senses`, does not read."""

    def __init__(self, content_type: str, senses: Senses = TEXT_ONLY, remedy: str = "Ask again in words.") -> None:
        kind = _KINDS.get(content_type, content_type)
        what = _ASKED.get(kind, f"content of type {content_type[:40]!r}")
        super().__init__(f"The question has {what}, but this model reads {senses.described}.", remedy)
        self.content_type = content_type
        self.senses = senses

    @property
    def kind(self) -> str:
        """What the content is: image, audio, or another type."""
        return _KINDS.get(self.content_type, self.content_type)


def note_of_unreadable(content_type: str, name: str = "", senses: Senses = TEXT_ONLY) -> str:
    """Return the text that stands in a conversation for content that its model, which has `senses`, does not read."""
    return f"[{_called(content_type, name)}{_UNREAD}{senses.described}]"


def note_of_refused(content_type: str, name: str = "") -> str:
    """Return the text that stands in a conversation for content that is damaged, or that may not be fetched."""
    return f"[{_called(content_type, name)}{_REFUSED}"


def _called(content_type: str, name: str) -> str:
    kind = _KINDS.get(content_type, content_type[:_MOST_SHOWN])
    return f"{kind} {name[:_MOST_SHOWN]}" if name else kind


def notice_of_notes(messages: Sequence[Message], senses: Senses = TEXT_ONLY) -> str:
    """Return what the client is told of the notes in `messages`, "" where there are none."""
    n_notes = sum(len(_NOTE.findall(message.content)) for message in messages)
    if not n_notes:
        return ""
    what = "A picture or file of the conversation is" if n_notes == 1 else f"{n_notes} pictures or files are"
    reads = "text" if senses == TEXT_ONLY else senses.described
    return f"{what} only named to the model, which reads {reads}."
