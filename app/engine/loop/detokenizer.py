"""From the bytes of tokens to text that may be shown: whole characters, and nothing of what ends the answer.

Owns the hold-backs of a stream. Knows nothing of tokens or models.

Where an answer leaves the block of code that it was to fill: at its first line that is indented less.

Owns what counts as indentation. Knows nothing of tokens.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

__all__ = ["IncrementalDetokenizer", "Indentation", "partial_match_length"]


def partial_match_length(text: str, tags: Sequence[str]) -> int:
    """Return how many of the last characters of `text` may be the begin of one of `tags`."""
    longest = max((len(tag) for tag in tags), default=1) - 1
    for n_characters in range(min(longest, len(text)), 0, -1):
        if any(tag.startswith(text[-n_characters:]) for tag in tags):
            return n_characters
    return 0


class IncrementalDetokenizer:
    """The text of one answer as it grows.

    Bytes that do not yet make a character wait; so does text that may turn out to be the begin of a stop string, or of
    a line indented by less than `n_indent`. Bytes that can never be UTF-8 become U+FFFD. `n_decoded` characters have
    come, `n_shown` of them were returned. `stopped_by` is the stop string that ended the text, if one did.
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
        """Where the text of the last piece ends, in characters; a begun one counts."""
        pending, _ = self._decoder.getstate()
        return self.n_decoded + bool(pending)

    def begin_at(self, n_characters: int) -> None:
        """Count characters from `n_characters` on: so many were told before the first piece."""
        self.n_decoded = self.n_shown = n_characters

    def push(self, piece: bytes) -> str:
        """Return the text that `piece` makes safe to show. Sets `is_stopped` where the answer ends with it."""
        text = self._decode(piece, is_final=False)
        if self._holds_nothing:
            self.n_shown += len(text)
            return text
        self._held += text
        return self._release(is_final=False)

    def finish(self) -> str:
        """Return what was held back, at the end of an answer that no stop string ended."""
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
            split = len(self._held) - (0 if is_final else self._n_doubtful())
            shown, self._held = self._held[:split], self._held[split:]
        self.n_shown += len(shown)
        return shown

    def _n_doubtful(self) -> int:
        return max(partial_match_length(self._held, self._stop), self._indentation.n_undecided(self._held))


class Indentation:
    """The least indentation, in blanks and tabs, of the lines of a text but for its first; empty lines have none."""

    def __init__(self, n_least: int) -> None:
        less = f"\n[ \t]{{0,{n_least - 1}}}"
        self._dedent = re.compile(rf"{less}(?=[^ \t\r\n])") if n_least else None
        self._undecided = re.compile(rf"{less}\Z") if n_least else None

    def end(self, text: str) -> int | None:
        """Return where the line before the first that is indented less ends, None where no line is."""
        found = self._dedent.search(text) if self._dedent else None
        return found.start() if found else None

    def n_undecided(self, text: str) -> int:
        """Return how many of the last characters of `text` may be the begin of a line that is indented less."""
        found = self._undecided.search(text) if self._undecided else None
        return len(text) - found.start() if found else 0
