"""Pictures, sounds and files in a conversation, which no model here reads: the notes in their place.

Owns the text of a note, and what the client is told of them. Independent of dialects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["note_of_unreadable", "notice_of_notes"]

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
_MOST_SHOWN = 100
_END = ": not readable for this model, which reads only text]"


def note_of_unreadable(content_type: str, name: str = "") -> str:
    """Return the text that stands in a conversation for content that no model here can read."""
    kind = _KINDS.get(content_type, content_type[:_MOST_SHOWN])
    return f"[{kind}{f' {name[:_MOST_SHOWN]}' if name else ''}{_END}"


def notice_of_notes(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return what the client is told of the notes in `messages`, "" where there are none."""
    texts = (message.get("content") for message in messages)
    n_notes = sum(text.count(_END) for text in texts if isinstance(text, str))
    if not n_notes:
        return ""
    what = "A picture or file of the conversation is" if n_notes == 1 else f"{n_notes} pictures or files are"
    return f"{what} only named to the model, which reads text."
