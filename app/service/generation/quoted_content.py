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
from typing import Any

from app.engine.quoted import Spans

__all__ = ["QuoteMarks"]

Message = dict[str, Any]

# Code points that are no characters, for use within a program.
_SUSPECT = frozenset("<[｜|")  # what the text of special tokens begins with; names and types have none
_BEGIN, _END, _CLOSE = "\ufdd0", "\ufdd1", "\ufdd2"


class QuoteMarks:
    """The marks of one prompt."""

    def __init__(self) -> None:
        number = secrets.token_hex(8)
        self._marks = (f"{_BEGIN}{number}{_CLOSE}", f"{_END}{number}{_CLOSE}")
        self._either = re.compile("|".join(map(re.escape, self._marks)))

    def marked(self, messages: Iterable[Message]) -> list[Message]:
        """Return `messages` with marks around what tools returned, within its blanks, which templates may strip."""
        return [
            {**message, "content": self._marked(message["content"])} if message.get("role") == "tool" else message
            for message in messages
        ]

    def marked_tool(self, definition: Any) -> Any:
        """Return the definition of a tool with marks around its texts that may have special tokens: servers of others
        describe their tools."""
        if isinstance(definition, dict):
            return {self.marked_tool(key): self.marked_tool(value) for key, value in definition.items()}
        if isinstance(definition, list | tuple):
            return [self.marked_tool(value) for value in definition]
        is_suspect = isinstance(definition, str) and not _SUSPECT.isdisjoint(definition)
        return self._marked(definition) if is_suspect else definition

    def _marked(self, content: Any) -> Any:
        if isinstance(content, list):
            return [
                {**part, "text": self._marked(part["text"])} if isinstance(part, dict) and "text" in part else part
                for part in content
            ]
        if not isinstance(content, str) or not (text := content.strip()):
            return content
        place = content.index(text)
        begin, end = self._marks
        return f"{content[:place]}{begin}{text}{end}{content[place + len(text) :]}"

    def unmarked(self, prompt: str) -> tuple[str, Spans]:
        """Return a rendered prompt without the marks, and the parts that they were around.

        A mark whose other one a template left out is dropped.
        """
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        place = n_characters = 0
        begun: int | None = None
        for mark in self._either.finditer(prompt):
            pieces.append(prompt[place : mark.start()])
            n_characters += len(pieces[-1])
            place = mark.end()
            if mark[0] == self._marks[0]:
                begun = n_characters
            elif begun is not None:
                spans.append((begun, n_characters))
                begun = None
        return "".join([*pieces, prompt[place:]]), tuple(spans)
