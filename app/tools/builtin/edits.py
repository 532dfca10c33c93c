"""Replacing one exact text in a file: where it is, that it is there once, and its line endings. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from app.tools.builtin.text_form import TextForm
from quantizer.system.errors import UserError

_N_SHOWN = 5
_MAX_HINTED = 200  # lines
_COPY = "Read the file again, and copy the lines exactly."


class EditError(UserError):
    """An edit that does not fit the file; the model reads why."""


def edited(text: str, old: str, new: str, form: TextForm) -> str:
    """Return `text` with `old` replaced by `new`; everything else stays as it is.

    Line endings make no difference where `old` is looked for; `new` gets those of what it replaces. Raises EditError
    unless `old` is there exactly once.
    """
    old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    if not old:
        raise EditError("The text to replace is empty.", "Give the lines to replace, or write the whole file.")
    if old == new:
        raise EditError("The text to replace and the new text are equal.", "Give another text.")
    plain = text.replace("\r\n", "\n")
    found = list(islice(_places(plain, old), _N_SHOWN + 1))
    if not found:
        raise EditError("The text to replace is not in the file.", _hint(plain, old))
    if len(found) > 1:
        lines = ", ".join(str(plain.count("\n", 0, place) + 1) for place in found[:_N_SHOWN])
        more = " and more" if len(found) > _N_SHOWN else ""
        raise EditError(f"The text to replace is there more than once: at lines {lines}{more}.", "Add lines around it.")
    start, end = _original(text, (found[0], found[0] + len(old)))
    replaced = text[start:end]
    newline = form.newline if "\n" not in replaced else "\r\n" if "\r\n" in replaced else "\n"
    return text[:start] + new.replace("\n", newline) + text[end:]


def _places(text: str, old: str) -> Iterator[int]:
    """Yield where `old` begins, where it overlaps itself too."""
    place = text.find(old)
    while place >= 0:
        yield place
        place = text.find(old, place + 1)


def _original(text: str, places: tuple[int, int]) -> tuple[int, int]:
    """Return where `places` of the text with plain newlines are in `text`."""
    ends: list[int] = []
    place = text.find("\r\n")
    while place >= 0:
        ends.append(place - len(ends))
        place = text.find("\r\n", place + 2)
    first, last = (place + bisect_left(ends, place) for place in places)
    return first, last


def _hint(text: str, old: str) -> str:
    """Return what may help to find the text: the line at which it only differs by spaces."""
    wanted = [line.split() for line in old.strip("\n").split("\n")]
    if len(wanted) > _MAX_HINTED:
        return _COPY
    lines = [line.split() for line in text.split("\n")]
    for number in range(len(lines) - len(wanted) + 1):
        if lines[number] == wanted[0] and lines[number : number + len(wanted)] == wanted:
            return f"Line {number + 1} differs only by spaces: copy it exactly."
    return _COPY
