"""A call written as one JSON object that holds the tool's name and its arguments.

Owns the keys that models use. Knows nothing of what stands around the object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.service.tools.arguments import JsonSpan

__all__ = ["ObjectHead", "ObjectReader", "n_after_arguments"]

MAX_OBJECT_CHARACTERS = 64 * 1024
_WINDOW_CHARACTERS = 512  # names and ids are short
_NAME_KEYS = ("name", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters")
_OTHER_PAIRS = r'(?:"(?:id|type|tool_call_id)"\s*:\s*"[\w:.-]*"\s*,\s*)*'
# The order in which models are taught to write a call, so that its arguments can be told as they come.
_NAME_FIRST = re.compile(
    rf'\{{\s*{_OTHER_PAIRS}"(?:{"|".join(_NAME_KEYS)})"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*'
    rf'{_OTHER_PAIRS}"(?:{"|".join(_ARGUMENT_KEYS)})"\s*:\s*(?=\{{)'
)
_END = re.compile(r'\s*(?:,\s*"\w*"\s*:\s*(?:"[\w:.-]*"|[\w.-]+)\s*)*\}')


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """What the first `n_characters` say: a call of `name`, or none where that is empty.

    `arguments` are JSON text, None where they are only about to come.
    """

    n_characters: int
    name: str = ""
    arguments: str | None = None


class ObjectReader:
    """Reads one object that begins with the text."""

    def __init__(self) -> None:
        self._span = JsonSpan()
        self._n_scanned = 0

    def read(self, text: str, *, is_final: bool) -> ObjectHead | None:
        """Return what `text`, longer each time, begins with; None until more has come. `is_final`: no more will."""
        if found := _NAME_FIRST.match(text[:_WINDOW_CHARACTERS]):
            return ObjectHead(found.end(), found["name"])
        window = text[:MAX_OBJECT_CHARACTERS]
        end = self._span.end_in(window[self._n_scanned :])
        if end >= 0:
            return _head_of(window[: self._n_scanned + end])
        self._n_scanned = len(window)
        is_over = is_final or len(window) == MAX_OBJECT_CHARACTERS
        return ObjectHead(len(window)) if is_over else None


def n_after_arguments(text: str, *, is_final: bool) -> int | None:
    """Return how much of `text`, which follows the arguments, ends their object; None until more has come.

    0 where something else follows: models forget the brace.
    """
    window = text[:_WINDOW_CHARACTERS]
    if found := _END.match(window):
        return found.end()
    begin = window.lstrip()[:1]
    may_still_end = begin in ("", ",") and "}" not in window and len(window) < _WINDOW_CHARACTERS
    return None if may_still_end and not is_final else 0


def _head_of(text: str) -> ObjectHead:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ObjectHead(len(text))
    call = value.get("function") if isinstance(value.get("function"), Mapping) else value
    name = next((call[key] for key in _NAME_KEYS if isinstance(call.get(key), str)), "")
    arguments: object = next((call[key] for key in _ARGUMENT_KEYS if call.get(key) is not None), {})
    told = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ObjectHead(len(text), name if told.lstrip().startswith("{") else "", told)
