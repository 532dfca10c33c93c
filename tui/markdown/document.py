"""A growing Markdown document as terminal lines.

Owns which blocks are final: of a running answer only the last block is redrawn. Independent of colours and widgets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tui.markdown.parser import markdown_parser

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.segment import Segment

__all__ = ["BlockRenderer", "MarkdownDocument"]


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
