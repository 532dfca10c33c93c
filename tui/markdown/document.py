"""Markdown: the parser, the code blocks of a text, and a growing document as terminal lines.

The dialect is GitHub's with its task lists, formulas, HTML as text, and link addresses beside their text. Only what has
a scheme is a link by itself. All tokens are printable, also what only parsing produces: character references and
percent escapes in addresses. Of a running answer only the last block is parsed and drawn again. No colours, no widgets.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from app.common.terminal import printable, printable_line
from tui.markdown.code import Code, finished_code
from tui.markdown.formulas import add_formulas

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token
    from rich.segment import Segment


TASK = "task"
"""The key of a list item's meta for the box in place of its bullet: ☐, or ☑ if the task is done."""

_KINDS = {"fence", "code_block"}
_TASK = re.compile(r"\[([ xX])\]\s")


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
    # Half of the names of files end like a domain: a.py, notes.md and run.sh are in Paraguay, Moldova and St Helena.
    assert parser.linkify is not None  # Textual requires linkify-it-py
    parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False}).add("//", None)
    add_formulas(parser)
    parser.core.ruler.push("tasks", lambda state: _mark_tasks(state.tokens))
    parser.core.ruler.push("images", partial(_change_children, _without_images))
    parser.core.ruler.push("printable", lambda state: _clean(state.tokens))
    parser.core.ruler.push("addresses", partial(_change_children, _with_addresses))
    return parser


def _change_children(change: Callable[[Iterable[Token]], Iterable[Token]], state: StateCore) -> None:
    for token in state.tokens:
        if token.children:
            token.children = list(change(token.children))


def _mark_tasks(tokens: Sequence[Token]) -> None:
    """Draw the box of a task, as in `- [x] done`."""
    for item, _, content in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if item.type != "list_item_open" or content.type != "inline" or not content.children:
            continue
        text = content.children[0]
        if text.type == "text" and (box := _TASK.match(text.content)):
            shown, text.content = "☐" if box[1] == " " else "☑", text.content[box.end() :]
            if item.markup in "-*+":
                item.meta[TASK] = shown
            else:  # behind its number
                text.content = f"{shown} {text.content}"


def _clean(tokens: Iterable[Token]) -> None:
    for token in tokens:
        token.content, token.info = printable(token.content), printable(token.info)
        _clean(token.children or ())


def _without_images(tokens: Iterable[Token]) -> Iterator[Token]:
    from markdown_it.token import Token

    for token in tokens:
        if token.type != "image":
            yield token
            continue
        name = "".join(child.content for child in token.children or ())
        yield Token("link_open", "a", 1, attrs={"href": token.attrs.get("src", "")})
        yield Token("text", "", 0, content=f"image: {name}" if name else "image")
        yield Token("link_close", "a", -1)


def _with_addresses(tokens: Iterable[Token]) -> Iterator[Token]:
    """Yield the tokens with each link's address behind its text, unless the text is the address."""
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
        n_lines = self.text.count("\n") + 1
        size = f"{n_lines} lines" if n_lines > 1 else "1 line"
        begin = next((line for line in self.text.splitlines() if line.strip()), "")
        return printable_line(f"{self.language or 'code'}, {size}: {begin}")


def code_blocks(text: str) -> tuple[CodeBlock, ...]:
    """Return the non-empty code blocks of a Markdown text in order, as printable text."""
    tokens = (token for token in block_parser().parse(text) if token.type in _KINDS)
    blocks = (CodeBlock(next(iter(token.info.split()), ""), token.content.removesuffix("\n")) for token in tokens)
    return tuple(block for block in blocks if block.text.strip())


class Lines(Protocol):
    """Lines that are drawn when asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, y: int, /) -> Sequence[Segment]: ...


class BlockRenderer(Protocol):
    """Draws blocks for one width and one set of colours, without empty lines around one; those of code grow with it."""

    def lines(self, block: Sequence[Token]) -> Lines: ...

    def code_lines(self, code: Code) -> Lines: ...


class MarkdownDocument:
    """The lines of a printable text. A block is final once another one has begun in complete rows below it: a lone `*`
    is a list, but more text may make it part of the previous block. A link definition further down, as in
    `[name]: address`, redraws everything. The rows of a fenced block at the end only extend it: they are not parsed."""

    def __init__(self, source: str = "") -> None:
        self._rest = printable(source)  # what is not final; of a fenced block at the end, its incomplete row
        self._final: list[str] = []
        self._final_blocks: list[Sequence[Token] | Code] = []
        self._final_references: dict[str, Any] = {}  # link definitions in final blocks, as the parser stores them
        self._references: dict[str, Any] = {}  # those and later ones, the last possibly incomplete
        self._fence: _Fence | None = None
        self._renderer: BlockRenderer | None = None
        self._lines = _Column()
        self._drawn_blocks: dict[str, Lines] = {}  # by their source: those that are not final
        self._is_drawn = False

    @property
    def source(self) -> str:
        return "".join((*self._final, self._rest))

    def append(self, text: str) -> None:
        self._rest += printable(text)
        self._is_drawn = False

    def draw(self, renderer: BlockRenderer) -> Lines:
        """Return all lines drawn with `renderer`, one empty line between blocks. Later calls may change them."""
        if renderer != self._renderer:
            self._renderer = renderer
            self._drawn_blocks = {}
            self._lines.replace(0, [_drawn(block, renderer) for block in self._final_blocks])
            self._is_drawn = False
        if not self._is_drawn:
            while True:
                if self._fence is not None:  # what follows only extends it, until a row closes it
                    read, self._rest = self._fence.read(self._rest)
                    self._final.append(read)
                    if not self._fence.is_closed:
                        break
                    self._fence = None
                self._draw_rest(renderer)
                if self._fence is None:
                    break
            self._is_drawn = True
        return self._lines

    def _draw_rest(self, renderer: BlockRenderer) -> None:
        """Draw the blocks that are not final. If the last one is a fenced block, `_fence` is to read what follows."""
        parsed = [*_blocks(self._parsed())]
        rows = self._rest.split("\n")
        blocks: list[Sequence[Token] | Code] = [
            finished_code(tokens[0].info, tokens[0].content) if tokens[0].type in _KINDS else tokens
            for tokens in parsed
        ]
        n_open = 2 if rows[-1] else 1  # an incomplete row may still change its kind and its block
        n_final = max(len(blocks) - n_open, 0)
        first_open_row = _rows_of(parsed[n_final])[0] if parsed else 0
        if fence := _Fence.of(parsed[-1], rows) if parsed else None:
            blocks[-1], n_final, first_open_row = fence.code, len(blocks), _rows_of(parsed[-1])[0] + 1
        sources = ["\n".join(rows[slice(*_rows_of(tokens))]) for tokens in parsed]
        former = self._drawn_blocks if fence is None else {}
        drawn = [former.get(text) or _drawn(block, renderer) for text, block in zip(sources, blocks, strict=True)]
        self._drawn_blocks = dict(zip(sources[n_final:], drawn[n_final:], strict=True))
        self._lines.replace(len(self._final_blocks), drawn)
        self._final_blocks += blocks[:n_final]
        # The rows before the first open one are final, with their link definitions.
        self._final.append("".join(f"{row}\n" for row in rows[:first_open_row]))
        self._rest = "\n".join(rows[first_open_row:])
        for name, reference in self._references.items():
            if reference["map"][1] <= first_open_row:
                self._final_references.setdefault(name, reference)
        self._fence = fence

    def _parsed(self) -> list[Token]:
        before = _addresses(self._references)
        tokens = self._parse()
        if _addresses(self._references) != before:  # blocks above may use it: begin again
            self._rest, self._final = self.source, []
            self._final_blocks, self._final_references = [], {}
            self._drawn_blocks = {}
            tokens = self._parse()
        return tokens

    def _parse(self) -> list[Token]:
        known = {"references": dict(self._final_references)}  # the first definition of a name counts
        tokens = markdown_parser().parse(self._rest, known)
        self._references = known["references"]
        return tokens


class _Fence:
    """The fenced block at the end of a text, which grows row by row until one closes it."""

    def __init__(self, mark: str, info: str) -> None:
        self.code = Code(info)
        self.is_closed = False
        self._closing = re.compile(rf" {{0,3}}{mark[0]}{{{len(mark)},}}[ \t]*")

    @classmethod
    def of(cls, block: Sequence[Token], rows: Sequence[str]) -> _Fence | None:
        """Return the fence that opens `block`, the last of these rows; None if it is another block, or indented, or if
        its first row is incomplete."""
        first_row = _rows_of(block)[0]
        if block[0].type != "fence" or rows[first_row].startswith(" ") or first_row == len(rows) - 1:
            return None
        return cls(block[0].markup, block[0].info)

    def read(self, text: str) -> tuple[str, str]:
        """Read `text`, which follows; return the part that is final and the rest."""
        *rows, last = text.split("\n")
        n_rows = next((number for number, row in enumerate(rows) if self._closing.fullmatch(row)), len(rows))
        self.is_closed = n_rows < len(rows)
        is_closing = self.is_closed or self._closing.fullmatch(last) is not None
        self.code.grow(rows[:n_rows], "" if is_closing else last, is_finished=is_closing)
        read = "".join(f"{row}\n" for row in rows[: n_rows + 1])
        return read, text[len(read) :]


class _Column:
    """Blocks of lines one below the other, with an empty line between two. The last block may grow."""

    def __init__(self) -> None:
        self._blocks: list[Lines] = []
        self._starts: list[int] = []

    def replace(self, n_kept: int, blocks: Iterable[Lines]) -> None:
        del self._blocks[n_kept:], self._starts[n_kept:]
        for block in blocks:
            n_lines = len(self)
            self._starts.append(n_lines + 1 if n_lines and len(block) else n_lines)
            self._blocks.append(block)

    def __len__(self) -> int:
        return self._starts[-1] + len(self._blocks[-1]) if self._blocks else 0

    def __getitem__(self, y: int) -> Sequence[Segment]:
        if not 0 <= y < len(self):
            raise IndexError(y)
        number = bisect_right(self._starts, y) - 1
        block, line = self._blocks[number], y - self._starts[number]
        return block[line] if line < len(block) else ()


def _drawn(block: Sequence[Token] | Code, renderer: BlockRenderer) -> Lines:
    return renderer.code_lines(block) if isinstance(block, Code) else renderer.lines(block)


def _rows_of(block: Sequence[Token]) -> tuple[int, int]:
    first, end = block[0].map or (0, 0)
    return first, end


def _addresses(references: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {name: (reference["href"], reference["title"]) for name, reference in references.items()}


def _blocks(tokens: Iterable[Token]) -> Iterator[list[Token]]:
    block: list[Token] = []
    depth = 0
    for token in tokens:
        block.append(token)
        depth += token.nesting
        if depth == 0:
            yield block
            block = []
