"""Chats as Markdown: the shown branch, to read and paste.

Owns the headings. Messages are Markdown already; only an open code block is closed. Calls of tools and their results
are code. Pictures and sounds are references, whose content follows at the end of the document; a text for a terminal
only names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from app.chat.conversation import Attachment, MediaFile, Message, MessageState, Transcript
from app.chat.formats.media import ContentOf, data_url
from app.chat.tool_calls import call_text
from app.tools.result import ToolOutcome

_IN_A_LABEL = re.compile(r"([\\\[\]`*_<>])")

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$", re.MULTILINE)
_RUN_OF_FENCE = re.compile(r"`{3,}")
_SPEAKERS = {"user": "You", "system": "System", "tool": "Tool", "summary": "Summary"}
_LEAST_FENCE = 3


def markdown(transcripts: Iterable[Transcript], content_of: ContentOf | None = None) -> Iterator[str]:
    """Yield, in pieces, a document with one chapter per chat, and the contents of media if `content_of` gives them."""
    shown: dict[str, MediaFile] = {}
    for transcript in transcripts:
        chat = transcript.chat
        yield f"# {' '.join(chat.title.split()) or 'Untitled'}\n\n"
        if chat.settings.system:
            yield f"## System prompt\n\n{closed(chat.settings.system)}\n\n"
        for message in transcript.branch:
            yield _section(message, shown if content_of else None)
    for name, file in shown.items():
        if content_of is not None:
            yield f"[{name}]: {data_url(file, content_of(file))}\n"


def speaker(message: Message) -> str:
    """Return the author's name."""
    return _SPEAKERS.get(message.role) or message.model or "Assistant"


def result_title(message: Message) -> str:
    """Return what the call of a tool message did and how it ended, in a line: "read notes.txt, failed"."""
    result = message.result
    assert result is not None, "it is of a message that has one"
    is_cut_off = result.outcome is ToolOutcome.RUNNING
    outcome = "cut off" if is_cut_off else "" if result.outcome is ToolOutcome.DONE else result.outcome.value
    parts = (
        result.title or result.tool,
        outcome.replace("_", " "),
        result.detail,
        "undone" if result.is_undone else "",
    )
    return ", ".join(" ".join(part.split()) for part in parts if part.strip())


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


def _section(message: Message, shown: dict[str, MediaFile] | None) -> str:
    if message.result is not None:
        title = _IN_A_LABEL.sub(r"\\\1", result_title(message))
        return f"## {speaker(message)}: {title}\n\n{_fenced(message.content)}\n\n"
    parts = [f"## {speaker(message)}"]
    if message.reasoning:
        parts.append("\n".join(f"> {line}".rstrip() for line in message.reasoning.strip().splitlines()))
    if message.content or not message.calls:
        parts.append(closed(message.content))
    parts += [_fenced(call_text(call)) for call in message.calls]
    for attachment in message.attachments:
        parts += _attached(attachment, shown)
    if message.state is MessageState.PARTIAL:
        parts.append("*(unfinished)*")
    return "\n\n".join(parts) + "\n\n"


def _fenced(text: str) -> str:
    """Return `text` as a block of code, which it cannot close."""
    longest = max((len(run) for run in _RUN_OF_FENCE.findall(text)), default=_LEAST_FENCE - 1)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}"


def _attached(attachment: Attachment, shown: dict[str, MediaFile] | None) -> Iterator[str]:
    """Yield the paragraphs of an attachment; `shown` takes the media that are referred to, None refers to none."""
    if not attachment.media:
        yield f"### {attachment.name}\n\n{closed(attachment.content)}"
        return
    yield f"### {attachment.label}"
    for number, file in enumerate(attachment.media if shown is not None else (), 1):
        assert shown is not None
        name = f"media-{file.sha256[:16]}"
        shown[name] = file
        label = _IN_A_LABEL.sub(r"\\\1", " ".join(attachment.name.split()))
        label = label if len(attachment.media) == 1 else f"{label}, {number}"
        yield f"{'' if file.is_sound else '!'}[{label}][{name}]"
    if attachment.content:
        yield closed(attachment.content)
