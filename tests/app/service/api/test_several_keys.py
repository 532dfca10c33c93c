"""Holders of two keys do not learn from the service what the other one asks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.common.keys import KeyFile, KeyScope
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


def test_files_and_batches_of_one_key_are_no_others_unless_it_manages(
    keyed: RunningService, keys: tuple[Path, dict[str, str]]
) -> None:
    alice, bob = keys[1].values()

    def ask(secret: str, method: str, path: str, **content: Any) -> httpx.Response:
        return keyed.http.request(method, path, headers={"authorization": f"Bearer {secret}"}, **content)

    message = {"messages": [{"role": "user", "content": "only Alice knows"}], "max_tokens": 1}
    line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": message})
    form = {"data": {"purpose": "batch"}, "files": {"file": ("alice.jsonl", line)}}
    file_id = ask(alice, "POST", "/v1/files", **form).json()["id"]
    request = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert ask(bob, "POST", "/v1/batches", json=request).status_code == 404
    batch_id = ask(alice, "POST", "/v1/batches", json=request).json()["id"]
    deadline_s = time.monotonic() + 300
    while (batch := ask(alice, "GET", f"/v1/batches/{batch_id}").json())["status"] not in ("completed", "failed"):
        assert time.monotonic() < deadline_s, batch
        time.sleep(0.1)
    made = [file_id, batch["output_file_id"] or batch["error_file_id"]]

    def listed(secret: str) -> tuple[list[str], list[str]]:
        found = (ask(secret, "GET", path).json()["data"] for path in ("/v1/files", "/v1/batches"))
        files, batches = ([each["id"] for each in data] for data in found)
        return sorted(files), batches

    assert listed(alice) == listed("the owner's") == (sorted(made), [batch_id])
    assert listed(bob) == ([], [])
    for each in made:
        for path in (f"/v1/files/{each}", f"/v1/files/{each}/content", f"/files/{each}/content"):
            assert ask(alice, "GET", path).status_code == 200
            assert ask(bob, "GET", path).status_code == 404
        assert "owner" not in ask(alice, "GET", f"/v1/files/{each}").json()
        assert ask(bob, "DELETE", f"/v1/files/{each}").status_code == 404
    assert ask(bob, "GET", f"/v1/batches/{batch_id}").status_code == 404
    assert ask(bob, "POST", f"/v1/batches/{batch_id}/cancel").status_code == 404
    assert [ask(alice, "DELETE", f"/v1/files/{each}").status_code for each in made] == [200, 200]
