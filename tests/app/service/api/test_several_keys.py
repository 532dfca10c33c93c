"""Holders of two keys do not learn from the service what the other one asks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.common.keys import KeyFile, KeyScope, owner_of
from app.engine.project_texts import corpus_name, read_texts
from app.settings.private_files import CORPORA
from tests.app.running import RunningService

BODIES: dict[str, Callable[[str], dict[str, Any]]] = {
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 2},
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 2},
    "/v1/responses": lambda text: {"input": text, "max_output_tokens": 16},
    "/v1/messages": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 2},
}


def _n_cached(usage: dict[str, Any]) -> int:
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return int(details.get("cached_tokens", 0) or usage.get("cache_read_input_tokens", 0))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("keys")
    file = KeyFile(folder / "keys.json")
    return folder, {name: file.add(name, [KeyScope.INFER]).secret for name in ("alice", "bob")}


@pytest.fixture(scope="module")
def keyed(start_service: Callable[..., RunningService], keys: tuple[Path, dict[str, str]]) -> RunningService:
    return start_service(data_dir=str(keys[0]), api_key="the owner's")


@pytest.mark.parametrize("path", BODIES)
def test_the_prompt_of_one_key_is_not_cached_for_another(
    keyed: RunningService, keys: tuple[Path, dict[str, str]], path: str
) -> None:
    body = BODIES[path](f"{path}: what only one of them knows. " * 12)

    def n_cached(secret: str) -> int:
        reply = keyed.http.post(path, json=body, headers={"authorization": f"Bearer {secret}"})
        assert reply.status_code == 200, reply.text
        return _n_cached(reply.json()["usage"])

    secrets = (*keys[1].values(), "the owner's")
    assert max(map(n_cached, secrets)) < 16  # the head of a prompt may be that of another path
    assert min(map(n_cached, secrets)) > 100


@pytest.mark.parametrize("keep_alive", [0, "1h"])
def test_a_key_that_may_only_use_models_does_not_decide_how_long_they_stay(
    keyed: RunningService, keys: tuple[Path, dict[str, str]], keep_alive: int | str
) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "keep_alive": keep_alive, "stream": False}
    body["options"] = {"num_predict": 1}

    def asked(secret: str) -> dict[str, Any]:
        reply = keyed.http.post("/api/chat", json=body, headers={"authorization": f"Bearer {secret}"})
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    assert "keep_alive has no effect: this key may only use models." in asked(keys[1]["alice"])["warnings"]
    loaded = keyed.http.get("/api/ps", headers={"authorization": "Bearer the owner's"}).json()["models"]
    assert len(loaded) == 1
    assert not any("keep_alive" in each for each in asked("the owner's").get("warnings", ()))


Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def ask(keyed: RunningService) -> Ask:
    def ask(secret: str, method: str, path: str, **content: Any) -> httpx.Response:
        return keyed.http.request(method, path, headers={"authorization": f"Bearer {secret}"}, **content)

    return ask


def test_texts_for_drafts_are_kept_by_keys_that_manage_and_are_of_the_key_alone(
    ask: Ask, keys: tuple[Path, dict[str, str]], environment: Mapping[str, str]
) -> None:
    other = KeyFile(keys[0] / "keys.json").add("carol", [KeyScope.MANAGE, KeyScope.INFER]).secret
    body = {"draft_corpus": "project", "texts": ["A text that one of them has read."]}
    assert ask(keys[1]["alice"], "POST", "/api/localllm/draft-texts", json=body).status_code == 403
    for secret in ("the owner's", other):
        assert ask(secret, "POST", "/api/localllm/draft-texts", json=body).json() == {"n_kept": 1}
    corpora = Path(environment["LOCALLLM_CACHE_DIR"]) / CORPORA
    owners = [owner_of(secret) for secret in ("the owner's", other)]
    assert all(read_texts(corpora, corpus_name(owner, "project")).texts for owner in owners)
    for owner in ("", owner_of(keys[1]["alice"])):
        assert not read_texts(corpora, corpus_name(owner, "project")).texts


def say(text: str) -> str:
    return f"<say>{text}</say>"


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _thread(**thread: str) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 4, "messages": _user("a"), "thread": thread}


def _reference(item: str) -> list[dict[str, Any]]:
    return [{"type": "item_reference", "id": item}]


# Every way to what is stored, by the name of what it is stored under; what removes it comes last.
_MADE = ("response", "item", "conversation", "part", "message")
_WAYS: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/v1/responses/{response}", None),
    ("GET", "/v1/responses/{response}?stream=true", None),
    ("GET", "/v1/responses/{response}/input_items", None),
    ("POST", "/v1/responses/{response}/cancel", None),
    ("POST", "/v1/responses", {"model": "tiny", "input": say("b"), "previous_response_id": "{response}"}),
    ("POST", "/v1/responses", {"model": "tiny", "input": _reference("{item}")}),
    ("POST", "/v1/responses", {"model": "tiny", "input": say("b"), "conversation": "{conversation}"}),
    ("POST", "/v1/responses/input_tokens", {"model": "tiny", "input": "b", "previous_response_id": "{response}"}),
    ("POST", "/v1/responses/compact", {"model": "tiny", "previous_response_id": "{response}"}),
    ("POST", "/api/v1/chat", {"model": "tiny", "input": "b", "previous_response_id": "{response}"}),
    ("GET", "/v1/conversations/{conversation}", None),
    ("POST", "/v1/conversations/{conversation}", {"metadata": {"topic": "other"}}),
    ("GET", "/v1/conversations/{conversation}/items", None),
    ("POST", "/v1/conversations/{conversation}/items", {"items": _user("c")}),
    ("POST", "/v1/conversations", {"items": _reference("{item}")}),
    ("GET", "/v1/conversations/{conversation}/items/{part}", None),
    ("POST", "/v1/messages/count_tokens?beta=true", _thread(type="continue", previous_message_id="{message}")),
    ("POST", "/v1/messages?beta=true", _thread(type="continue", previous_message_id="{message}")),
    ("DELETE", "/v1/conversations/{conversation}/items/{part}", None),
    ("DELETE", "/v1/conversations/{conversation}", None),
    ("DELETE", "/v1/responses/{response}", None),
)


def _made(ask: Ask, secret: str) -> dict[str, str]:
    """Return the ids of what somebody stores: a response that was in the background, a conversation, a thread."""
    body = {"model": "tiny", "input": say("only one of them knows"), "background": True}
    response = ask(secret, "POST", "/v1/responses", json=body).json()["id"]
    ask(secret, "GET", f"/v1/responses/{response}?stream=true")
    items = {"items": _user("mine")}
    conversation = ask(secret, "POST", "/v1/conversations", json=items).json()["id"]
    thread = ask(secret, "POST", "/v1/messages?beta=true", json=_thread(type="create")).json()
    return {
        "response": response,
        "item": ask(secret, "GET", f"/v1/responses/{response}").json()["output"][0]["id"],
        "conversation": conversation,
        "part": ask(secret, "GET", f"/v1/conversations/{conversation}/items").json()["data"][0]["id"],
        "message": thread["id"],
    }


def _by(ask: Ask, secret: str, way: tuple[str, str, Any], names: dict[str, str]) -> tuple[int, str]:
    """Return the status and text of an answer, with the kinds of what is named instead of its names."""
    method, path, body = way
    named = json.dumps({"path": path, "body": body})
    for kind in _MADE:
        named = named.replace(f"{{{kind}}}", names[kind])
    sent = json.loads(named)
    reply = ask(secret, method, sent["path"], json=sent["body"])
    text = reply.text
    for kind in _MADE:
        text = text.replace(names[kind], kind)
    return reply.status_code, text


def test_what_is_stored_with_one_key_is_not_there_for_another_unless_it_manages(
    ask: Ask, keys: tuple[Path, dict[str, str]]
) -> None:
    alice, bob = keys[1].values()
    made, nothing = _made(ask, alice), {kind: f"{kind}_none" for kind in _MADE}
    for way in _WAYS:
        status, text = _by(ask, bob, way, made)
        assert (status, text) == _by(ask, bob, way, nothing), way
        assert status in (400, 404), (way, text)
    for way in _WAYS:
        if way[0] == "GET":
            assert _by(ask, "the owner's", way, made)[0] == 200, way
    for way in _WAYS:
        status, text = _by(ask, alice, way, made)
        assert status == 200, (way, text)
    others = _made(ask, alice)
    for way in _WAYS:
        status, text = _by(ask, "the owner's", way, others)
        assert status == 200, (way, text)


def test_a_response_in_the_background_is_neither_seen_nor_ended_with_another_key(
    ask: Ask, keys: tuple[Path, dict[str, str]]
) -> None:
    alice, bob = keys[1].values()
    body = {"model": "tiny", "input": say("x" * 3000), "background": True}
    path = f"/v1/responses/{ask(alice, 'POST', '/v1/responses', json=body).json()['id']}"
    for method, way in [("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel"), ("DELETE", "")]:
        assert ask(bob, method, f"{path}{way}").status_code == 404
    assert ask(alice, "GET", path).json()["status"] in ("queued", "in_progress", "completed")
    assert ask(alice, "POST", f"{path}/cancel").json()["status"] in ("cancelled", "completed")


def test_a_batch_sees_what_the_key_sees_that_made_it(ask: Ask, keys: tuple[Path, dict[str, str]]) -> None:
    """Its job would ask with the service's own key."""
    alice = keys[1]["alice"]
    words = f"{say('b')} {'what only the owner asked before. ' * 12}"
    others, own = (
        ask(who, "POST", "/v1/responses", json={"model": "tiny", "input": text}).json()["id"]
        for who, text in (("the owner's", words), (alice, say("a")))
    )
    bodies = [{"previous_response_id": others, "input": "b"}, {"previous_response_id": own, "input": words}]
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/responses", "body": {"model": "tiny", **body}}
        for n, body in enumerate(bodies)
    ]
    batch = _batch_of(ask, alice, lines)
    refused, answered = (_content(ask, alice, batch[each])[0] for each in ("error_file_id", "output_file_id"))
    assert (refused["custom_id"], refused["error"]["code"]) == ("0", "previous_response_not_found")
    assert answered["custom_id"] == "1"
    assert ask(alice, "GET", f"/v1/responses/{answered['response']['body']['id']}").status_code == 200
    assert _n_cached(answered["response"]["body"]["usage"]) < 100, "what the owner asked saves it nothing"


def _batch_of(ask: Ask, secret: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch of `lines` that has ended."""
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", "\n".join(map(json.dumps, lines)))}}
    file_id = ask(secret, "POST", "/v1/files", **form).json()["id"]
    request = {"input_file_id": file_id, "endpoint": lines[0]["url"], "completion_window": "24h"}
    batch_id = ask(secret, "POST", "/v1/batches", json=request).json()["id"]
    return _ended(ask, secret, batch_id)


def _ended(ask: Ask, secret: str, batch_id: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + 300
    while (batch := ask(secret, "GET", f"/v1/batches/{batch_id}").json())["status"] not in ("completed", "failed"):
        assert time.monotonic() < deadline_s, batch
        time.sleep(0.1)
    return dict(batch)


def _content(ask: Ask, secret: str, file_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ask(secret, "GET", f"/v1/files/{file_id}/content").text.splitlines()]


@pytest.mark.slow
def test_files_and_batches_of_one_key_are_no_others_unless_it_manages(
    ask: Ask, keys: tuple[Path, dict[str, str]]
) -> None:
    alice, bob = keys[1].values()
    message = {"messages": [{"role": "user", "content": "only Alice knows"}], "max_tokens": 1}
    line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": message})
    form = {"data": {"purpose": "batch"}, "files": {"file": ("alice.jsonl", line)}}
    file_id = ask(alice, "POST", "/v1/files", **form).json()["id"]
    request = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert ask(bob, "POST", "/v1/batches", json=request).status_code == 404
    batch_id = ask(alice, "POST", "/v1/batches", json=request).json()["id"]
    batch = _ended(ask, alice, batch_id)
    made = [file_id, batch["output_file_id"] or batch["error_file_id"]]

    def listed(secret: str) -> set[str]:
        found = (ask(secret, "GET", path).json()["data"] for path in ("/v1/files", "/v1/batches"))
        return {each["id"] for data in found for each in data}

    assert {*made, batch_id} <= listed(alice)
    assert {*made, batch_id} <= listed("the owner's")
    assert not listed(bob)
    for each in made:
        for path in (f"/v1/files/{each}", f"/v1/files/{each}/content", f"/files/{each}/content"):
            assert ask(alice, "GET", path).status_code == 200
            assert ask(bob, "GET", path).status_code == 404
        assert "owner" not in ask(alice, "GET", f"/v1/files/{each}").json()
        assert ask(bob, "DELETE", f"/v1/files/{each}").status_code == 404
    assert ask(bob, "GET", f"/v1/batches/{batch_id}").status_code == 404
    assert ask(bob, "POST", f"/v1/batches/{batch_id}/cancel").status_code == 404
    assert [ask(alice, "DELETE", f"/v1/files/{each}").status_code for each in made] == [200, 200]
