"""What a client is told of calls, part by part.

Owns how parts come together and the ids of calls. Knows nothing of how models write calls.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["CallPart", "Told", "merged", "new_call_id"]

_ID_CHARACTERS = 9  # Mistral's templates take nine letters and digits, the others anything
_ID_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class CallPart:
    """What is new in call `index`: its id and name come with its first part, `arguments` piece by piece as JSON."""

    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""

    def arguments_object(self) -> dict[str, Any] | None:
        """Return the arguments of a call that is complete, None of one that was cut short."""
        try:
            value = json.loads(self.arguments or "{}")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Told:
    """New text, and new parts of calls, one for each call at most."""

    text: str = ""
    calls: tuple[CallPart, ...] = ()


def merged(parts: Iterable[CallPart]) -> tuple[CallPart, ...]:
    """Return `parts` with those of one call put together."""
    calls: dict[int, CallPart] = {}
    for part in parts:
        begun = calls.get(part.index)
        calls[part.index] = replace(begun, arguments=begun.arguments + part.arguments) if begun else part
    return tuple(calls.values())


def new_call_id() -> str:
    """Return an id that any template takes."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_CHARACTERS))
