"""Attachments of a message → what a model gets: a text that names each one, and before it pictures and sounds. Pure.

A message gives the same text each time: what an engine has cached of an old chat stays valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.chat.conversation import Attachment, MediaFile

_FENCE = "```"


def media_of(attachments: Iterable[Attachment]) -> tuple[MediaFile, ...]:
    """Return the pictures and sounds of a message, in the order in which its text numbers them."""
    return tuple(file for attachment in attachments for file in attachment.media)


def compose_prompt(question: str, attachments: Sequence[Attachment]) -> str:
    """Return the text of a message: the question after its attachments, texts named and fenced, media numbered.

    A single picture or sound needs no number: "this picture" is the one.
    """
    is_alone = len(media_of(attachments)) == 1
    parts: list[str] = []
    numbers = {False: 0, True: 0}  # of the pictures and of the sounds so far
    for attachment in attachments:
        if attachment.media:
            numbered = [_number(file, numbers) for file in attachment.media]
            if not is_alone or _is_rendered(attachment):
                parts.append(f"{attachment.label}: {_listed(numbered)}")
        if attachment.content or not attachment.media:
            parts.append(_fenced(attachment))
    return "\n\n".join(filter(None, [*parts, question]))


def _is_rendered(attachment: Attachment) -> bool:
    """Return whether the pictures are pages of a document."""
    return attachment.media_type != attachment.media[0].mime_type


def _number(file: MediaFile, numbers: dict[bool, int]) -> tuple[str, int]:
    numbers[file.is_sound] += 1
    return "sound" if file.is_sound else "picture", numbers[file.is_sound]


def _listed(numbered: Sequence[tuple[str, int]]) -> str:
    (kind, first), (_, last) = numbered[0], numbered[-1]
    return f"{kind} {first}" if first == last else f"{kind}s {first} to {last}"


def _fenced(attachment: Attachment) -> str:
    """Fence a text with more backticks than it contains in a row, so that it cannot close its own fence."""
    fence = _FENCE
    while fence in attachment.content:
        fence += "`"
    return f"{attachment.name}:\n{fence}\n{attachment.content.rstrip()}\n{fence}"
