from __future__ import annotations

from typing import Any

import pytest

from app.client.chat_format import CallReader
from app.protocol.chat import ToolCall, with_deltas


def _piece(index: int | None = None, call_id: str = "", name: str = "", arguments: Any = None) -> dict[str, Any]:
    piece: dict[str, Any] = {"function": {"name": name or None, "arguments": arguments}}
    return piece | ({} if index is None else {"index": index}) | ({"id": call_id} if call_id else {})


def _calls(*pieces: dict[str, Any]) -> tuple[ToolCall, ...]:
    reader, calls = CallReader(), ()
    for piece in pieces:
        calls = with_deltas(calls, reader.read([piece]))
    return calls


BOTH = (ToolCall("a", "read", '{"x":1}'), ToolCall("b", "write", "{}"))


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            (
                _piece(0, "a", "read"),
                _piece(0, arguments='{"x"'),
                _piece(0, arguments=":1}"),
                _piece(1, "b", "write", "{}"),
            ),
            id="as OpenAI",
        ),
        pytest.param((_piece(0, "a", "read", {"x": 1}), _piece(0, "b", "write", {})), id="whole calls of one index"),
        pytest.param(
            (_piece(None, "a", "read"), _piece(arguments='{"x":1}'), _piece(None, "b", "write", "{}")), id="no index"
        ),
        pytest.param(
            (_piece(0, "a", "read", '{"x"'), _piece(0, "a", "read", ":1}"), _piece(1, "b", "write", "{}")),
            id="id and name in each piece",
        ),
        pytest.param(
            (_piece(3, "a", "read"), _piece(7, "b", "write", "{}"), _piece(3, arguments='{"x":1}')), id="other indices"
        ),
    ],
)
def test_pieces_of_engines_make_the_same_calls(pieces: tuple[dict[str, Any], ...]) -> None:
    found = _calls(*pieces)
    assert [(call.call_id, call.name, call.arguments.replace(" ", "")) for call in found] == [
        (call.call_id, call.name, call.arguments) for call in BOTH
    ]


def test_calls_without_ids_or_with_equal_ones_get_their_own() -> None:
    assert [call.call_id for call in _calls(_piece(0, "", "a"), _piece(1, "", "b"))] == ["call00000", "call00001"]
    assert [call.call_id for call in _calls(_piece(0, "x", "a"), _piece(1, "x", "b"))] == ["x", "call00001"]


def test_an_answer_without_calls_has_none() -> None:
    assert CallReader().read(None) == ()
