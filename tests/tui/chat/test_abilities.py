"""Tools and thoughts that a model cannot take: said when they are switched on, and when the model is exchanged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.app.client.scripted_client import READY, ScriptedClient
from tests.tui.model_scenes import client_with_models

NO_TOOLS = "guide has no place for tools"
NO_THOUGHT = "does not think before it answers"


@pytest.mark.slow
async def test_what_a_model_is_not_made_for_is_said_when_it_is_switched_on(open_app):
    client = ScriptedClient(model=replace(READY, takes_tools=False, thinks=False))
    async with open_app(client, size=(200, 30)) as user:
        await user.sees("ready")
        await user.asks("/think high")
        await user.sees(NO_THOUGHT)
        await user.asks("/tools on files")
        await user.sees(NO_TOOLS)
        await user.asks("hello")
        await user.sees("Hello.")
    (sent,) = client.options
    assert sent.think is None
    assert sent.tools, "a large model calls them all the same"


@pytest.mark.slow
async def test_a_model_that_takes_them_gets_them_without_a_word(open_app):
    client = ScriptedClient(model=replace(READY, takes_tools=True, thinks=True))
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/think high")
        await user.sees("Thinking: high.")
        await user.asks("/tools on files")
        await user.sees("tools on")
        await user.asks("hello")
        await user.sees("Hello.")
    (sent,) = client.options
    assert sent.think == "high"
    assert sent.tools


@pytest.mark.parametrize(
    ("thinks_by_default", "said"),
    [(True, "This model thinks before it answers."), (False, "This model answers at once"), (None, "as the model is")],
)
async def test_the_chat_says_whether_a_model_thinks_that_is_not_told(open_app, thinks_by_default, said):
    client = ScriptedClient(model=replace(READY, thinks=True, thinks_by_default=thinks_by_default))
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/think auto")
        await user.sees("Thinking: auto", said)


class TwoModels(ScriptedClient):
    """A service whose guide takes tools, and whose other models do not."""

    async def load(self, model: str, when_unfit: str = "") -> str:
        await super().load(model, when_unfit)
        name = Path(model).stem
        self.model = replace(READY, id=name, takes_tools=name == "guide", thinks=True)
        return name


@pytest.mark.slow
async def test_a_model_that_takes_no_tools_says_so_when_it_comes_in_place_of_one_that_does(open_app):
    client = TwoModels(model=replace(READY, takes_tools=True))
    client.library.here = client_with_models().library.here
    async with open_app(client, size=(200, 30)) as user:
        await user.sees("ready")
        await user.asks("/tools on files")
        await user.sees("tools on")
        await user.asks(f"/model {client.library.here[0].id}")
        await user.sees("has no place for tools")
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.options[0].tools
