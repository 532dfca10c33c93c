"""Chats as one web page: the shown branch, without external resources and scripts.

Owns the page. Every text is escaped; Markdown is rendered without raw HTML and pictures, calls of tools and their
results are folded text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING

from app.chat.conversation import Attachment, MediaFile, Message, MessageState, Transcript
from app.chat.formats.markdown import result_title, speaker
from app.chat.formats.media import ContentOf, data_url
from app.chat.tool_calls import call_text

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


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
    renderer = _renderer()
    yield _HEAD
    for transcript in transcripts:
        yield f"<article>\n<h1>{escape(transcript.chat.title or 'Untitled')}</h1>\n"
        if transcript.chat.settings.system:
            yield _folded("System prompt", transcript.chat.settings.system)
        for message in transcript.branch:
            yield from _section(message, renderer, content_of)
        yield "</article>\n"
    yield "</body></html>\n"


def _section(message: Message, renderer: MarkdownIt, content_of: ContentOf) -> Iterator[str]:
    yield f'<section class="{message.role}">\n<h2>{escape(speaker(message))}</h2>\n'
    if message.result is not None:
        yield f"{_folded(result_title(message), message.content)}</section>\n"
        return
    if message.reasoning:
        yield _folded("Reasoning", message.reasoning)
    yield renderer.render(message.content)
    for call in message.calls:
        yield _folded(call.name, call_text(call).partition("\n")[2])
    for attachment in message.attachments:
        yield from _attached(attachment, content_of)
    if message.state is MessageState.PARTIAL:
        yield "<p><em>(unfinished)</em></p>\n"
    yield "</section>\n"


def _attached(attachment: Attachment, content_of: ContentOf) -> Iterator[str]:
    for file in attachment.media:
        yield f"<figure>{_shown(file, content_of)}<figcaption>{escape(attachment.label)}</figcaption></figure>\n"
    if attachment.content or not attachment.media:
        yield _folded(attachment.name, attachment.content)


def _shown(file: MediaFile, content_of: ContentOf) -> str:
    url = escape(data_url(file, content_of(file)))
    return f'<audio controls src="{url}"></audio>' if file.is_sound else f'<img alt="" src="{url}">'


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>\n"


def _renderer() -> MarkdownIt:
    """Return a renderer that shows raw HTML as text and a picture as its link."""
    from markdown_it import MarkdownIt  # only needed here

    return MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table").disable("image")
