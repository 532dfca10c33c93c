"""What tools and their servers say in a prompt: where it stands, so that it cannot be taken for turns of the chat.

Whoever writes a file or a page that a tool reads, or a server that describes its tools, could write the special tokens
of the model's template, such as those that end a turn, and speak as the system or the user. Owns marks around such
text, which a template prints with it, and finding them again; a mark has a number that nobody can guess. What is marked
is tokenized as text (`app.engine.quoted`). Independent of templates.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from app.engine.quoted import Spans
from app.protocol.chat import Message

# What may be the text of special tokens: <|im_end|>, </s>, <end_of_turn>, [INST], <｜User｜>.
_SUSPECT = re.compile(r"<[^<>\n]{1,80}>|\[/?[A-Za-z_]{2,40}\]|<[|｜]|[|｜]>")
# Code points that are no characters, for use within a program.
_BEGIN, _END, _CLOSE = "\ufdd0", "\ufdd1", "\ufdd2"


class QuoteMarks:
    """The marks of one prompt; without `is_used` there are none."""

    def __init__(self, *, is_used: bool = True) -> None:
        self._is_used = is_used
        self._number = secrets.token_hex(8)
        self._marks = (f"{_BEGIN}{self._number}{_CLOSE}", f"{_END}{self._number}{_CLOSE}")
        # Some templates print values as Python or JSON do, which escape these code points.
        begin, end, close = (rf"(?:{code}|\\+u{ord(code):x})" for code in (_BEGIN, _END, _CLOSE))
        self._either = re.compile(f"(?:({begin})|{end}){self._number}{close}")

    def marked(self, messages: Iterable[Message]) -> list[Message]:
        """Return `messages` with marks around what tools returned, within its blanks, which templates may strip."""
        return [
            replace(message, content=self._marked(message.content)) if message.role == "tool" else message
            for message in messages
        ]

    def marked_values(self, value: Any) -> Any:
        """Return JSON data with marks around texts that may have special tokens: servers of others describe their
        tools, and a model may have copied arguments of a call from a result."""
        return self._marked_values(value) if self._is_used else value

    def _marked_values(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._marked_values(key): self._marked_values(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked_values(each) for each in value]
        return self._marked(value) if isinstance(value, str) and _SUSPECT.search(value) else value

    def _marked(self, content: str) -> str:
        text = content.strip()
        if not self._is_used or not text:
            return content
        place = content.index(text)
        begin, end = self._marks
        return f"{content[:place]}{begin}{text}{end}{content[place + len(text) :]}"

    def unmarked(self, prompt: str) -> tuple[str, Spans]:
        """Return a rendered prompt without the marks, and the parts that they were around.

        A mark whose other one a template left out is dropped. Raises ValueError where a template changed a mark.
        """
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        place = n_characters = 0
        begun: int | None = None
        for mark in self._either.finditer(prompt):
            pieces.append(prompt[place : mark.start()])
            n_characters += len(pieces[-1])
            place = mark.end()
            if mark[1]:
                begun = n_characters
            elif begun is not None:
                spans.append((begun, n_characters))
                begun = None
        text = "".join([*pieces, prompt[place:]])
        if self._number in text:
            raise ValueError("a mark is not as it was")
        return text, tuple(spans)
