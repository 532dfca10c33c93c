"""The scripted client keeps to the calls of the real one."""

from __future__ import annotations

import inspect

import pytest

from app.client import ServiceClient, TextDelta
from app.client_fake import COMPLETED, ScriptedClient, ScriptedReply
from quantizer.errors import EngineError


@pytest.mark.parametrize("name", ["status", "load", "chat"])
def test_scripted_client_has_the_signatures_of_the_real_one(name):
    assert inspect.signature(getattr(ScriptedClient, name)) == inspect.signature(getattr(ServiceClient, name))


async def test_replies_come_in_order_and_the_last_serves_all_later_questions():
    client = ScriptedClient(ScriptedReply(deltas=("a",)), ScriptedReply(deltas=("b", "c")))
    answers = [[event async for event in client.chat([])] for _ in range(3)]
    assert answers[0] == [TextDelta("a", 1), COMPLETED]
    assert answers[1] == answers[2] == [TextDelta("b", 1), TextDelta("c", 2), COMPLETED]


async def test_scripted_error_ends_an_answer_and_is_no_abort():
    client = ScriptedClient(ScriptedReply(ending=EngineError("died")))
    with pytest.raises(EngineError, match="died"):
        await anext(client.chat([]))
    assert client.n_aborted == 0
