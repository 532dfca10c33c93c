"""The recording key: what is said lands in the prompt, nothing is sent, and nothing of the sound stays. And messages
that are read aloud."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.common import extras
from app.protocol.errors import RequestError
from app.protocol.library import LocalModel
from tests.app.client.scripted_client import READY, ScriptedClient, ScriptedReply
from tests.app.sound.fake_device_child import put_device

pytestmark = pytest.mark.slow
HEARS = replace(READY, hears=True)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the system's temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def _left(temporary: Path) -> list[Path]:
    return [path for path in temporary.rglob("*") if path.suffix == ".wav" or "-record-" in path.name]


@pytest.mark.parametrize("ending", ["alt+r", "enter"])
async def test_what_is_said_comes_to_the_cursor_and_is_not_sent(ending, open_app, monkeypatch, temporary):
    put_device(monkeypatch, "tone")
    client = ScriptedClient(model=HEARS)
    async with open_app(client) as user:
        await user.sees("ready")
        await user.types("before after")
        await user.presses(*["left"] * 6, "alt+r")
        await user.sees("recording · 1:01", "alt+r write it down", "esc drop")
        await user.presses(ending)
        await user.until(lambda: user.app.screen.prompt.text == "before what was said after", "not inserted")
        await user.no_longer_sees("writing down")
    (path, sound, model), *others = client.sounds
    assert (sound[:4], model, others) == (b"RIFF", "guide", [])
    assert client.requests == []
    assert not path.exists()
    assert _left(temporary) == []


@pytest.mark.skipif(sys.platform == "win32", reason="a folder of the user keeps others out there, not a mode")
async def test_the_recording_is_for_its_owner_only_while_it_is_there(open_app, monkeypatch, temporary):
    put_device(monkeypatch, "tone")
    async with open_app(ScriptedClient(model=HEARS)) as user:
        await user.sees("ready")
        await user.presses("alt+r")
        await user.sees("recording · 1:01")
        found = [path for path in _left(temporary) if path.suffix == ".wav"]
        assert [oct(path.stat().st_mode & 0o777) for path in found] == ["0o600"]


async def test_escape_drops_a_recording_and_what_is_being_written_down(open_app, monkeypatch, temporary):
    put_device(monkeypatch, "tone")
    client = ScriptedClient(model=HEARS)
    client.may_transcribe.clear()
    async with open_app(client) as user:
        await user.sees("ready")
        await user.presses("alt+r")
        await user.sees("recording · 1:01")
        await user.presses("escape")
        await user.no_longer_sees("recording")
        assert client.sounds == []
        assert _left(temporary) == []
        await user.asks("/record")
        await user.sees("recording · 1:01")
        await user.presses("enter")
        await user.sees("writing down what you said · esc drop")
        await user.presses("alt+r")
        await user.sees("What you said is being written down.")
        await user.presses("escape")
        await user.no_longer_sees("writing down what you said ·")
        assert user.app.screen.prompt.text == ""
        assert _left(temporary) == []


async def test_leaving_the_app_during_a_recording_leaves_nothing(open_app, monkeypatch, temporary):
    put_device(monkeypatch, "tone")
    async with open_app(ScriptedClient(model=HEARS)) as user:
        await user.sees("ready")
        await user.presses("alt+r")
        await user.sees("recording · 1:01")
        await user.presses("ctrl+q")
        await user.leaves()
    assert _left(temporary) == []


async def test_another_model_of_the_library_hears_where_the_chats_own_does_not(open_app, monkeypatch, temporary):
    put_device(monkeypatch, "tone")
    client = ScriptedClient()
    client.library.here += [LocalModel(id="qwen3-asr", where="library", path="/m/asr.gguf", n_bytes=9, hears=True)]
    async with open_app(client) as user:
        await user.sees("ready")
        await user.presses("alt+r")
        await user.sees("recording · 1:01")
        await user.presses("enter")
        await user.until(lambda: user.app.screen.prompt.text == "what was said", "not inserted")
    assert [model for *_, model in client.sounds] == ["qwen3-asr"]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [("absent", "The microphone cannot be opened. Connect one."), ("dies", "The sound process died")],
)
async def test_a_microphone_that_fails_is_one_sentence(kind, sentence, open_app, monkeypatch, temporary):
    put_device(monkeypatch, kind)
    async with open_app(ScriptedClient(model=HEARS), size=(120, 30)) as user:
        await user.sees("ready")
        await user.presses("alt+r")
        await user.sees(sentence)
        assert "recording ·" not in user.screen_text
    assert _left(temporary) == []


async def test_without_a_model_that_hears_nothing_is_recorded(open_app, monkeypatch, temporary):
    put_device(monkeypatch, "tone")
    async with open_app(ScriptedClient(), size=(120, 30)) as user:
        await user.sees("ready")
        await user.presses("alt+r")
        await user.sees("No local model hears.", "F6 downloads one")
        assert "recording ·" not in user.screen_text


async def test_without_the_extra_its_command_is_named(open_app, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)
    async with open_app(ScriptedClient(model=HEARS), size=(160, 30)) as user:
        await user.sees("ready")
        await user.presses("alt+r")
        await user.sees("Sounds need the extra `audio`")


async def test_a_recording_without_words_says_so(open_app, monkeypatch, temporary):
    put_device(monkeypatch, "tone")
    client = ScriptedClient(model=HEARS)
    client.heard = " "
    async with open_app(client) as user:
        await user.sees("ready")
        await user.presses("alt+r")
        await user.sees("recording · 1:01")
        await user.presses("enter")
        await user.sees("No words were recognised.")


async def _with_answer(user) -> None:
    await user.asks("hello")
    await user.sees("Hello", "ready")


@pytest.mark.parametrize("stopping", ["a", "escape"])
async def test_the_key_on_an_answer_reads_it_aloud_and_stops_it(stopping, open_app, monkeypatch):
    put_device(monkeypatch, "slow")
    client = ScriptedClient(ScriptedReply(deltas=("Hello **there**.",)))
    async with open_app(client) as user:
        await _with_answer(user)
        await user.presses("ctrl+up", "a")
        await user.sees("reading aloud · esc stop")
        await user.presses(stopping)
        await user.no_longer_sees("reading aloud ·")
    assert client.spoken == [("Hello there.", "")]


async def test_slash_speak_reads_the_last_answer_by_the_model_that_was_named(open_app, monkeypatch):
    put_device(monkeypatch, "mute")
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.asks("/speak")
        await user.sees("There is nothing to read aloud.")
        await _with_answer(user)
        await user.asks("/speak qwen3-tts")
        await user.until(lambda: len(client.spoken) == 1 and "aloud ·" not in user.screen_text, "not read")
        client.speak_error = RequestError("There is no model qwen.")
        await user.asks("/speak qwen")
        await user.sees("There is no model qwen.")
        client.speak_error = None
        await user.asks("/speak")
        await user.until(lambda: len(client.spoken) == 3, "not read again")
    assert [model for _, model in client.spoken] == ["qwen3-tts", "qwen", "qwen3-tts"]


async def test_the_recording_key_ends_what_is_read_aloud(open_app, monkeypatch, temporary):
    put_device(monkeypatch, "slow")
    async with open_app(ScriptedClient(model=HEARS)) as user:
        await _with_answer(user)
        await user.asks("/speak")
        await user.sees("reading aloud · esc stop")
        await user.presses("alt+r")
        await user.sees("recording · 1:01")
        await user.asks("/speak")  # Enter ends the recording; the line stays in the prompt
        await user.until(lambda: "what was said" in user.app.screen.prompt.text, "not inserted")


async def test_no_model_that_speaks_and_no_loudspeaker_are_a_sentence_each(open_app, monkeypatch):
    client = ScriptedClient()
    client.speak_error = RequestError("No model here speaks.", "Get one that does: `localllm pull X`.")
    async with open_app(client, size=(120, 30)) as user:
        await _with_answer(user)
        put_device(monkeypatch, "mute")
        await user.asks("/speak")
        await user.sees("No model here speaks. Get one that does")
        put_device(monkeypatch, "absent")
        await user.asks("/speak")
        await user.sees("The loudspeaker cannot be opened. Connect one.")
