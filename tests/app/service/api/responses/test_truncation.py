"""`truncation: "auto"`: the oldest turns leave a stored conversation that no longer fits the context."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from app.protocol.chat import Message, ToolCall
from app.protocol.errors import ContextOverflowError
from app.service.api.responses.exchange import without_oldest
from tests.app.running import RunningService
from tests.app.service.api.responses.test_stored import ask, say, texts

SYSTEM = Message("system", "Be kind.")
TURNS = [Message(role, f"{role} {number} " + "x" * 100) for number in range(10) for role in ("user", "assistant")]


def test_the_newest_turns_stay_with_the_system_message() -> None:
    left = without_oldest([SYSTEM, *TURNS], ContextOverflowError(2000, 1000))
    assert left[0] == SYSTEM
    assert left[1:] == TURNS[-len(left) + 1 :]
    assert left[1].role == "user"
    assert 5 <= len(left) <= 9


def test_a_result_never_comes_without_its_call() -> None:
    call = Message("assistant", calls=(ToolCall("a", "f"),))
    turn = [Message("user", "Go."), call, Message("tool", "y" * 500), Message("assistant", "Done.")]
    left = without_oldest([*turn, *turn, *turn], ContextOverflowError(10_000, 10))
    assert left == turn


@pytest.mark.parametrize("messages", [[Message("user", "a")], [SYSTEM, Message("user", "a")], [SYSTEM], [*TURNS[:2]]])
def test_the_last_question_never_leaves(messages: list[Message]) -> None:
    with pytest.raises(ContextOverflowError):
        without_oldest(messages, ContextOverflowError(2000, 1000))


def test_it_ends_where_estimates_are_wrong() -> None:
    lengths = [len(TURNS) + 1]
    messages = [SYSTEM, *TURNS]
    with suppress(ContextOverflowError):
        while messages := without_oldest(messages, ContextOverflowError(1001, 1000)):
            lengths.append(len(messages))
    assert lengths == sorted(set(lengths), reverse=True)
    assert lengths[-1] == 3


@pytest.fixture(scope="module")
def short(start_service: Callable[..., RunningService], tmp_path_factory: pytest.TempPathFactory) -> RunningService:
    """A service with a short context."""
    return start_service(data_dir=str(tmp_path_factory.mktemp("stored")), ctx="1024")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_conversation_goes_on_beyond_the_context(short: RunningService, stream: bool) -> None:
    """openai-agents 0.24 (`ModelSettings(truncation="auto")`): the client sends only what is new."""
    previous = None
    for number in range(12):
        fields: dict[str, Any] = {"previous_response_id": previous, "truncation": "auto", "stream": stream}
        answer = ask(short, input=say(f"number {number} " + "x" * 150), instructions="Be kind.", **fields)
        assert texts(answer["output"])[0].startswith(f"number {number} ")
        assert answer["truncation"] == "auto"
        previous = answer["id"]
    (warning,) = answer["warnings"]
    assert "left out" in warning
    assert len(short.http.get(f"/v1/responses/{previous}/input_items?limit=100").json()["data"]) == 23
    body = {"input": say("a"), "previous_response_id": previous, "stream": stream}
    assert short.http.post("/v1/responses", json=body).status_code == 400
