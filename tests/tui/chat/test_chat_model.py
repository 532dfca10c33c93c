"""The model that a chat goes on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.conversation import MessageContent
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.connection import ServiceConnection
from app.protocol.chat import Message
from app.settings.settings import Settings
from quantizer.gguf.gguf_reader import ModelFileError
from tests.app.client.scripted_client import READY, ScriptedClient, ScriptedReply
from tests.tui.conftest import User
from tests.tui.model_scenes import client_with_models
from tui.app import LocalllmApp
from tui.settings.controller import SettingsController


class ManyModels(ScriptedClient):
    """A service that has several models, of which some are missing; each answer names the model that wrote it."""

    missing: frozenset[str] = frozenset()

    def __init__(self, *replies: ScriptedReply) -> None:
        super().__init__(*replies)
        self.asked: list[str] = []

    async def load(self, model: str, when_unfit: str = "") -> str:
        await super().load(model, when_unfit)
        if model in self.missing:
            raise ModelFileError(f"There is no model {model}.", "Download it again.")
        self.model = replace(READY, id=Path(model).stem)
        return self.model.id

    def chat(self, messages: tuple[Message, ...], model: str = "", options: object = None):  # type: ignore[override]
        self.asked.append(model)
        return super().chat(messages, model, options)


def _keep_chat(data_dir: Path, model: str) -> int:
    with ChatStore(data_dir) as store:
        chat = store.chats.create(title=model, model=model)
        store.messages.add(chat.id, None, MessageContent(role="user", content=f"To {model}"))
        return chat.id


@pytest.mark.slow
async def test_a_chat_goes_on_with_its_model_after_a_restart(open_app, tmp_path):
    _keep_chat(tmp_path, "llama")
    client = ManyModels()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("To llama", "llama  ● ready")
        await user.asks("And now?")
        await user.sees("Hello.")
    assert client.asked == ["llama"]
    assert "guide" not in client.loads


async def test_opening_a_chat_goes_on_with_its_model(open_app, tmp_path):
    first_id = _keep_chat(tmp_path, "llama")
    _keep_chat(tmp_path, "guide")
    client = ManyModels()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("To guide", "guide  ● ready")
        await user.app.open_chat(first_id)
        await user.sees("To llama", "llama  ● ready")
        await user.presses("ctrl+n")
        await user.sees("llama  ● ready")


@pytest.mark.slow
async def test_a_chat_whose_model_is_gone_says_so_and_goes_on_with_the_default(open_app, tmp_path):
    _keep_chat(tmp_path, "lost")
    client = ManyModels()
    client.missing = frozenset({"lost"})
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("This chat was held with lost, which is not available", "guide answers from now on")
        await user.sees("guide  ● ready")
        await user.asks("And now?")
        await user.sees("Hello.")
    assert client.asked == ["guide"]


@pytest.mark.slow
async def test_opening_a_chat_whose_model_is_gone_leaves_new_chats_the_model_that_was_in_use(open_app, tmp_path):
    lost_id = _keep_chat(tmp_path, "lost")
    _keep_chat(tmp_path, "llama")
    client = ManyModels()
    client.missing = frozenset({"lost"})
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("To llama", "llama  ● ready")
        await user.app.open_chat(lost_id)
        await user.sees("This chat was held with lost, which is not available", "llama answers from now on")
        await user.sees("llama  ● ready")
        await user.presses("ctrl+n")
        await user.asks("And now?")
        await user.sees("Hello.")
    assert client.asked == ["llama"]


async def test_at_the_start_the_model_of_the_latest_chat_that_is_here_takes_the_place_of_one_that_is_gone(
    open_app, tmp_path
):
    for model in ("qwen3-0.6b-Q8_0", "guide", "lost"):
        _keep_chat(tmp_path, model)
    client = ManyModels()
    client.library.here = client_with_models().library.here
    client.missing = frozenset({"lost"})
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("This chat was held with lost", "qwen3-0.6b-Q8_0  ● ready")


async def test_a_model_from_the_command_line_precedes_that_of_the_chat(tmp_path):
    _keep_chat(tmp_path, "llama")
    client = ManyModels()
    async with (
        SqliteChatRepository(tmp_path) as repository,
        ServiceConnection(client.opened, "guide") as connection,
    ):
        controller = SettingsController(Settings(data_dir=tmp_path, cache_dir=tmp_path), {"model": "guide"}, {})
        app = LocalllmApp(connection, repository, settings=controller.settings, settings_controller=controller)
        async with app.run_test(size=(80, 24)) as pilot:
            await User(pilot).sees("To llama", "guide  ● ready")
    assert client.loads == ["guide"]


@pytest.mark.slow
@pytest.mark.parametrize("n_deltas", [1, 2])
async def test_a_hidden_chat_is_answered_by_its_own_model(open_app, tmp_path, n_deltas):
    llama_id = _keep_chat(tmp_path, "llama")
    _keep_chat(tmp_path, "guide")
    slow = ScriptedReply(deltas=("Half.", "Whole."), pause_after=n_deltas)
    client = ManyModels(slow, ScriptedReply(deltas=("Again.",)))
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("guide  ● ready")
        await user.asks("one")
        await user.sees("Half.")
        await user.asks("two")
        await user.sees("waiting: two")
        await user.app.open_chat(llama_id)
        await user.sees("To llama", "llama  ● ready")
        client.resume()
        await user.sees("“To guide” has its answer")
    assert client.asked == ["guide", "guide"]
