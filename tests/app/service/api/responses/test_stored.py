"""Stored responses: `previous_response_id`, `item_reference`, `store`, conversations, and the routes of what is stored.

Bodies named after a client are what that client sends.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.service.api.responses.exchange import MAX_RUNNING
from app.service.api.responses.store import FILE_NAME
from tests.app.running import RunningService
from tests.app.service.api import sdk
from tests.app.service.api.responses.test_routes import CALL, TOOL, _events
from tests.patience import PATIENCE_S

Start = Callable[..., RunningService]


def say(text: str) -> str:
    return f"<say>{text}</say>"


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[sdk.openai.OpenAI]:
    with sdk.openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(service: RunningService, **fields: Any) -> dict[str, Any]:
    """Return the answer to a request, streamed and whole alike."""
    body = {"model": "tiny", "max_output_tokens": 200, "temperature": 0, **fields}
    response = service.http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    if not fields.get("stream"):
        return dict(response.json())
    return dict(_events(response.text)[-1]["response"])


def texts(items: list[dict[str, Any]]) -> list[str]:
    return [item["content"][0]["text"] for item in items if item["type"] == "message"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_second_turn_of_the_ai_sdk_refers_to_the_items_of_the_first(service: RunningService, stream: bool) -> None:
    """@ai-sdk/openai 3.0.141 with ai 6.0.326 (generateText, streamText): assistant parts come as references."""
    question = {"role": "user", "content": [{"type": "input_text", "text": say("Hej.")}]}
    first = ask(service, input=[question], stream=stream)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    again = {"role": "user", "content": [{"type": "input_text", "text": say("Hej hej.")}]}
    second = ask(service, input=[question, reference, again], stream=stream)
    assert texts(second["output"]) == ["Hej hej."]
    assert second["usage"]["input_tokens"] == len(
        f"<user>{say('Hej.')}\n<assistant>Hej.\n<user>{say('Hej hej.')}\n<assistant>"
    )
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"]


def test_the_tool_loop_of_the_ai_sdk_with_the_previous_response_sends_only_the_result(service: RunningService) -> None:
    """@ai-sdk/openai 3.0.141 with `previousResponseId`: calls and reasoning are left out, text comes as a reference."""
    first = ask(service, input=say(f"One moment.{CALL}"), tools=[TOOL])
    message, call = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": say("It snows.")}
    sent = [{"type": "item_reference", "id": message["id"]}, result]
    second = ask(service, input=sent, tools=[TOOL], previous_response_id=first["id"])
    assert texts(second["output"]) == ["It snows."]
    items = service.http.get(f"/v1/responses/{second['id']}/input_items?order=asc").json()["data"]
    assert [item["type"] for item in items] == ["message", "message", "function_call", "function_call_output"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_loop_of_the_ai_sdk_refers_to_text_and_repeats_the_call(service: RunningService, stream: bool) -> None:
    """@ai-sdk/openai 3.0.141 with ai 6.0.326 (`stopWhen`): text by reference, the call whole and without its id."""
    question = {"role": "user", "content": [{"type": "input_text", "text": say(f"One moment.{CALL}")}]}
    first = ask(service, input=[question], tools=[TOOL], tool_choice="auto", stream=stream)
    message, call = first["output"]
    repeated = {name: call[name] for name in ("type", "call_id", "name", "arguments")}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": say("It snows.")}
    sent = [question, {"type": "item_reference", "id": message["id"]}, repeated, result]
    second = ask(service, input=sent, tools=[TOOL], tool_choice="auto", stream=stream)
    assert texts(second["output"]) == ["It snows."]
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"]


def test_items_that_the_conversation_has_are_not_repeated(service: RunningService) -> None:
    first = ask(service, input=[{"id": "msg_mine", "role": "user", "content": say("One.")}])

    def n_tokens(*items: dict[str, Any]) -> int:
        answer = ask(service, input=list(items), previous_response_id=first["id"])
        assert texts(answer["output"]) == ["Two."]
        return int(answer["usage"]["input_tokens"])

    own = {"role": "user", "content": [{"type": "input_text", "text": say("Two.")}]}
    n_without = n_tokens(own)
    assert n_tokens(*first["output"], own) == n_without
    assert n_tokens({"type": "item_reference", "id": first["output"][0]["id"]}, own) == n_without
    assert n_tokens({**own, "id": "msg_mine"}) == n_without  # a question of its own with an id that is used again


def test_a_reference_may_have_an_id_alone(service: RunningService) -> None:
    """openai 3.54: the `type` of an `ItemReference` is optional."""
    first = ask(service, input=say("One."))
    second = ask(service, input=[{"id": first["output"][0]["id"]}, {"role": "user", "content": say("Two.")}])
    assert texts(second["output"]) == ["Two."]


@pytest.mark.slow
def test_a_conversation_by_previous_responses_has_the_prompt_of_one_that_is_sent_whole(
    client: sdk.openai.OpenAI,
) -> None:
    """openai 3.54 (Python)."""
    previous, sent, n_before = None, [], 0
    for number in range(4):
        asked: Any = {"model": "tiny", "temperature": 0, "instructions": "Be kind."}
        question = {"role": "user", "content": say(f"answer {number}")}
        by_id = client.responses.create(input=[question], previous_response_id=previous, **asked)
        sent.append(question)
        whole = client.responses.create(input=sent, store=False, **asked)
        assert by_id.usage is not None
        assert whole.usage is not None
        assert by_id.usage.input_tokens == whole.usage.input_tokens
        assert by_id.output_text == whole.output_text == f"answer {number}"
        assert by_id.usage.input_tokens_details.cached_tokens >= n_before  # the prefix of the one before it
        n_before = by_id.usage.input_tokens
        sent.append({"role": "assistant", "content": by_id.output_text})
        previous = by_id.id


def test_instructions_are_not_carried_over(service: RunningService) -> None:
    """openai 3.54, `Response.instructions`."""
    first = ask(service, input=say("a"), instructions="Be kind, and very, very brief.")
    second = ask(service, input=say("b"), previous_response_id=first["id"])
    assert second["usage"]["input_tokens"] == len(f"<user>{say('a')}\n<assistant>a\n<user>{say('b')}\n<assistant>")
    assert second["instructions"] is None


def test_a_stored_response_is_retrieved_and_deleted(client: sdk.openai.OpenAI) -> None:
    made = client.responses.create(model="tiny", input=say("Hej."), metadata={"a": "b"})
    found = client.responses.retrieve(made.id)
    assert found.to_dict() == made.to_dict()
    items = client.responses.input_items.list(made.id)
    assert texts([item.to_dict() for item in items]) == [say("Hej.")]
    client.responses.delete(made.id)
    for ask_again in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(sdk.openai.NotFoundError):
            ask_again(made.id)


def test_input_items_come_in_pages(client: sdk.openai.OpenAI) -> None:
    questions: list[Any] = [{"role": "user", "content": f"number {number}"} for number in range(45)]
    made = client.responses.create(model="tiny", input=questions, max_output_tokens=1)
    newest = [item.to_dict() for item in client.responses.input_items.list(made.id)]  # which walks through the pages
    oldest = [item.to_dict() for item in client.responses.input_items.list(made.id, order="asc", limit=7)]
    assert texts(oldest) == [f"number {number}" for number in range(45)]
    assert newest == oldest[::-1]


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=msg_none"])
def test_an_invalid_page_is_refused(service: RunningService, query: str) -> None:
    made = ask(service, input=say("a"))
    assert service.http.get(f"/v1/responses/{made['id']}/input_items?{query}").status_code == 400


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_stored_is_refused_by_name(service: RunningService, stream: bool) -> None:
    def refusal(**fields: Any) -> tuple[int, str]:
        response = service.http.post("/v1/responses", json={"model": "tiny", "stream": stream, **fields})
        error = response.json()["error"]
        assert "responses_size" in error["message"]
        return response.status_code, error["code"]

    assert refusal(input="a", previous_response_id="resp_none") == (400, "previous_response_not_found")
    assert refusal(input=[{"type": "item_reference", "id": "msg_none"}]) == (404, "not_found")
    assert refusal(input="a", conversation="conv_none") == (404, "not_found")
    unstored = ask(service, input=say("a"), store=False, stream=stream)
    assert unstored["store"] is False
    assert refusal(input="a", previous_response_id=unstored["id"]) == (400, "previous_response_not_found")


def test_only_one_conversation_is_gone_on_with(service: RunningService) -> None:
    body = {"model": "tiny", "input": "a", "previous_response_id": "resp_1", "conversation": "conv_1"}
    assert service.http.post("/v1/responses", json=body).status_code == 400


def test_nothing_is_written_for_clients_that_store_nothing(start_service: Start, tmp_path: Path) -> None:
    """Codex 0.169 sends `store: false`; with the setting nobody's answers are stored."""
    for settings in ({}, {"responses_size": "0"}):
        service = start_service(data_dir=str(tmp_path / "data"), **settings)
        for stream in (False, True):
            fields: dict[str, Any] = {} if settings else {"store": False}
            assert ask(service, input=say("secret"), stream=stream, **fields)["store"] is False
        assert not list((tmp_path / "data").glob(f"{FILE_NAME}*"))
    assert service.http.post("/v1/conversations", json={}).status_code == 400


def test_a_stored_response_outlives_its_service(start_service: Start, tmp_path: Path) -> None:
    places = {"data_dir": str(tmp_path / "data")}
    before = start_service(**places)
    first = ask(before, input=say("One."))
    conversation = before.http.post("/v1/conversations", json={}).json()
    ask(before, input=say("Two."), conversation=conversation["id"])
    after = start_service(**places)  # while the other one still runs
    second = ask(after, input=say("Three."), previous_response_id=first["id"])
    assert texts(second["output"]) == ["Three."]
    assert len(after.http.get(f"/v1/conversations/{conversation['id']}/items").json()["data"]) == 2
    assert before.http.get(f"/v1/responses/{second['id']}").json() == second


@pytest.mark.slow
def test_the_prefix_of_a_stored_response_outlives_the_engine_and_the_service(
    start_service: Start, tmp_path: Path
) -> None:
    places = {"data_dir": str(tmp_path / "data"), "cache_dir": str(tmp_path / "cache"), "engine": "llama"}
    before = start_service(model="guide", **places)
    body: dict[str, Any] = {"input": "How do I quantize a model?", "max_output_tokens": 8}
    first = before.http.post("/v1/responses", json=body).json()
    before.http.post("/api/generate", json={"keep_alive": 0})  # `ollama stop`
    before.wait_until(lambda model: model["state"] == "unloaded")
    body = {"input": "And now?", "previous_response_id": first["id"], "max_output_tokens": 1}
    usage = before.http.post("/v1/responses", json=body).json()["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"]
    assert before.process.stdin is not None
    before.process.stdin.close()
    assert before.process.wait(timeout=PATIENCE_S) == 0
    after = start_service(model="guide", **places)
    body = {"input": "And then?", "previous_response_id": first["id"], "max_output_tokens": 1}
    usage = after.http.post("/v1/responses", json=body).json()["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"]


def test_an_answer_that_cannot_be_stored_still_comes(start_service: Start, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    service = start_service(data_dir=str(tmp_path))
    for stream in (False, True):
        answer = ask(service, input=say("Hej."), stream=stream)
        assert texts(answer["output"]) == ["Hej."]
        assert answer["store"] is False
        (warning,) = answer["warnings"]
        assert "not a database" in warning
        assert str(tmp_path) not in warning


def test_a_background_response_that_cannot_be_stored_is_refused(start_service: Start, tmp_path: Path) -> None:
    """Its client hangs up: what is not stored would be lost."""
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    service = start_service(data_dir=str(tmp_path))
    refused = service.http.post("/v1/responses", json={"model": "tiny", "input": say("Hej."), "background": True})
    assert refused.status_code == 500
    assert "not a database" in refused.json()["error"]["message"]


def test_the_official_client_goes_on_with_a_conversation(client: sdk.openai.OpenAI) -> None:
    """openai 3.54 (Python): `client.conversations`."""
    conversation = client.conversations.create(
        metadata={"topic": "demo"}, items=[{"type": "message", "role": "user", "content": say("One.")}]
    )
    first = client.responses.create(model="tiny", input=say("Two."), conversation=conversation.id)
    second = client.responses.create(model="tiny", input=say("Three."), conversation={"id": conversation.id})
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    assert second.output_text == "Three."
    items = [item.to_dict() for item in client.conversations.items.list(conversation.id, order="asc")]
    assert texts(items) == [say("One."), say("Two."), "Two.", say("Three."), "Three."]
    first_id = str(items[0]["id"])
    assert client.conversations.items.retrieve(first_id, conversation_id=conversation.id).to_dict() == items[0]
    left = client.conversations.items.delete(first_id, conversation_id=conversation.id)
    assert left.id == conversation.id
    assert client.conversations.update(conversation.id, metadata={"topic": "other"}).metadata == {"topic": "other"}
    assert client.conversations.retrieve(conversation.id).metadata == {"topic": "other"}
    assert len(list(client.conversations.items.list(conversation.id))) == 4
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(sdk.openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_a_session_of_the_agents_sdk_is_a_conversation(client: sdk.openai.OpenAI) -> None:
    """openai-agents 0.24 (`OpenAIConversationsSession`): it adds the items itself, and pops the newest one."""
    session = client.conversations.create(items=[])
    turn: Any = [
        {"role": "user", "content": "What is the weather?"},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}", "id": "fc_own_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "It snows."},
    ]
    added = client.conversations.items.create(session.id, items=turn)
    assert [item.type for item in added.data] == ["message", "function_call", "function_call_output"]
    (newest,) = client.conversations.items.list(session.id, limit=1, order="desc").data
    assert newest.type == "function_call_output"
    client.conversations.items.delete(str(newest.id), conversation_id=session.id)
    assert [item.type for item in client.conversations.items.list(session.id, order="asc")] == [
        "message",
        "function_call",
    ]


def test_a_conversation_is_extended_though_the_response_is_not_stored(service: RunningService) -> None:
    conversation = service.http.post("/v1/conversations", json={}).json()["id"]
    answer = ask(service, input=say("a"), conversation=conversation, store=False)
    assert service.http.get(f"/v1/responses/{answer['id']}").status_code == 404
    assert len(service.http.get(f"/v1/conversations/{conversation}/items").json()["data"]) == 2


def test_input_tokens_are_counted_with_the_conversation(client: sdk.openai.OpenAI) -> None:
    """openai 3.54 (Python): `client.responses.input_tokens.count`."""
    first = client.responses.create(model="tiny", input=say("a"))
    asked: Any = {"model": "tiny", "input": "b", "instructions": "Be kind.", "previous_response_id": first.id}
    counted = client.responses.input_tokens.count(**asked)
    answer = client.responses.create(**asked, max_output_tokens=1)
    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens
    assert counted.object == "response.input_tokens"


def _all_items(service: RunningService, response_id: str) -> list[dict[str, Any]]:
    return list(service.http.get(f"/v1/responses/{response_id}/input_items?limit=100").json()["data"])


def test_a_file_of_a_service_holds_each_text_once(start_service: Start, tmp_path: Path) -> None:
    """By the previous response, and by clients that send the whole conversation, without ids, each time."""
    service = start_service(data_dir=str(tmp_path))
    long, previous = "x" * 1000, None
    repeated: list[dict[str, Any]] = [{"role": "user", "content": long}]
    for number in range(5):
        repeated += [{"role": "user", "content": say("Yes.")}]
        answer = ask(service, input=repeated)
        repeated += [{"type": "item_reference", "id": answer["output"][0]["id"]}]
        sent = [{"role": "user", "content": long}, {"role": "user", "content": say(str(number))}]
        previous = ask(service, input=sent if previous is None else say(str(number)), previous_response_id=previous)[
            "id"
        ]
    ids = [item["id"] for item in _all_items(service, answer["id"])]
    assert len(ids) == len(set(ids)) == 1 + 4 * 2 + 1
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        (found,) = connection.execute("SELECT count(*) FROM contents WHERE item LIKE ?", (f"%{long}%",)).fetchone()
    assert found == 1


def test_a_web_page_cannot_read_what_is_stored(service: RunningService) -> None:
    made = ask(service, input=say("secret"))
    page = {"origin": "https://example.org"}
    for path in (f"/v1/responses/{made['id']}", f"/v1/responses/{made['id']}/input_items"):
        assert service.http.get(path, headers=page).status_code == 403
    assert service.http.delete(f"/v1/responses/{made['id']}", headers=page).status_code == 403
    assert service.http.get(f"/v1/responses/{made['id']}").status_code == 200


def test_a_background_response_is_polled(client: sdk.openai.OpenAI) -> None:
    """openai 3.54 (Python): `background=True`, then `retrieve` until it has ended."""
    made = client.responses.create(model="tiny", input=say("Hej."), background=True)
    assert made.status == "queued"
    with client.responses.retrieve(made.id, stream=True) as stream:
        kinds = [event.type.removeprefix("response.") for event in stream]
    assert kinds[:3] == ["created", "queued", "in_progress"]
    assert kinds[-1] == "completed"
    found = client.responses.retrieve(made.id)
    assert (found.status, found.output_text, found.background) == ("completed", "Hej.", True)
    assert client.responses.cancel(made.id).status == "completed"
    assert client.responses.create(model="tiny", input=say("b"), previous_response_id=made.id).output_text == "b"


def test_a_response_in_progress_is_not_gone_on_with(service: RunningService) -> None:
    body = {"model": "tiny", "input": say("x" * 3000), "background": True}
    made = service.http.post("/v1/responses", json=body).json()
    refused = service.http.post("/v1/responses", json={"input": "a", "previous_response_id": made["id"]})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "previous_response_in_progress"
    service.http.post(f"/v1/responses/{made['id']}/cancel")
    assert service.http.post("/v1/responses", json={"input": say("a"), "previous_response_id": made["id"]}).is_success


def test_only_so_many_responses_run_in_the_background(start_service: Start, tmp_path: Path) -> None:
    service = start_service(data_dir=str(tmp_path))
    body = {"model": "tiny", "input": say("x" * 3000), "background": True}
    statuses: list[int] = []
    while 429 not in statuses:  # some may have ended meanwhile
        statuses.append(service.http.post("/v1/responses", json=body).status_code)
        assert len(statuses) < 5 * MAX_RUNNING
    assert statuses[:-1] == [200] * (len(statuses) - 1)
    assert len(statuses) > MAX_RUNNING
    service.let_end()  # they would run beside the tests of this file


def test_a_background_response_is_cancelled(service: RunningService, client: sdk.openai.OpenAI) -> None:
    n_before = service.n_output_tokens()
    made = client.responses.create(model="tiny", input=say("x" * 3000), background=True)
    with client.responses.retrieve(made.id, stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break
    cancelled = client.responses.cancel(made.id)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text.startswith("x")
    service.wait_until_cut(n_before, 3000)
    assert client.responses.retrieve(made.id).to_dict() == cancelled.to_dict()
    assert client.responses.cancel(made.id).status == "cancelled"


def test_a_stream_of_a_background_response_is_taken_up_where_it_broke_off(client: sdk.openai.OpenAI) -> None:
    """openai 3.54 (Python): `retrieve(stream=True, starting_after=...)` after the connection was lost."""
    seen: list[Any] = []
    with client.responses.create(model="tiny", input=say("one two three"), background=True, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
    made = seen[0].response.id
    with client.responses.retrieve(made, stream=True, starting_after=seen[-1].sequence_number) as stream:
        seen += list(stream)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert text == seen[-1].response.output_text == "one two three"


@pytest.mark.parametrize("path", ["", "?stream=true"])
def test_a_background_response_that_fails_says_so(service: RunningService, path: str) -> None:
    made = service.http.post("/v1/responses", json={"model": "tiny", "input": "x" * 9000, "background": True}).json()
    list(service.http.get(f"/v1/responses/{made['id']}?stream=true").iter_lines())
    response = service.http.get(f"/v1/responses/{made['id']}{path}")
    last = _events(response.text)[-1]["response"] if path else response.json()
    assert last["status"] == "failed"
    assert last["error"]["code"] == "context_length_exceeded"


def test_what_was_answered_at_once_is_neither_cancelled_nor_streamed_again(service: RunningService) -> None:
    made = ask(service, input=say("a"))
    assert service.http.post(f"/v1/responses/{made['id']}/cancel").status_code == 400
    assert service.http.get(f"/v1/responses/{made['id']}?stream=true").status_code == 400
    body = {"model": "tiny", "input": "a", "background": True, "store": False}
    assert service.http.post("/v1/responses", json=body).status_code == 400
    assert service.http.post("/v1/responses/resp_none/cancel").status_code == 404


@pytest.mark.slow
def test_a_background_response_fails_with_its_service_however_that_ends(start_service: Start, tmp_path: Path) -> None:
    dying, leaving = (start_service(data_dir=str(tmp_path)) for _ in range(2))
    body = {"model": "tiny", "input": say("x" * 3000), "background": True}
    of_dying, of_leaving = (each.http.post("/v1/responses", json=body).json()["id"] for each in (dying, leaving))
    dying.process.kill()
    dying.process.wait()
    assert leaving.process.stdin is not None
    leaving.process.stdin.close()
    assert leaving.process.wait(timeout=PATIENCE_S) == 0
    later = start_service(data_dir=str(tmp_path))
    cut, left = (later.http.get(f"/v1/responses/{each}").json() for each in (of_dying, of_leaving))
    assert (cut["status"], left["status"]) == ("failed", "failed")
    assert "ended" in cut["error"]["message"]
    refused = later.http.post("/v1/responses", json={"input": "a", "previous_response_id": of_dying})
    assert refused.json()["error"]["code"] == "previous_response_not_found"


def test_a_background_response_whose_end_could_not_be_stored_runs_no_longer(
    start_service: Start, tmp_path: Path
) -> None:
    service = start_service(data_dir=str(tmp_path))
    made = service.http.post("/v1/responses", json={"model": "tiny", "input": say("a"), "background": True}).json()
    list(service.http.get(f"/v1/responses/{made['id']}?stream=true").iter_lines())
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute(
            "UPDATE records SET process = ?, object = json_set(object, '$.status', 'queued')", (service.process.pid,)
        )
    refused = service.http.post("/v1/responses", json={"input": "b", "previous_response_id": made["id"]})
    assert refused.json()["error"]["code"] == "previous_response_not_found"
    assert "is not stored" in refused.json()["error"]["message"]


def test_a_deleted_background_response_stops(service: RunningService) -> None:
    n_before = service.n_output_tokens()
    body = {"model": "tiny", "input": say("y" * 3000), "background": True}
    made = service.http.post("/v1/responses", json=body).json()
    assert service.http.delete(f"/v1/responses/{made['id']}").json()["deleted"]
    service.wait_until_cut(n_before, 3000)
    assert service.http.get(f"/v1/responses/{made['id']}").status_code == 404


def test_a_background_response_that_another_service_deletes_stays_deleted(start_service: Start, tmp_path: Path) -> None:
    answering, other = (start_service(data_dir=str(tmp_path)) for _ in range(2))
    body = {"model": "tiny", "input": say("x" * 500), "background": True}
    made = answering.http.post("/v1/responses", json=body).json()
    assert other.http.delete(f"/v1/responses/{made['id']}").json()["deleted"]
    *_, last = _events(answering.http.get(f"/v1/responses/{made['id']}?stream=true").text)
    assert last["response"]["store"] is False
    assert "It was deleted." in last["response"]["warnings"][0]
    assert [each.http.get(f"/v1/responses/{made['id']}").status_code for each in (answering, other)] == [404, 404]


def test_a_background_response_that_another_service_deletes_after_its_end_is_gone(
    start_service: Start, tmp_path: Path
) -> None:
    answering, other = (start_service(data_dir=str(tmp_path)) for _ in range(2))
    made = answering.http.post("/v1/responses", json={"model": "tiny", "input": say("a"), "background": True}).json()
    path = f"/v1/responses/{made['id']}"
    list(answering.http.get(f"{path}?stream=true").iter_lines())
    assert answering.http.get(path).json()["status"] == "completed"
    assert other.http.delete(path).json()["deleted"]
    assert [answering.http.get(f"{path}{query}").status_code for query in ("", "?stream=true")] == [404, 404]


@pytest.mark.slow
def test_a_body_for_each_route_is_json(service: RunningService) -> None:
    response: httpx.Response = service.http.post("/v1/conversations", content=json.dumps({"metadata": {"a": 1}}))
    assert response.status_code == 400
