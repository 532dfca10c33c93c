"""The blocks of code in a message, as whoever wrote it wrote them: what is copied of it.

Pure. Owns where a block begins and ends; that is where the screen shows it, for both are read by one parser.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.terminal import printable_line
from tui.markdown_parser import block_parser

__all__ = ["CodeBlock", "code_blocks"]

_KINDS = {"fence", "code_block"}


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Code without its fence, its indentation in a list and the line end before the closing fence. `language` is the
    word after the opening one, if there is any."""

    language: str
    text: str

    @property
    def title(self) -> str:
        """One line that tells it from others: its language, its length and how it begins."""
        n_lines = self.text.count("\n") + 1
        size = f"{n_lines} lines" if n_lines > 1 else "1 line"
        begin = next((line for line in self.text.splitlines() if line.strip()), "")
        return printable_line(f"{self.language or 'code'}, {size}: {begin}")


def code_blocks(text: str) -> tuple[CodeBlock, ...]:
    """Return the blocks of code of a Markdown text in their order, without those that are empty. What a terminal would
    obey is not in them, as it is not on the screen."""
    tokens = (token for token in block_parser().parse(text) if token.type in _KINDS)
    blocks = (CodeBlock(_first_word(token.info), token.content.removesuffix("\n")) for token in tokens)
    return tuple(block for block in blocks if block.text.strip())


def _first_word(info: str) -> str:
    return next(iter(info.split()), "")
