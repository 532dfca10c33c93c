"""The line above the composer moves while one waits, and says how long that will be."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from textual import constants

from app.chat.activity import SPINNER
from app.protocol.chat import PromptProgress
from tests.app.client.scripted_client import LOADING, PLAN, READY, ScriptedClient, ScriptedReply
from tui.chat.activity_line import ActivityLine

READ = PromptProgress(n_tokens=6000, n_cached=0, n_read=2100, elapsed_s=30.0, left_s=58.0)


async def test_a_prompt_that_is_read_shows_its_tokens_the_time_left_and_the_way_out(open_app):
    client = ScriptedClient(ScriptedReply(progress=(READ,), deltas=("Done.",), pause_after=1))
    async with open_app(client) as user:
        await user.asks("Read it.")
        await user.sees("reading ▰▰▰▱▱▱▱▱▱▱ 2,100 of 6,000 tokens", "s left · esc stop")
        await user.no_longer_sees("writing")
        client.resume()
        await user.sees("Done.", "ready")
        await user.no_longer_sees("2,100 of 6,000")


@pytest.mark.slow
async def test_the_sign_moves_though_nothing_is_heard_of_the_engine(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("a", "b"), pause_after=0))
    async with open_app(client, clock=time.monotonic) as user:
        await user.asks("Cats?")
        for sign in SPINNER[:4]:
            await user.sees(f"{sign} reading")
        await user.sees("no token for 5 s")
        line = user.app.screen.query_one(ActivityLine)
        assert line.size.height == 1
        await user.presses("escape")
        await user.sees("stopped")
        assert not line.display


@pytest.mark.slow
async def test_without_animations_the_sign_stands_still_and_the_words_go_on(open_app, monkeypatch):
    monkeypatch.setattr(constants, "TEXTUAL_ANIMATIONS", "none")
    client = ScriptedClient(ScriptedReply(progress=(READ,), deltas=("Done.",), pause_after=1))
    async with open_app(client) as user:
        await user.asks("Read it.")
        await user.sees("● reading ▰▰▰")
        client.resume()
        await user.sees("Done.", "ready")


async def test_a_model_that_loads_shows_how_much_of_it_and_how_long(open_app):
    model = replace(LOADING, progress=0.5, plan=PLAN, load_left_s=7.0)
    client = ScriptedClient(model=model)
    async with open_app(client) as user:
        await user.sees("loading ▰▰▰▰▰▱▱▱▱▱ 4.72 MB of 9.44 MB · 7 s left")
        client.model = replace(model, progress=1.0)
        await user.sees("getting the model ready")
        client.model = READY
        await user.sees("ready")
        await user.no_longer_sees("getting the model ready")


async def test_an_answer_that_is_written_shows_its_speed(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("Hello ", "there."), pause_after=1))
    async with open_app(client) as user:
        await user.asks("Cats?")
        await user.sees("Hello", "writing", "esc stop")
        client.resume()
        await user.sees("there.", "ready")
        await user.no_longer_sees("writing")
