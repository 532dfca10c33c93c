"""A thread goes on once from each answer, whatever fails and whoever asks at the same time."""

from __future__ import annotations

from typing import Any

import pytest

from app.service.api.anthropic.requests import MessagesBody, ThreadBody
from app.service.api.anthropic.threads import continuing
from app.service.http.errors import RefusedError
from tests.app.running import RunningService

_PATH = "/v1/messages?beta=true"
_CREATE = {"type": "create"}


def _ask(text: str, thread: dict[str, str], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "max_tokens": 4, "messages": messages, "thread": thread, **fields}


def _go_on(name: str) -> dict[str, str]:
    return {"type": "continue", "previous_message_id": name}


def test_a_thread_that_somebody_goes_on_with_is_refused_until_that_has_ended() -> None:
    first, other, new = (
        MessagesBody.model_validate(_ask("And?", thread)) for thread in (_go_on("msg_1"), _go_on("msg_2"), _CREATE)
    )
    open_threads: set[tuple[str, str]] = set()
    with continuing(open_threads, first, ""), continuing(open_threads, other, ""), continuing(open_threads, new, ""):
        with pytest.raises(RefusedError) as refused, continuing(open_threads, first, ""):
            pass
        assert (refused.value.status, refused.value.code) == (400, "thread_continue_in_flight")
        with continuing(open_threads, new, ""), continuing(open_threads, first, "another's key"):
            assert open_threads == {("", "msg_1"), ("", "msg_2"), ("another's key", "msg_1")}
    assert not open_threads
    with continuing(open_threads, first, ""):
        assert open_threads == {("", "msg_1")}


def test_a_refused_request_leaves_the_thread_as_it_was(service: RunningService) -> None:
    go_on = _go_on(service.http.post(_PATH, json=_ask("hello", _CREATE)).json()["id"])
    for wrong in ({"tools": [{"name": "x", "input_schema": {"type": "object"}}]}, {"temperature": 2}):
        assert service.http.post(_PATH, json=_ask("And?", go_on, **wrong)).status_code == 400
    with service.http.stream("POST", _PATH, json=_ask("<say>a</say>", go_on, stream=True)) as answer:
        assert answer.status_code == 200
        assert "message_stop" in answer.read().decode()
    again = service.http.post(_PATH, json=_ask("And?", go_on))
    assert again.json()["error"]["details"]["error_code"] == "thread_already_continued", "a streamed answer counts too"


def test_a_new_thread_goes_on_from_nothing_whatever_else_it_names() -> None:
    assert ThreadBody(type="create", previous_message_id="msg_1").continued == ""
    assert ThreadBody(type="continue", previous_message_id="msg_1").continued == "msg_1"
