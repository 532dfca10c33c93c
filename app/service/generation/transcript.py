"""The texts of overlapping windows as one text that grows, and what each window has of it. Pure.

Two windows of a sound have its words between them in common. They are joined within the longest run of words that the
end of the one and the begin of the other share; what stands on the far side of it is a word that was cut, or misheard.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

N_OVERLAPPING = 16  # words, of either window, that may be of the sound that both have: 2 s of fast speech
# Scripts without spaces: Chinese, Japanese, Thai, Lao, Burmese, Khmer. There each character counts as a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_ENDS_UNSPACED, _BEGINS_UNSPACED = re.compile(rf"[{_UNSPACED}]\Z"), re.compile(rf"[{_UNSPACED}]")


@dataclass(frozen=True, slots=True)
class _Word:
    begin: int
    end: int
    key: str  # by which it equals another: without case and punctuation


def _words(text: str) -> list[_Word]:
    found = ((match.start(), match.end(), match.group()) for match in _WORD.finditer(text))
    return [_Word(begin, end, _key(word)) for begin, end, word in found]


def _key(word: str) -> str:
    return "".join(filter(str.isalnum, word.casefold())) or word


def join(tail: str, head: str) -> tuple[str, str]:
    """Return `tail` and `head`, the end of one window and the begin of the next, without what both have.

    One word in common counts only where the one ends and the other begins with it, for "the" is everywhere.
    """
    before, after = _words(tail), _words(head)
    n_common, end, begin = _longest_run([word.key for word in before], [word.key for word in after])
    is_meeting = n_common == 1 and end == len(before) and begin == 0
    if n_common < 2 and not is_meeting:
        return tail, head
    return tail[: before[end - 1].end], head[after[begin + n_common - 1].end :]


def _longest_run(before: Sequence[str], after: Sequence[str]) -> tuple[int, int, int]:
    """Return the length of the longest run of words in both, where it ends in `before` and begins in `after`: of
    several the last in `before` and the first in `after`."""
    best = (0, 0, 0)
    lengths = [0] * (len(after) + 1)  # of the runs that end with the last word of `before` and each of `after`
    for end, word in enumerate(before, 1):
        lengths = [0, *(lengths[index] + 1 if word == other else 0 for index, other in enumerate(after))]
        for index, length in enumerate(lengths):
            if length and (length, end, -(index - length)) >= (best[0], best[1], -best[2]):
                best = (length, end, index - length)
    return best


def separator(before: str, after: str) -> str:
    """Return what stands between two texts: a space, but nothing in scripts without spaces."""
    if not before or not after or (_ENDS_UNSPACED.search(before) and _BEGINS_UNSPACED.match(after)):
        return ""
    return " "


class Transcript:
    """Text that comes window by window, piece by piece. `text` is what is certain of it: it only grows, and does not
    depend on how the windows' texts are cut into pieces. Of a window that the next one overlaps the last words are held
    back until that one has its first."""

    def __init__(self) -> None:
        self.text = ""
        self._parts: list[str] = []  # what each window has of the text
        self._new = ""  # of the last window, and not certain yet
        self._held = ""  # the last words of the window before, while they may come again
        self._is_joining = self._is_cut = False

    def begin_window(self, *, is_cut: bool) -> None:
        """Begin the next window; with `is_cut` another one will overlap it."""
        self._parts.append("")
        self._is_cut = is_cut

    def push(self, text: str) -> str:
        """Take a piece of the window's text; return what became certain."""
        n_before = len(self.text)
        self._new += text
        if self._is_joining and len(_words(self._new)) > N_OVERLAPPING:  # the last of them may go on
            self._join()
        if not self._is_joining:
            self._settle()
        return self.text[n_before:]

    def end_window(self) -> str:
        """End the window; return what became certain."""
        n_before = len(self.text)
        if self._is_joining:
            self._join()
        self._settle()
        self._held, self._new, self._is_joining = self._new.rstrip(), "", self._is_cut
        return self.text[n_before:]

    def end(self) -> str:
        """End the text behind a window that none followed, whatever was expected; return what became certain."""
        n_before = len(self.text)
        if self._is_joining:
            self._add(len(self._parts) - 1, self._held)
        self._held, self._is_joining = "", False
        return self.text[n_before:]

    def part(self, index: int) -> str:
        """What window `index` has of the text: all of it once the next window has ended."""
        return self._parts[index]

    def _join(self) -> None:
        """Add what was held back of the window before, without what this one has too."""
        words = _words(self._new)
        n_compared = words[N_OVERLAPPING - 1].end if len(words) > N_OVERLAPPING else len(self._new)
        kept, head = join(self._held, self._new[:n_compared])
        self._add(len(self._parts) - 2, kept)
        self._new = head + self._new[n_compared:]
        self._held, self._is_joining = "", False

    def _settle(self) -> None:
        """Add what is certain of this window."""
        n_certain = len(self._new.rstrip())
        if self._is_cut:
            words = _words(self._new)
            n_certain = words[-N_OVERLAPPING - 1].end if len(words) > N_OVERLAPPING else 0
        self._add(len(self._parts) - 1, self._new[:n_certain])
        self._new = self._new[n_certain:]

    def _add(self, index: int, text: str) -> None:
        if not self._parts[index]:
            text = text.lstrip()
            self.text += separator(self.text, text)
        self.text += text
        self._parts[index] += text
