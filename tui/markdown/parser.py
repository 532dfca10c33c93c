"""How Markdown is read: GitHub's kind, HTML as text, where a link leads told beside it, and nothing in it that a
terminal would obey.

Owns what the parser itself brings about: character references and percent signs in addresses become characters only
there, behind every cleaning of the source.

The blocks of code in a message, as whoever wrote it wrote them: what is copied of it.

Pure. Owns where a block begins and ends; that is where the screen shows it, for both are read by one parser.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from app.terminal import printable, printable_line

__all__ = ["CodeBlock", "block_parser", "code_blocks", "markdown_parser"]

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token


@cache
def markdown_parser() -> MarkdownIt:
    """Return a parser that shows HTML as text, so that nothing a model writes disappears, and whose tokens are fit for
    a terminal. An image is a link to it."""
    return _made()


@cache
def block_parser() -> MarkdownIt:
    """Return the same parser for who wants to know of blocks only: it does not read what is within a line, which takes
    most of the time."""
    parser = _made()
    parser.core.ruler.enableOnly(["normalize", "block", "printable"])
    return parser


def _made() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("gfm-like", {"html": False})
    parser.core.ruler.push("images", _make_links_of_images)
    parser.core.ruler.push("printable", _make_printable)
    parser.core.ruler.push("addresses", _tell_addresses)
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


def _tell_addresses(state: StateCore) -> None:
    for token in state.tokens:
        if token.children:
            token.children = list(_with_addresses(token.children))


def _with_addresses(tokens: Iterable[Token]) -> Iterator[Token]:
    from markdown_it.token import Token

    address, said = "", ""
    for token in tokens:
        if token.type == "link_open":
            address, said = printable_line(str(token.attrs.get("href", ""))), ""
            token.attrs["href"] = address
        elif token.type == "link_close" and said != address:
            yield Token("text", "", 0, content=f" ({address})")
        said += token.content
        yield token


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
