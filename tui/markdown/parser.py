"""The Markdown parser: GitHub's dialect, HTML as text, link addresses shown beside their text, all tokens printable.

Also cleans what only parsing produces: character references and percent escapes in addresses. Extracts code blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from app.terminal import printable, printable_line

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token

__all__ = ["CodeBlock", "block_parser", "code_blocks", "markdown_parser"]

_KINDS = {"fence", "code_block"}


@cache
def markdown_parser() -> MarkdownIt:
    """Return a parser that shows HTML as text, so that nothing disappears, and images as links."""
    return _new_parser()


@cache
def block_parser() -> MarkdownIt:
    """Return the same parser without inline content, which takes most of the time."""
    parser = _new_parser()
    parser.core.ruler.enableOnly(["normalize", "block", "printable"])
    return parser


def _new_parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("gfm-like", {"html": False})
    parser.core.ruler.push("images", _make_links_of_images)
    parser.core.ruler.push("printable", _make_printable)
    parser.core.ruler.push("addresses", _append_addresses)
    return parser


def _make_printable(state: StateCore) -> None:
    _clean(state.tokens)


def _clean(tokens: Iterable[Token]) -> None:
    for token in tokens:
        token.content, token.info = printable(token.content), printable(token.info)
        _clean(token.children or ())


def _make_links_of_images(state: StateCore) -> None:
    for token in state.tokens:
        if token.children:
            token.children = [part for child in token.children for part in _without_image(child)]


def _without_image(token: Token) -> Iterator[Token]:
    from markdown_it.token import Token

    if token.type != "image":
        yield token
        return
    name = "".join(child.content for child in token.children or ())
    yield Token("link_open", "a", 1, attrs={"href": token.attrs.get("src", "")})
    yield Token("text", "", 0, content=f"image: {name}" if name else "image")
    yield Token("link_close", "a", -1)


def _append_addresses(state: StateCore) -> None:
    for token in state.tokens:
        if token.children:
            token.children = list(_with_addresses(token.children))


def _with_addresses(tokens: Iterable[Token]) -> Iterator[Token]:
    from markdown_it.token import Token

    address, shown = "", ""
    for token in tokens:
        if token.type == "link_open":
            address, shown = printable_line(str(token.attrs.get("href", ""))), ""
            token.attrs["href"] = address
        elif token.type == "link_close" and shown != address:
            yield Token("text", "", 0, content=f" ({address})")
        shown += token.content
        yield token


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Code without its fence, its indentation in a list and the last line end. `language` is the word after the opening
    fence, if any."""

    language: str
    text: str

    @property
    def title(self) -> str:
        """One line: language, length and beginning."""
        n_lines = self.text.count("\n") + 1
        size = f"{n_lines} lines" if n_lines > 1 else "1 line"
        begin = next((line for line in self.text.splitlines() if line.strip()), "")
        return printable_line(f"{self.language or 'code'}, {size}: {begin}")


def code_blocks(text: str) -> tuple[CodeBlock, ...]:
    """Return the non-empty code blocks of a Markdown text in order, as printable text."""
    tokens = (token for token in block_parser().parse(text) if token.type in _KINDS)
    blocks = (CodeBlock(next(iter(token.info.split()), ""), token.content.removesuffix("\n")) for token in tokens)
    return tuple(block for block in blocks if block.text.strip())
