"""What a chat switches on and a model is not made for is said once; a thought it cannot have is not asked for."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

import pytest

from app.chat.backend import ConnectionState, LoadedModel
from app.chat.branches import Conversation
from app.chat.conversation import ChatSettings
from app.chat.events import Note, Reading
from app.chat.exchange import ask
from app.chat.repository import InMemoryChatRepository, OpenedChat
from app.chat.state import ChatState
from app.tools.approval import ToolSettings
from tests.app.chat.test_exchange import QUESTION
from tests.app.chat.tool_chats import TOOLS, backend_of, unbatched
from tests.app.client.scripted_client import READY, ScriptedClient

__all__ = ["unbatched"]

NO_TOOLS = (
    "guide has no place for tools in its chat template: they are written into its prompt, and it may call none. "
    "/tools switches them off."
)
NO_THOUGHT = "guide does not think before it answers: /think high changes nothing."
HIGH = {"think": "high", "temperature": 0.5}


def _chat(client: ScriptedClient, settings: ChatSettings, **abilities: bool | None) -> ChatState:
    opened = OpenedChat(InMemoryChatRepository().new(), Conversation(settings))
    state = ConnectionState(phase="ready", model="guide", n_ctx=2048, **abilities)
    return ChatState(opened, LoadedModel(client, state), tools=backend_of(), clock=lambda: 0.0)


async def _notes(chat: ChatState) -> list[str]:
    seen = []
    async with aclosing(ask(chat, QUESTION, chat.conversation.leaf_id)) as events:
        async for event in events:
            if isinstance(event, Note):
                seen.append(event.text)
            elif isinstance(event, Reading):
                assert not seen, "said while the prompt is read, before the answer"
    return seen


@pytest.mark.parametrize(
    ("settings", "abilities", "said", "is_offered", "think"),
    [
        (ChatSettings(tools=TOOLS), {"takes_tools": False}, [NO_TOOLS], True, None),
        (ChatSettings(tools=TOOLS), {"takes_tools": True}, [], True, None),
        (ChatSettings(tools=TOOLS), {}, [], True, None),  # another engine does not say it
        (ChatSettings(options=HIGH), {"thinks": False}, [NO_THOUGHT], False, None),
        (ChatSettings(options=HIGH), {"thinks": True}, [], False, "high"),
        (ChatSettings(options=HIGH), {}, [], False, "high"),
        (ChatSettings(options={"think": "off"}), {"thinks": False}, [], False, None),
        (ChatSettings(), {"thinks": False, "takes_tools": False}, [], False, None),
        (
            ChatSettings(options=HIGH, tools=TOOLS),
            {"thinks": False, "takes_tools": False},
            [NO_TOOLS, NO_THOUGHT],
            True,
            None,
        ),
    ],
)
async def test_what_a_model_is_not_made_for_is_said_once(settings, abilities, said, is_offered, think):
    client = ScriptedClient()
    chat = _chat(client, settings, **abilities)
    assert await _notes(chat) == said
    (sent,) = client.options
    assert bool(sent.tools) is is_offered
    assert sent.think == think
    assert sent.temperature == settings.options.get("temperature")
    assert await _notes(chat) == [], "once"
    assert client.options[1] == client.options[0]


async def test_another_model_says_it_for_itself():
    client = ScriptedClient()
    chat = _chat(client, ChatSettings(tools=TOOLS), takes_tools=False)
    await _notes(chat)
    chat.connection = LoadedModel(client, replace(chat.connection.state, model="other"))
    assert await _notes(chat) == [NO_TOOLS.replace("guide", "other")]
    chat.connection = LoadedModel(client, replace(chat.connection.state, model="third", takes_tools=True))
    assert await _notes(chat) == []
    assert client.options[-1].tools


async def test_a_model_beside_the_connection_is_not_judged_by_the_connections():
    client = ScriptedClient()
    chat = _chat(client, ChatSettings(tools=TOOLS), takes_tools=False)
    chat.pinned_model = "other"
    assert await _notes(chat) == []
    assert client.options[0].tools


def test_a_models_status_becomes_the_state_of_its_connection():
    model = replace(READY, takes_tools=False, thinks=True, sees=True, hears=None)
    state = ConnectionState.of_model(model, ("a",))
    assert (state.takes_tools, state.thinks, state.sees, state.hears) == (False, True, True, None)
    assert state.notices == ("a", *model.notices)


def test_a_prompt_template_says_itself_that_it_has_no_place_for_tools():
    state = ConnectionState(phase="ready", model="guide", takes_tools=False)
    settings = ChatSettings(options={"template": "chatml"}, tools=ToolSettings(enabled=("files",)))
    assert state.cannot_take(settings) == ()
