"""Reading the calls of a streamed answer: OpenAI's deltas, as this service and engines of others send them.

Owns which pieces make one call: some engines leave out the index, give all calls the same one, send no id, or repeat
the name with each piece.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.protocol.tools import ToolCallDelta


class CallReader:
    """The calls of one answer, numbered from 0 in the order in which they begin. Each has an id that no other has."""

    def __init__(self) -> None:
        self._index_of: dict[object, int] = {}  # by the engine's index
        self._ids: list[str] = []  # as the engine gave them
        self._used_ids: set[str] = set()

    def read(
        self, pieces: Sequence[Mapping[str, Any]] | None, n_tokens: int, response_id: str
    ) -> tuple[ToolCallDelta, ...]:
        """Return the pieces of a delta's `tool_calls`. Raises AttributeError or TypeError for another form."""
        return tuple(self._read(piece, n_tokens, response_id) for piece in pieces or ())

    def _read(self, piece: Mapping[str, Any], n_tokens: int, response_id: str) -> ToolCallDelta:
        function = piece.get("function") or {}
        call_id, name = str(piece.get("id") or ""), str(function.get("name") or "")
        given = piece.get("index")
        index = self._index_of.get(given, -1) if given is not None else len(self._ids) - 1
        is_new = index < 0 or (bool(name) and call_id != self._ids[index] and bool(call_id or given is None))
        if is_new:
            index = len(self._ids)
            self._ids.append(call_id)
        self._index_of[given] = index
        return ToolCallDelta(
            index,
            n_tokens,
            call_id=self._unique(call_id, index) if is_new else "",
            name=name if is_new else "",
            arguments=_text(function.get("arguments")),
            response_id=response_id,
        )

    def _unique(self, call_id: str, index: int) -> str:
        """Return the engine's id, or one of the nine characters that Mistral's templates want."""
        unique = call_id if call_id and call_id not in self._used_ids else f"call{index:05d}"
        self._used_ids.add(unique)
        return unique


def _text(arguments: object) -> str:
    """Return a piece of arguments; a few engines send an object."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
