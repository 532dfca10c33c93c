"""Incremental detokenization: bytes of tokens become text to show, in whole characters, up to the end of the answer.

Owns what is held back: incomplete characters, possible stop strings, and lines that may leave the indented block of
code to fill in. Independent of tokens and models.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

from app.common.answer_text import partial_match_length


class IncrementalDetokenizer:
    """Text of one answer as it grows.

    Incomplete characters are held back; so is text that may begin a stop string or a line indented by less than
    `n_indent`. Invalid UTF-8 becomes U+FFFD. Of `n_decoded` characters `n_shown` were returned. `stopped_by` is the
    stop string that ended the text, if any.
    """

    def __init__(self, stop: Sequence[str] = (), n_indent: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._indentation = Indentation(n_indent)
        self._holds_nothing = not (stop or n_indent)
        self._held = ""
        self.is_stopped = False
        self.stopped_by = ""
        self.n_decoded = 0
        self.n_shown = 0

    @property
    def end(self) -> int:
        """The end of the last piece's text, in characters, including an incomplete one."""
        pending, _ = self._decoder.getstate()
        return self.n_decoded + bool(pending)

    def begin_at(self, n_characters: int) -> None:
        """Count characters from `n_characters` on, the length of an echoed prompt."""
        self.n_decoded = self.n_shown = n_characters

    def push(self, piece: bytes) -> str:
        """Return the text to show after `piece`. Sets `is_stopped` if the answer ends with it."""
        text = self._decode(piece, is_final=False)
        if self._holds_nothing:
            self.n_shown += len(text)
            return text
        self._held += text
        return self._release(is_final=False)

    def finish(self) -> str:
        """Return the text held back, at the end of an answer that no stop string ended."""
        self._held += self._decode(b"", is_final=True)
        return self._release(is_final=True)

    def _decode(self, piece: bytes, *, is_final: bool) -> str:
        text = self._decoder.decode(piece, final=is_final)
        self.n_decoded += len(text)
        return text

    def _release(self, *, is_final: bool) -> str:
        ends = [(index, text) for text in self._stop if (index := self._held.find(text)) >= 0]
        if (dedent := self._indentation.end(self._held)) is not None:
            ends.append((dedent, ""))
        if ends:
            self.is_stopped = True
            end, self.stopped_by = min(ends)
            shown, self._held = self._held[:end], ""
        else:
            n_doubtful = max(partial_match_length(self._held, self._stop), self._indentation.n_undecided(self._held))
            split = len(self._held) - (0 if is_final else n_doubtful)
            shown, self._held = self._held[:split], self._held[split:]
        self.n_shown += len(shown)
        return shown


class Indentation:
    """Minimum indentation, in blanks and tabs, of all lines but the first; empty lines are exempt."""

    def __init__(self, n_least: int) -> None:
        less = f"\n[ \t]{{0,{n_least - 1}}}"
        self._dedent = re.compile(rf"{less}(?=[^ \t\r\n])") if n_least else None
        self._undecided = re.compile(rf"{less}\Z") if n_least else None

    def end(self, text: str) -> int | None:
        """Return the end of the text before the first line that is indented less, None without such a line."""
        found = self._dedent.search(text) if self._dedent else None
        return found.start() if found else None

    def n_undecided(self, text: str) -> int:
        """Return how many of the last characters of `text` may begin a line that is indented less."""
        found = self._undecided.search(text) if self._undecided else None
        return len(text) - found.start() if found else 0
