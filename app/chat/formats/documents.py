"""Chats as documents: Markdown to read and paste, and one web page without external resources and scripts.

Messages are Markdown already: only an open code block is closed. On the page every text is escaped, and Markdown is
rendered without raw HTML. Pictures and sounds follow at the end of a document, or are only named in a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from app.chat.attachments.parsing import fenced
from app.chat.conversation import (
    Attachment,
    MediaFile,
    Message,
    MessageState,
    Transcript,
    call_text,
    cited_sources,
)
from app.chat.formats.json_reader import ContentOf, data_url
from app.protocol.chat import Source
from app.tools.tool import ToolOutcome

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


_IN_A_LABEL, _ESCAPED = re.compile(r"([\\\[\]`*_<>])"), r"\\\1"

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$", re.MULTILINE)
_SPEAKERS = {"user": "You", "system": "System", "tool": "Tool", "summary": "Summary"}


def markdown(transcripts: Iterable[Transcript], content_of: ContentOf | None = None) -> Iterator[str]:
    """Yield, in pieces, a document with one chapter per chat, and the contents of media if `content_of` gives them."""
    shown: dict[str, MediaFile] = {}
    for transcript in transcripts:
        chat = transcript.chat
        yield f"# {' '.join(chat.title.split()) or 'Untitled'}\n\n"
        if chat.settings.system:
            yield f"## System prompt\n\n{closed(chat.settings.system)}\n\n"
        cited = cited_sources(transcript.branch)
        for message in transcript.branch:
            yield _section(message, shown if content_of else None, transcript, cited.get(message.id, ()))
    for name, file in shown.items():
        if content_of is not None:
            yield f"[{name}]: {data_url(file, content_of(file))}\n"


def speaker(message: Message) -> str:
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


def _section(
    message: Message, shown: dict[str, MediaFile] | None, transcript: Transcript, sources: Sequence[Source]
) -> str:
    if message.result is not None:
        title = _IN_A_LABEL.sub(_ESCAPED, result_title(message))
        parts = [f"## {speaker(message)}: {title}", fenced(message.content)]
        for attachment in message.attachments:
            parts += _attached(attachment, shown)
        return "\n\n".join(parts) + "\n\n"
    parts = [f"## {speaker(message)}"]
    if message.reasoning:
        parts.append("\n".join(f"> {line}".rstrip() for line in message.reasoning.strip().splitlines()))
    if message.content or not message.calls:
        parts.append(closed(message.content))
    parts += [fenced(call_text(call)) for call in message.calls]
    for attachment in message.attachments:
        parts += _attached(attachment, shown)
    if sources:
        parts.append("Sources:")
        parts.append("\n".join(f"{n}. {_IN_A_LABEL.sub(_ESCAPED, place)}" for n, place in _places(sources)))
    if message.state is MessageState.PARTIAL:
        parts.append(f"*({_unfinished(message, transcript)})*")
    return "\n\n".join(parts) + "\n\n"


def _places(sources: Sequence[Source]) -> Iterator[tuple[int, str]]:
    return ((number, " ".join(source.place.split())) for number, source in enumerate(sources, start=1))


def _unfinished(message: Message, transcript: Transcript) -> str:
    return "still being written" if message.id in transcript.written else "unfinished"


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
        label = _IN_A_LABEL.sub(_ESCAPED, " ".join(attachment.name.split()))
        label = label if len(attachment.media) == 1 else f"{label}, {number}"
        yield f"{'' if file.is_sound else '!'}[{label}][{name}]"
    if attachment.content:
        yield closed(attachment.content)


_HEAD = """<!doctype html>
<html><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:">
<meta name="referrer" content="no-referrer">
<title>Chats</title>
<style>
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.5; }
body { max-width: 48rem; margin: 2rem auto; padding: 0 1rem; }
section { border-top: 1px solid #8886; padding: .5rem 0; overflow-wrap: anywhere; }
section.user { background: #8881; padding: .5rem 1rem; }
h2 { font-size: 1rem; opacity: .7; margin: 0; }
pre { overflow-x: auto; background: #8882; padding: .75rem; white-space: pre-wrap; }
img { max-width: 100%; } audio { width: 100%; }
table { border-collapse: collapse; } td, th { border: 1px solid #8886; padding: .25rem .5rem; }
</style></head><body>
"""


def page(transcripts: Iterable[Transcript], content_of: ContentOf) -> Iterator[str]:
    """Yield, in pieces, an HTML page with one article per chat; pictures and sounds are in it."""
    from markdown_it import MarkdownIt  # only needed here

    # raw HTML is shown as text, and a picture as its link: nothing is loaded
    renderer = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table").disable("image")
    yield _HEAD
    for transcript in transcripts:
        yield f"<article>\n<h1>{escape(transcript.chat.title or 'Untitled')}</h1>\n"
        if transcript.chat.settings.system:
            yield _folded("System prompt", transcript.chat.settings.system)
        cited = cited_sources(transcript.branch)
        for message in transcript.branch:
            yield from _html_section(message, renderer, content_of, transcript, cited.get(message.id, ()))
        yield "</article>\n"
    yield "</body></html>\n"


def _html_section(
    message: Message,
    renderer: MarkdownIt,
    content_of: ContentOf,
    transcript: Transcript,
    sources: Sequence[Source],
) -> Iterator[str]:
    yield f'<section class="{message.role}">\n<h2>{escape(speaker(message))}</h2>\n'
    if message.result is not None:
        yield _folded(result_title(message), message.content)
        yield from _html_attached(message, content_of)
        yield "</section>\n"
        return
    if message.reasoning:
        yield _folded("Reasoning", message.reasoning)
    yield renderer.render(message.content)
    for call in message.calls:
        yield _folded(call.name, call_text(call).partition("\n")[2])
    yield from _html_attached(message, content_of)
    if sources:
        yield f"<p>Sources:</p>\n<ol>{''.join(f'<li>{escape(place)}</li>' for _, place in _places(sources))}</ol>\n"
    if message.state is MessageState.PARTIAL:
        yield f"<p><em>({_unfinished(message, transcript)})</em></p>\n"
    yield "</section>\n"


def _html_attached(message: Message, content_of: ContentOf) -> Iterator[str]:
    for attachment in message.attachments:
        for file in attachment.media:
            url = escape(data_url(file, content_of(file)))
            shown = f'<audio controls src="{url}"></audio>' if file.is_sound else f'<img alt="" src="{url}">'
            yield f"<figure>{shown}<figcaption>{escape(attachment.label)}</figcaption></figure>\n"
        if attachment.content or not attachment.media:
            yield _folded(attachment.name, attachment.content)


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>\n"
