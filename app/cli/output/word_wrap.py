"""Breaking lines of a text for a terminal between words, also while it streams."""

from __future__ import annotations

import re
import shutil
from typing import TextIO

from rich.cells import cell_len

_MAX_HELD_CELLS = 24  # a longer word is broken where the row ends
_PIECES = re.compile(r"\n|[^\S\n]|\S+")
_AS_IT_IS = ("|", "```", "~~~")
_MAX_BEGINNING = 16  # characters
_FENCE = re.compile(r"\s*(```|~~~)")


def whole_words(text: str, stream: TextIO | None) -> str:
    """Return `text` with its lines broken between words if `stream` is a terminal, which would break them anywhere."""
    if stream is None or not stream.isatty():
        return text
    return WordWrap().feed(f"{text}\n", shutil.get_terminal_size().columns).removesuffix("\n")  # it ends the last word


class WordWrap:
    """Takes the pieces of a text that begins in the first column, and returns them with a line break in place of the
    space before a word that does not fit. A terminal alone would break within the word. A word near the end of a row is
    held back until it ends. Fenced code and rows of tables stay as they are: they are copied, or aligned."""

    def __init__(self) -> None:
        self._n_columns = 80
        self._n_cells = 0  # of the row of the terminal so far
        self._line = ""  # the beginning of the text's line, which says whether it is a fence or a row of a table
        self._is_code = False
        self._held = ""  # the space before a word and the word, not returned yet

    def feed(self, text: str, n_columns: int) -> str:
        """Return what can be printed of the text so far."""
        self._n_columns = n_columns
        return "".join(map(self._piece, _PIECES.findall(text)))

    def flush(self) -> str:
        """Return what is held back; the text may go on."""
        held, self._held = self._held, ""
        return self._shown(held)

    def _piece(self, piece: str) -> str:
        if piece == "\n":
            shown = self._released() + piece
            self._is_code ^= _FENCE.match(self._line) is not None
            self._n_cells, self._line = 0, ""
            return shown
        self._line = (self._line + piece)[:_MAX_BEGINNING]
        if self._is_code or self._line.lstrip().startswith(_AS_IT_IS):
            return self.flush() + self._shown(piece)
        if piece.isspace():
            shown = self._released()
            self._held = piece
            return shown
        self._held += piece
        is_near_end = self._n_cells + _MAX_HELD_CELLS >= self._n_columns
        return "" if is_near_end and cell_len(self._held.strip()) <= _MAX_HELD_CELLS else self.flush()

    def _released(self) -> str:
        """Return the word that has ended, on a new row if it does not fit."""
        word = self._held.strip()
        if word and self._held != word and self._n_cells + cell_len(self._held) > self._n_columns:
            self._held, self._n_cells = "", 0
            return f"\n{self._shown(word)}"
        return self.flush()

    def _shown(self, text: str) -> str:
        """Return `text`, which goes to the present row and, where it is too long, to further ones."""
        self._n_cells += cell_len(text)
        if self._n_cells > self._n_columns:
            self._n_cells %= self._n_columns
        return text
