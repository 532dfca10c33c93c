"""A thread goes on once from each answer, whatever fails and whoever asks at the same time."""

from __future__ import annotations

from typing import Any

from app.service.api.anthropic.requests import ThreadBody
from tests.app.running import RunningService

_PATH = "/v1/messages?beta=true"
_CREATE = {"type": "create"}
_N_ENDLESS = 1500  # tokens of 5 ms


def _ask(text: str, thread: dict[str, str], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "max_tokens": 4, "messages": messages, "thread": thread, **fields}


def _begun(service: RunningService) -> dict[str, str]:
    """Return what goes on with a new thread."""
    answer = service.http.post(_PATH, json=_ask("hello", _CREATE))
    return {"type": "continue", "previous_message_id": answer.json()["id"]}


def _error_code(answer: Any) -> str:
    return str(answer.json()["error"]["details"]["error_code"])


def test_a_thread_that_somebody_goes_on_with_is_refused_until_that_has_ended(service: RunningService) -> None:
    go_on = _begun(service)
    endless = _ask(f"<say>{'a' * _N_ENDLESS}</say>", go_on, stream=True, max_tokens=_N_ENDLESS)
    with service.http.stream("POST", _PATH, json=endless) as stream:
        next(stream.iter_lines())
        second = service.http.post(_PATH, json=_ask("And?", go_on))
        assert (second.status_code, _error_code(second)) == (400, "thread_continue_in_flight")

    def is_free(_: object) -> bool:
        return service.http.post(_PATH, json=_ask("And?", go_on)).status_code == 200

    service.wait_until(is_free)  # the client went away: the answer was not kept
    again = service.http.post(_PATH, json=_ask("And?", go_on))
    assert (again.status_code, _error_code(again)) == (400, "thread_already_continued")


def test_a_refused_request_leaves_the_thread_as_it_was(service: RunningService) -> None:
    go_on = _begun(service)
    for wrong in ({"tools": [{"name": "x", "input_schema": {"type": "object"}}]}, {"temperature": 2}):
        assert service.http.post(_PATH, json=_ask("And?", go_on, **wrong)).status_code == 400
    assert service.http.post(_PATH, json=_ask("And?", go_on)).status_code == 200


def test_a_new_thread_goes_on_from_nothing_whatever_else_it_names() -> None:
    assert ThreadBody(type="create", previous_message_id="msg_1").continued == ""
    assert ThreadBody(type="continue", previous_message_id="msg_1").continued == "msg_1"
