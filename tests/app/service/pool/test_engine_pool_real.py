"""The guide under two names, by the engine that people have."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from app.library.local.resolve import GUIDE, resolve
from app.settings.settings import Settings
from tests.app.running import RunningService

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "What is localllm?"}]
JINJA = "{% for message in messages %}{{ message.content }}. {% endfor %}"


@pytest.fixture(scope="module")
def own(start_service: Callable[..., RunningService], tmp_path_factory: pytest.TempPathFactory) -> RunningService:
    """A service over the guide, and `mario` made of it."""
    folder = tmp_path_factory.mktemp("shared")
    guide = folder / "data" / "models" / "me" / "base" / "base.gguf"
    guide.parent.mkdir(parents=True)
    shutil.copy(resolve(GUIDE, Settings()).path, guide)  # where a hard link can be made
    service = start_service(
        engine="llama",
        model=str(guide),
        data_dir=str(folder / "data"),
        cache_dir=str(folder / "cache"),
        idle_tune="false",
    )
    recipe = {"system": "Say little.", "template": JINJA, "parameters": {"temperature": 0, "num_predict": 12}}
    made = service.http.post("/api/create", json={"model": "mario", "from": "base", "stream": False, **recipe})
    assert made.status_code == 200, made.text
    return service


def _ask(own: RunningService, name: str) -> Any:
    body = {"model": name, "messages": HELLO, "stream": False, "options": {"temperature": 0}}
    return own.http.post("/api/chat", json=body).json()


def _entries(own: RunningService) -> dict[str, Any]:
    return {entry["id"]: entry for entry in own.http.get("/api/localllm/status").json()["models"]}


def test_one_worker_answers_under_both_names_with_their_recipes(own: RunningService) -> None:
    base, made = _ask(own, "base"), _ask(own, "mario")
    assert (base["model"], made["model"]) == ("base", "mario")
    assert made["eval_count"] <= 12 < base["eval_count"]
    assert made["message"]["content"] != base["message"]["content"]
    assert _ask(own, "base")["message"] == base["message"], "the other's recipe changes nothing"
    entries = _entries(own)
    assert entries["base"]["worker_pid"] == entries["mario"]["worker_pid"]
    assert entries["base"]["shares_with"] == ["mario"]


def test_unloading_and_deleting_one_name_does_not_affect_the_other(own: RunningService) -> None:
    _ask(own, "mario")
    whole = _ask(own, "base")["message"]["content"]
    body = {"model": "base", "messages": HELLO, "options": {"temperature": 0}}
    with own.http.stream("POST", "/api/chat", json=body) as response:
        lines = response.iter_lines()
        said = json.loads(next(lines))["message"]["content"]
        unloaded = own.http.post("/api/localllm/unload", json={"model": "mario"})
        assert unloaded.json()["state"] == "unloaded"
        assert own.http.request("DELETE", "/api/delete", json={"model": "mario"}).status_code == 200
        said += "".join(json.loads(line)["message"]["content"] for line in lines)
    assert said == whole
    assert list(_entries(own)) == ["base"]
