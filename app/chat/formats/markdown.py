"""Chats as Markdown: the shown branch, to read and paste.

Owns the headings. Messages are Markdown already; only an open code block is closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from app.chat.conversation import Message, MessageState, Transcript

__all__ = ["markdown", "speaker"]

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$", re.MULTILINE)
_SPEAKERS = {"user": "You", "system": "System", "tool": "Tool"}


def markdown(transcripts: Iterable[Transcript]) -> Iterator[str]:
    """Yield, in pieces, a document with one chapter per chat."""
    for transcript in transcripts:
        chat = transcript.chat
        yield f"# {' '.join(chat.title.split()) or 'Untitled'}\n\n"
        if chat.settings.system:
            yield f"## System prompt\n\n{closed(chat.settings.system)}\n\n"
        for message in transcript.branch:
            yield _section(message)


def speaker(message: Message) -> str:
    """Return the author's name."""
    return _SPEAKERS.get(message.role) or message.model or "Assistant"


def closed(text: str) -> str:
    """Return `text` with an open code block closed, so that it does not swallow what follows."""
    fence = ""
    for match in _FENCE.finditer(text):
        mark, rest = match.groups()
        if not fence:
            fence = mark
        elif mark.startswith(fence) and not rest.strip():
            fence = ""
    return f"{text}\n{fence}" if fence else text


def _section(message: Message) -> str:
    parts = [f"## {speaker(message)}"]
    if message.reasoning:
        parts.append("\n".join(f"> {line}".rstrip() for line in message.reasoning.strip().splitlines()))
    parts.append(closed(message.content))
    parts += [f"### {attachment.name}\n\n{closed(attachment.content)}" for attachment in message.attachments]
    if message.state is MessageState.PARTIAL:
        parts.append("*(unfinished)*")
    return "\n\n".join(parts) + "\n\n"
