"""One name for a model wherever people and programs meet it: commands, screens, chats, and lists of every dialect."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.client.service_client import ServiceClient
from app.connection import ServiceConnection, local_service
from app.settings.settings import Settings
from tests.app.cli.in_process import run_localllm
from tests.quantizer.gguf_files import tiny_llama
from tui.app import LocalllmApp

pytestmark = pytest.mark.slow

# What each file of a library is called. The second `model` came later.
NAMES = {
    "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF/Qwen2.5-Coder-7B-Instruct-Q4_K_M.gguf": "qwen2.5-coder:7b-instruct-q4_K_M",
    "bartowski/Meta-Llama-3.1-8B-GGUF/Q8_0/Meta-Llama-3.1-8B-Q8_0.gguf": "meta-llama-3.1:8b-q8_0",
    "local/coder/coder.gguf": "coder",
    "Phi-3.5-mini-instruct-Q4_K_M.gguf": "phi-3.5-mini-instruct:q4_K_M",
    "one/tiny/model.gguf": "tiny",
    "two/tiny/model.gguf": "two/tiny",
}
CHOSEN = NAMES["Qwen/Qwen2.5-Coder-7B-Instruct-GGUF/Qwen2.5-Coder-7B-Instruct-Q4_K_M.gguf"]
# Path, list and field of each list that a client reads.
LISTS = (
    ("/v1/models", "data", "id"),
    ("/api/tags", "models", "name"),
    ("/api/tags", "models", "model"),
    ("/api/v0/models", "data", "id"),
    ("/api/localllm/library", "models", "id"),
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = tiny_llama(
        tmp_path / "made.gguf",
        lambda writer: writer.add_chat_template("{% for message in messages %}{{ message.content }}\n{% endfor %}"),
    )
    settings = Settings(engine="fake", port=0, data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")
    for file in NAMES:
        path = settings.models_dir / file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, path)
    return settings


def _environment(settings: Settings, tmp_path: Path) -> dict[str, str]:
    return {
        "LOCALLLM_DATA_DIR": str(settings.data_dir),
        "LOCALLLM_CACHE_DIR": str(settings.cache_dir),
        "LOCALLLM_CONFIG": str(tmp_path / "config.toml"),
        "LOCALLLM_ENGINE": "fake",
        "LOCALLLM_PORT": "0",
        "PATH": "",
    }


def test_commands_list_show_and_run_a_model_by_the_same_name(settings: Settings, tmp_path: Path) -> None:
    environment = _environment(settings, tmp_path)
    listed = json.loads(run_localllm(environment, "ls", "--json").stdout)["models"]
    assert {model["id"] for model in listed} == {"guide", *NAMES.values()}
    assert {model["path"]: model["id"] for model in listed if model["id"] != "guide"} == {
        str(settings.models_dir / file): name for file, name in NAMES.items()
    }
    table = run_localllm(environment, "ls").stdout
    assert [line.split()[0] for line in table.splitlines()[1:]] == [model["id"] for model in listed]
    ran = run_localllm(environment, "run", CHOSEN, "hello", "--max-tokens", "3", "--json")
    assert json.loads(ran.stdout)["model"] == CHOSEN
    for name in ("Qwen2.5-Coder-7B-Instruct-Q4_K_M", "qwen2.5-coder", CHOSEN.upper()):
        removed = json.loads(run_localllm(environment, "rm", name, "--yes", "--json").stdout)["removed"]
        assert [each["id"] for each in removed] == [CHOSEN]
        path = Path(removed[0]["paths"][0])
        shutil.copy(settings.models_dir / "local/coder/coder.gguf", _parent(path))


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


async def test_the_app_its_chats_and_every_list_call_a_model_the_same(settings: Settings, tmp_path: Path, user_of: Any):
    connection = ServiceConnection(local_service(settings), "guide")
    async with SqliteChatRepository(settings.data_dir) as repository, connection:
        app = LocalllmApp(connection, repository, settings=settings)
        async with app.run_test(size=(120, 40)) as pilot:
            user = user_of(pilot)
            await user.sees("ready")
            await user.presses("f6")
            await user.sees(*NAMES.values())
            await _choose(user, CHOSEN)
            await user.presses("enter")
            await user.sees("● ready")
            await user.asks("Hello there")
            await user.sees("a second", "● ready")
            await _every_list_has_the_names(connection)
    with ChatStore(settings.data_dir) as store:
        (chat,) = store.chats.page()
        answers = [message for message in store.messages.of(chat.id) if message.role == "assistant"]
        assert {chat.model, *(answer.model for answer in answers)} == {CHOSEN}


async def _choose(user: Any, name: str) -> None:
    for _ in range(30):
        if f"\n {name} ·" in user.screen_text:
            return
        await user.presses("down")
    raise AssertionError(f"{name} was never chosen:\n{user.screen_text}")


async def _every_list_has_the_names(connection: ServiceConnection) -> None:
    client = await connection.service()
    assert isinstance(client, ServiceClient)
    async with httpx.AsyncClient(base_url=client.base_url, trust_env=False) as http:
        for path, key, field in LISTS:
            entries = (await http.get(path)).json()[key]
            assert {entry[field] for entry in entries} == {"guide", *NAMES.values()}, path
        running = (await http.get("/api/ps")).json()["models"]
        assert CHOSEN in {entry["name"] for entry in running}
        status = await client.status()
        assert CHOSEN in {model.id for model in status.models}
        for name in NAMES.values():
            body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
            assert (await http.post("/v1/chat/completions", json=body)).json()["model"] == name
            assert (await http.get(f"/v1/models/{name}")).json()["id"] == name
