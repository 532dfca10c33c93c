"""Markdown: the parser, the code blocks of a text, and a growing document as terminal lines.

The dialect is GitHub's, with HTML as text and link addresses shown beside their text. All tokens are printable, also
what only parsing produces: character references and percent escapes in addresses. Owns which blocks are final: of a
running answer only the last block is redrawn. Independent of colours and widgets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from app.terminal import printable, printable_line

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token
    from rich.segment import Segment

__all__ = ["BlockRenderer", "CodeBlock", "MarkdownDocument", "block_parser", "code_blocks", "markdown_parser"]

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


class BlockRenderer(Protocol):
    """Draws blocks for one width and one set of colours."""

    def lines(self, block: Sequence[Token]) -> list[list[Segment]]:
        """Return the lines of a block, without empty ones around it."""
        ...


class MarkdownDocument:
    """The lines of `source`. A block is final once another one has begun in complete rows below it: a lone `*` is a
    list, but more text may make it part of the previous block. A link definition further down, as in `[name]: address`,
    redraws everything."""

    def __init__(self, source: str = "") -> None:
        self._rest = source  # from the beginning of the first block on that is not final
        self._final: list[str] = []
        self._final_references: dict[str, Any] = {}  # link definitions in final blocks, as the parser stores them
        self._references: dict[str, Any] = {}  # those and later ones, the last possibly incomplete
        self._renderer: BlockRenderer | None = None
        self._lines: list[list[Segment]] = []
        self._n_final_lines = 0
        self._drawn_blocks: dict[str, list[list[Segment]]] = {}  # by their source: those that are not final
        self._is_drawn = False

    @property
    def source(self) -> str:
        """The whole text."""
        return "".join((*self._final, self._rest))

    def append(self, text: str) -> None:
        """Append `text`."""
        self._rest += text
        self._is_drawn = False

    def draw(self, renderer: BlockRenderer) -> Sequence[Sequence[Segment]]:
        """Return all lines drawn with `renderer`, one empty line between blocks."""
        if renderer != self._renderer:
            self._renderer = renderer
            self._begin_again()
        if not self._is_drawn:
            self._draw_rest(renderer)
            self._is_drawn = True
        return self._lines

    def _begin_again(self) -> None:
        self._rest, self._final = self.source, []
        self._final_references = {}
        self._n_final_lines = 0
        self._drawn_blocks = {}
        self._is_drawn = False

    def _draw_rest(self, renderer: BlockRenderer) -> None:
        blocks = [*_blocks(self._parsed())]
        rows = self._rest.split("\n")
        n_open = 1 if rows[-1] == "" else 2  # an incomplete row may still change its kind and its block
        sources = ["\n".join(rows[slice(*block[0].map)] if block[0].map else ()) for block in blocks]
        rendered = [
            self._drawn_blocks.get(text) or renderer.lines(block) for text, block in zip(sources, blocks, strict=True)
        ]
        self._drawn_blocks = dict(zip(sources[-n_open:], rendered[-n_open:], strict=True))
        del self._lines[self._n_final_lines :]
        self._add(rendered[:-n_open])
        self._n_final_lines = len(self._lines)
        self._add(rendered[-n_open:])
        if blocks:
            self._keep_from(blocks[-n_open:][0])

    def _parsed(self) -> list[Token]:
        before = _addresses(self._references)
        tokens = self._parse()
        if _addresses(self._references) != before:
            self._begin_again()
            tokens = self._parse()
        return tokens

    def _parse(self) -> list[Token]:
        known = {"references": dict(self._final_references)}  # the first definition of a name counts
        tokens = markdown_parser().parse(self._rest, known)
        self._references = known["references"]
        return tokens

    def _add(self, blocks: Iterable[list[list[Segment]]]) -> None:
        for lines in blocks:
            if lines and self._lines:
                self._lines.append([])
            self._lines += lines

    def _keep_from(self, block: Sequence[Token]) -> None:
        first_row = block[0].map[0] if block[0].map else 0
        rows = self._rest.split("\n")
        final = "".join(f"{row}\n" for row in rows[:first_row])
        self._final.append(final)
        for name, reference in self._references.items():
            if reference["map"][1] <= first_row:
                self._final_references.setdefault(name, reference)
        self._rest = self._rest[len(final) :]


def _addresses(references: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {name: (reference["href"], reference["title"]) for name, reference in references.items()}


def _blocks(tokens: Iterable[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each top-level block."""
    block: list[Token] = []
    depth = 0
    for token in tokens:
        block.append(token)
        depth += token.nesting
        if depth == 0:
            yield block
            block = []
