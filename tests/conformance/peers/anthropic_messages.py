"""Anthropic's Messages API, as its reference and its SDKs (Python 2.14, JavaScript 1.14) have it."""

from __future__ import annotations

from typing import Any

from tests.conformance.row import MODEL, Ask, Row

_PATH = "POST /v1/messages"
_HELLO: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "messages": [{"role": "user", "content": "hello"}]}

ROWS: tuple[Row, ...] = (
    Row(
        name="a message is an object with its usage",
        ask=Ask(_PATH, _HELLO),
        source="API reference, Create a Message",
        holds={"type": "message", "role": "assistant", "usage.output_tokens": int, "stop_reason": "max_tokens"},
    ),
)
