"""A file is read while the question about it is typed: what the person sees of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.chat import read_ahead
from app.protocol.chat import PromptProgress
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply

PART, WHOLE = PromptProgress(n_tokens=6000, n_read=3100), PromptProgress(n_tokens=6000, n_read=6000)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "PAUSE_S", 0.02)
    monkeypatch.setattr(read_ahead, "SETTLED_S", 0.05)


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "notes.txt").write_text("A line of the notes.\n" * 100, "utf-8")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.slow
async def test_a_file_is_read_when_it_is_attached_until_the_question_is_sent(open_app, notes):
    client = ScriptedClient(ScriptedReply(deltas=("It is about lines.",)))
    client.reading, client.holds_reading = (PART,), True
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/attach notes.txt")
        await user.sees("notes.txt", "read 3,100 of 6,000")
        n_readings, client.reading, client.holds_reading = len(client.read_ahead_requests), (), False
        await user.asks("What is it about?")
        await user.sees("It is about lines.")
        await user.until(lambda: client.n_ended_readings >= n_readings, "the reading went on")
        await user.no_longer_sees("3,100")
    messages, model, options = client.read_ahead_requests[0]
    (sent,) = client.requests
    assert sent[0].content.startswith(messages[0].content)
    assert messages[0].content.endswith("```\n\n")
    assert replace(options, prompt_cache_key=None, prompt_cache_retention=None) == client.options[0]
    assert model == "guide"


async def test_once_all_is_read_a_word_is_left(open_app, notes):
    client = ScriptedClient()
    client.reading = (PART, WHOLE)
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/attach notes.txt")
        await user.until(lambda: client.n_whole_readings >= 1, "nothing was read")
        await user.until(lambda: "read 3,100" not in user.screen_text, "the figures stay")
        line = next(row for row in user.screen_text.splitlines() if "of 2k" in row)
        assert line.split()[-1] == "read"


@pytest.mark.slow
async def test_commands_are_not_read(open_app, notes):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        for text in ("/help and more words to be read", "!echo and more words to be read "):
            await user.types(text)
            await user.pilot.pause(0.3)
            await user.presses("ctrl+c")
        assert not client.read_ahead_requests


@pytest.mark.slow
async def test_the_setting_switches_it_off(open_app, notes):
    client = ScriptedClient()
    async with open_app(client, settings={"prefill_ahead": False}) as user:
        await user.sees("ready")
        await user.asks("/attach notes.txt")
        await user.sees("notes.txt")
        await user.types("What is it about, in a word? ")
        await user.pilot.pause(0.3)
        assert not client.read_ahead_requests
