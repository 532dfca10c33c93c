"""A value of a JSON file and its place in it: what every reader of a foreign format asks.

Owns the types that are expected and the words for what is not as expected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Field", "UnfitError"]

_LAST_MS = 253_402_300_800_000  # the year 10000
_LEAST_MS = 10**11  # as seconds that would be the year 5138
_SHOWN_CHARACTERS = 40


class UnfitError(Exception):
    """A value that is not what its place asks for."""

    def __init__(self, place: str, fault: str) -> None:
        super().__init__(f"{place} {fault}")
        self.place = place
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Field:
    """A value and where it lies. What is missing or null is a field too: it is `not given`."""

    value: object
    place: str

    @property
    def is_given(self) -> bool:
        return self.value is not None

    def at(self, key: str) -> Field:
        """Return the field of an object; not given where this is no object or has no such field."""
        value = self.value.get(key) if isinstance(self.value, dict) else None
        return Field(value, f"{self.place}.{_short(key)}")

    def text(self) -> str:
        """Return a text, empty where none is given. Raises UnfitError for anything else."""
        if isinstance(self.value, str):
            return self.value
        if self.value is None:
            return ""
        raise UnfitError(self.place, "is no text")

    def flag(self) -> bool:
        """Return a truth value, False where none is given. Raises UnfitError for anything else."""
        if isinstance(self.value, bool | None):
            return bool(self.value)
        raise UnfitError(self.place, "is neither true nor false")

    def moment_ms(self) -> int:
        """Return a moment in milliseconds since 1970, 0 where none is given: seconds and milliseconds are told apart by
        their size. Raises UnfitError for what is no moment."""
        if self.value is None:
            return 0
        if isinstance(self.value, int | float) and not isinstance(self.value, bool) and 0 <= self.value < _LAST_MS:
            return int(self.value if self.value >= _LEAST_MS else self.value * 1000)
        raise UnfitError(self.place, "is no moment")

    def items(self) -> Iterator[Field]:
        """Yield the items of a list, none where it is not given. Raises UnfitError for anything else."""
        if not isinstance(self.value, list | None):
            raise UnfitError(self.place, "is no list")
        for index, item in enumerate(self.value or ()):
            yield Field(item, f"{self.place}[{index}]")

    def entries(self) -> Iterator[tuple[str, Field]]:
        """Yield the fields of an object by name, none where it is not given. Raises UnfitError for anything else."""
        if not isinstance(self.value, dict | None):
            raise UnfitError(self.place, "is no object")
        for key in self.value or ():
            yield key, self.at(key)


def _short(key: str) -> str:
    return key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}…"
