"""From the bytes of tokens to text that may be shown: whole characters, and never part of a stop string.

Owns the two hold-backs of a stream. Knows nothing of tokens or models.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["TextStream", "n_begun"]


def n_begun(text: str, tags: Sequence[str]) -> int:
    """Return how many of the last characters of `text` may be the begin of one of `tags`."""
    longest = max((len(tag) for tag in tags), default=1) - 1
    for n_characters in range(min(longest, len(text)), 0, -1):
        if any(tag.startswith(text[-n_characters:]) for tag in tags):
            return n_characters
    return 0


class TextStream:
    """The text of one answer as it grows.

    Bytes that do not yet make a character wait; so does text that may turn out to be the begin of a stop string.
    Bytes that can never be UTF-8 become U+FFFD. `n_decoded` characters have come, `n_shown` of them were returned.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._held = ""
        self.is_stopped = False
        self.n_decoded = 0
        self.n_shown = 0

    @property
    def end(self) -> int:
        """Where the text of the last piece ends, in characters; a begun one counts."""
        pending, _ = self._decoder.getstate()
        return self.n_decoded + bool(pending)

    def push(self, piece: bytes) -> str:
        """Return the text that `piece` makes safe to show. Sets `is_stopped` when a stop string is complete."""
        text = self._decode(piece, is_final=False)
        if not self._stop:  # then nothing is ever held
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
        found = [index for index in (self._held.find(text) for text in self._stop) if index >= 0]
        if found:
            self.is_stopped = True
            shown, self._held = self._held[: min(found)], ""
        else:
            split = len(self._held) - (0 if is_final else n_begun(self._held, self._stop))
            shown, self._held = self._held[:split], self._held[split:]
        self.n_shown += len(shown)
        return shown
