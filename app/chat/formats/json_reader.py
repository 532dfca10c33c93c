"""Readers for untrusted JSON. Pure.

Owns the expected types, the errors about a value at its place, and the result of reading one chat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.chat.conversation import Transcript

__all__ = ["FormatError", "ImportedChat", "JsonField", "SkippedItem"]

_LAST_MS = 253_402_300_800_000  # the year 10000
_LEAST_MS = 10**11  # as seconds that would be the year 5138
_SHOWN_CHARACTERS = 40


class FormatError(Exception):
    """A value of the wrong type at its place."""

    def __init__(self, place: str, fault: str) -> None:
        super().__init__(f"{place} {fault}")
        self.place = place
        self.fault = fault


@dataclass(frozen=True, slots=True)
class JsonField:
    """A value and its place. A missing or null value is a field too, with `is_given` False."""

    value: object
    place: str

    @property
    def is_given(self) -> bool:
        return self.value is not None

    def at(self, key: str) -> JsonField:
        """Return a field of an object; not given if this is not an object or has no such field."""
        value = self.value.get(key) if isinstance(self.value, dict) else None
        return JsonField(value, f"{self.place}.{_short(key)}")

    def text(self) -> str:
        """Return a text, empty if not given. Raises FormatError for another type."""
        if isinstance(self.value, str):
            return self.value
        if self.value is None:
            return ""
        raise FormatError(self.place, "is not a text")

    def flag(self) -> bool:
        """Return a boolean, False if not given. Raises FormatError for another type."""
        if isinstance(self.value, bool | None):
            return bool(self.value)
        raise FormatError(self.place, "is not a boolean")

    def moment_ms(self) -> int:
        """Return a time in milliseconds since 1970, 0 if not given; the size tells seconds from milliseconds.

        Raises FormatError for another type or a time out of range.
        """
        if self.value is None:
            return 0
        if isinstance(self.value, int | float) and not isinstance(self.value, bool) and 0 <= self.value < _LAST_MS:
            return int(self.value if self.value >= _LEAST_MS else self.value * 1000)
        raise FormatError(self.place, "is not a time")

    def items(self) -> Iterator[JsonField]:
        """Yield the items of a list, none if not given. Raises FormatError for another type."""
        if not isinstance(self.value, list | None):
            raise FormatError(self.place, "is not a list")
        for index, item in enumerate(self.value or ()):
            yield JsonField(item, f"{self.place}[{index}]")

    def entries(self) -> Iterator[tuple[str, JsonField]]:
        """Yield the fields of an object by name, none if not given. Raises FormatError for another type."""
        if not isinstance(self.value, dict | None):
            raise FormatError(self.place, "is not an object")
        for key in self.value or ():
            yield key, self.at(key)


def _short(key: str) -> str:
    return key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}…"


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """Something in a file that was not imported: its place, and why."""

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class ImportedChat:
    """A chat to store, and what was skipped in it."""

    transcript: Transcript
    skipped: tuple[SkippedItem, ...]
