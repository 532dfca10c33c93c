"""Readers of one streamed tool call: JSON arguments, and a JSON object with name and arguments.

Owns where they end, and the keys of models. Independent of the text around a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}  # as Jinja prints them, which models imitate
_JSON_MARK = re.compile(r'\\(?:.|\Z)|["{}\[\]]', re.DOTALL)


class ArgumentsReader(Protocol):
    """Turns arguments into JSON text; `rest` is None until they end, then the text after them."""

    rest: str | None

    def push(self, text: str) -> str:
        """Return the JSON text that is certain after `text`."""
        ...

    def finish(self) -> str:
        """Return the remaining JSON text at the end of the answer."""
        ...


class JsonArguments:
    """Arguments that are JSON already: one object, whose content may be invalid, as long as brackets are balanced."""

    def __init__(self) -> None:
        self.rest: str | None = None
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def push(self, text: str) -> str:
        begin = int(self._is_escaped and bool(text))
        self._is_escaped = self._is_escaped and not text
        for found in _JSON_MARK.finditer(text, begin):
            mark = found[0]
            if mark == '"':
                self._is_in_string = not self._is_in_string
            elif mark[0] == "\\":
                self._is_escaped = len(mark) == 1
            elif not self._is_in_string:
                self._depth += 1 if mark in "{[" else -1
                if self._depth == 0:
                    self.rest = text[found.end() :]
                    return text[: found.end()]
        return text

    def finish(self) -> str:
        return ""


def inside_string(text: str) -> str:
    """Return `text` as JSON has it between quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def as_json(text: str) -> str:
    """Return `text` if it is JSON, or one of Python's words for it, else as a JSON string."""
    value = _PYTHON_WORDS.get(text.strip(), text.strip())
    try:
        json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


MAX_OBJECT_CHARACTERS = 64 * 1024
_WINDOW_CHARACTERS = 512  # names and ids are short
_NAME_KEYS = ("name", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters")
_OTHER_PAIRS = r'(?:"(?:id|type|tool_call_id)"\s*:\s*"[\w:.-]*"\s*,\s*)*'
# The order in which models are trained to write a call, which lets its arguments stream.
_NAME_FIRST = re.compile(
    rf'\{{\s*{_OTHER_PAIRS}"(?:{"|".join(_NAME_KEYS)})"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*'
    rf'{_OTHER_PAIRS}"(?:{"|".join(_ARGUMENT_KEYS)})"\s*:\s*(?=\{{)'
)
# A key that no call has, before which only those that calls begin with come.
_FOREIGN_KEY = re.compile(
    rf'\{{\s*(?:"(?:{"|".join(_NAME_KEYS)}|id|type|tool_call_id)"\s*:\s*"[^"\\]*"\s*,\s*)*'
    rf'"(?!(?:{"|".join((*_NAME_KEYS, *_ARGUMENT_KEYS))}|id|type|tool_call_id|function|index)")[^"\\]*"\s*:'
)
_END = re.compile(r'\s*(?:,\s*"\w*"\s*:\s*(?:"[\w:.-]*"|[\w.-]+)\s*)*\}')


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """The first `n_characters` of a call of `name`, which is empty for no call.

    `arguments` are JSON text, None if they follow.
    """

    n_characters: int
    name: str = ""
    arguments: str | None = None


class ObjectReader:
    """Reads one object at the start of the text. An `is_bare` one may be the answer, so that it is soon given up."""

    def __init__(self, *, is_bare: bool = False) -> None:
        self._object = JsonArguments()
        self._is_bare = is_bare
        self._n_scanned = 0

    def read(self, text: str, *, is_final: bool) -> ObjectHead | None:
        """Return the head of `text`, which grows with each call; None if more is needed and will come."""
        if found := _NAME_FIRST.match(text[:_WINDOW_CHARACTERS]):
            return ObjectHead(found.end(), found["name"])
        if self._is_bare and _FOREIGN_KEY.match(text[:_WINDOW_CHARACTERS]):
            return ObjectHead(0)
        window = text[:MAX_OBJECT_CHARACTERS]
        self._object.push(window[self._n_scanned :])
        if self._object.rest is not None:
            return _head_of(window[: len(window) - len(self._object.rest)])
        self._n_scanned = len(window)
        is_over = is_final or len(window) == MAX_OBJECT_CHARACTERS
        return ObjectHead(len(window)) if is_over else None


def n_after_arguments(text: str, *, is_final: bool) -> int | None:
    """Return how many characters of `text` after the arguments end their object, None if more is needed.

    0 if other text follows: models forget the brace.
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
    json_text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ObjectHead(len(text), name if json_text.lstrip().startswith("{") else "", json_text)
