r"""Formulas in Markdown: `\(…\)`, `\[…\]`, `$$…$$`, and `$…$` where it cannot be an amount or a variable of a shell.

Owns what is a formula, as rules of the parser. One that cannot be converted stays as written, and so do a backslash
before a bracket and two backslashes: CommonMark would take one away.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tui.markdown.latex import as_unicode

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline


_CLOSING = {r"\(": r"\)", r"\[": r"\]", "$$": "$$"}
_KEPT = {*_CLOSING, r"\)", r"\]", r"\\"}
_DOLLAR = re.compile(r"(?<![\w$\\])\$(?![\s$])([^$\n`]*[^\s$`\\])\$(?![\w$])")
_NO_WORD = re.compile(r"\\[A-Za-z]+|\{[A-Za-z ]*\}")  # commands, and texts in braces
_WORD = re.compile(r"[^\W\d_]{3}")
_SIGN = re.compile(r"[\\^_=<>+*/|()-]")
_MAX_DOLLAR = 200


def add_formulas(parser: MarkdownIt) -> None:
    """Add the rules to `parser`."""
    parser.inline.ruler.before("escape", "formula", _inline)
    parser.block.ruler.before("fence", "formula", _block, {"alt": ["paragraph", "reference", "blockquote", "list"]})


def _inline(state: StateInline, silent: bool) -> bool:
    begin = state.src[state.pos : state.pos + 2]
    if begin in _CLOSING:
        end = state.src.find(_CLOSING[begin], state.pos + 2, state.posMax)
        if end > state.pos + 1 and (formula := state.src[state.pos + 2 : end]).strip():
            return _take(state, formula, end + 2, silent=silent)
    if begin.startswith("$"):
        found = _DOLLAR.match(state.src, state.pos, min(state.posMax, state.pos + _MAX_DOLLAR))
        if found is not None and _is_formula(found[1]):
            return _take(state, found[1], found.end(), silent=silent)
    if begin in _KEPT and begin != "$$":
        if not silent:
            state.pending += begin
        state.pos += 2
        return True
    return False


def _take(state: StateInline, formula: str, end: int, *, silent: bool) -> bool:
    if not silent:
        text = as_unicode(formula) or state.src[state.pos : end]
        first, *others = text.split("\n")
        state.pending += first
        for line in others:
            state.push("hardbreak", "br", 0)
            state.pending += line
    state.pos = end
    return True


def _block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take rows from one that begins with a delimiter up to the closing one, or to an empty row."""
    if state.is_code_block(start):
        return False
    begin = _row(state, start)[:2]
    if begin not in {r"\[", "$$"}:
        return False
    if (at := _row(state, start).find(_CLOSING[begin], 2)) >= 0 and at + 2 < len(_row(state, start).rstrip()):
        return False  # a formula within a paragraph
    if silent:
        return True
    state.line = start
    while state.line < end and not state.isEmpty(state.line) and state.sCount[state.line] >= state.blkIndent:
        text = _row(state, state.line)[2 if state.line == start else 0 :]
        state.line += 1
        if text.rstrip().endswith(_CLOSING[begin]):
            break
    state.push("paragraph_open", "p", 1).map = [start, state.line]
    inline = state.push("inline", "", 0)
    inline.content = state.getLines(start, state.line, state.blkIndent, keepLastLF=False).strip()
    inline.map, inline.children = [start, state.line], []
    state.push("paragraph_close", "p", -1)
    return True


def _is_formula(text: str) -> bool:
    """Return whether a text between dollar signs has a letter, no words, and a sign unless it is a single letter."""
    has_letter = any(map(str.isalpha, text))
    is_signed = len(text) == 1 or _SIGN.search(text) is not None
    return has_letter and is_signed and _WORD.search(_NO_WORD.sub("", text)) is None


def _row(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]
