"""Which chats are wanted, by model and time, as a value and as conditions for SQLite.

Pure. Knows no query that they narrow.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ANYTHING", "Filter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which chats and moments are wanted. None: all.

    `model` is the one that answered last in a chat. Moments are milliseconds since 1970, UTC; `until_ms` is the first
    that is too late. A chat, and its title, is as old as what was last said in it.
    """

    model: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def conditions(self, moment: str) -> tuple[str, dict[str, object]]:
        """Return the conditions for chats that are not deleted, `moment` being the column of times, and their values by
        name."""
        wanted = {
            "chats.model = :model": ("model", self.model),
            f"{moment} >= :since_ms": ("since_ms", self.since_ms),
            f"{moment} < :until_ms": ("until_ms", self.until_ms),
        }
        given = {condition: pair for condition, pair in wanted.items() if pair[1] is not None}
        return " AND ".join(["chats.deleted_ms IS NULL", *given]), dict(given.values())


ANYTHING = Filter()
