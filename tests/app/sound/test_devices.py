"""Recording and playing by a child process: what it writes, how it ends, and the sentence for each way it fails."""

from __future__ import annotations

import asyncio
import wave
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from app.common import extras
from app.protocol.errors import RequestError
from app.protocol.speech import Said
from app.sound import devices
from app.sound.devices import SoundDeviceError, play, record
from quantizer.system.errors import EngineError, UsageError
from quantizer.system.files import open_private
from tests.app.sound.fake_device_child import put_device
from tests.patience import PATIENCE_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "recording.wav"
    open_private(found, is_new=True).close()
    return found


async def test_a_recording_goes_on_until_it_is_told_to_stop(path, monkeypatch):
    put_device(monkeypatch, "tone")
    must_stop, times = asyncio.Event(), []

    def heard(recorded_s: float) -> None:
        times.append(recorded_s)
        if recorded_s > 60:
            must_stop.set()

    assert await record(path, must_stop, heard) == 1.0
    assert times == [0.0, 61.0]


async def test_a_recording_ends_by_itself_at_its_longest(path, monkeypatch):
    put_device(monkeypatch, "tone")
    assert await record(path, asyncio.Event(), lambda _: None, max_s=1.0) == 1.0


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("absent", SoundDeviceError, "The microphone cannot be opened. Connect one."),
        ("silence", SoundDeviceError, "The microphone gave silence only. Unmute it, "),
        (
            "dies",
            EngineError,
            r"The sound process died \(exit status 3\); its last output: cannot find card. Try again.",
        ),
    ],
)
async def test_a_device_that_fails_is_a_sentence_with_a_remedy(kind, error, words, path, monkeypatch):
    put_device(monkeypatch, kind)
    with pytest.raises(error, match=words):
        await record(path, asyncio.Event(), lambda _: None, max_s=1.0)


async def test_a_sound_server_that_hangs_is_given_up_and_its_process_killed(path, monkeypatch):
    put_device(monkeypatch, "hangs")
    monkeypatch.setattr(devices, "_OPENED_WITHIN_S", 0.1)
    with pytest.raises(SoundDeviceError, match="The microphone does not answer"):
        await record(path, asyncio.Event(), lambda _: None)
    assert not _running_fakes()


async def test_a_cancelled_recording_leaves_no_process(path, monkeypatch):
    put_device(monkeypatch, "tone")
    begun = asyncio.Event()
    recording = asyncio.create_task(record(path, asyncio.Event(), lambda _: begun.set()))
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
    assert _running_fakes()
    recording.cancel()
    await asyncio.wait({recording})
    assert not _running_fakes()


async def test_without_the_extra_the_command_that_installs_it_is_named(path, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"the extra `audio`.*not installed\. Run: .*miniaudio"):
        await record(path, asyncio.Event(), lambda _: None)


class Sentences:
    """Two sentences of 0.1 s, then `error`; `n_begun` were asked for, and `is_closed` says that no more will be."""

    def __init__(self, error: Exception | None = None) -> None:
        self.n_begun, self.is_closed, self._error = 0, False, error

    async def said(self) -> AsyncGenerator[Said, None]:
        try:
            for text in ("One.", "Two."):
                self.n_begun += 1
                yield Said(samples=bytes(4_800), sample_rate=24_000, text=text)
            if self._error is not None:
                raise self._error
        finally:
            self.is_closed = True


async def test_sentences_are_played_one_behind_the_other(monkeypatch):
    put_device(monkeypatch, "mute")
    told: list[str] = []
    await play(Sentences().said(), lambda said: told.append(said.text))
    assert told == ["One.", "Two."]


async def test_nothing_is_computed_where_there_is_no_loudspeaker(monkeypatch):
    put_device(monkeypatch, "absent")
    sentences = Sentences()
    with pytest.raises(SoundDeviceError, match=r"The loudspeaker cannot be opened\. Connect one\."):
        await play(sentences.said(), lambda _: None)
    assert sentences.n_begun == 0


async def test_what_fails_in_between_ends_both_the_sound_and_the_sentences(monkeypatch):
    put_device(monkeypatch, "unplugged")
    sentences = Sentences()
    with pytest.raises(SoundDeviceError, match="takes no sound any more"):
        await play(sentences.said(), lambda _: None)
    assert sentences.is_closed
    put_device(monkeypatch, "mute")
    with pytest.raises(RequestError, match="No model here speaks"):
        await play(Sentences(RequestError("No model here speaks.")).said(), lambda _: None)
    assert not _running_fakes()


async def test_cancelled_playing_ends_at_once(monkeypatch):
    put_device(monkeypatch, "slow")
    begun, sentences = asyncio.Event(), Sentences()
    playing = asyncio.create_task(play(sentences.said(), lambda _: begun.set()))
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
    playing.cancel()
    await asyncio.wait({playing})
    assert sentences.is_closed
    assert not _running_fakes()


# The real child, by the backend of miniaudio that needs no device: it gives silence, in real time.


@pytest.mark.slow
async def test_the_real_child_writes_wav_of_16_khz_for_its_owner_only(path):
    pytest.importorskip("miniaudio")
    must_stop, times = asyncio.Event(), []

    def heard(recorded_s: float) -> None:
        times.append(recorded_s)
        if recorded_s > 0:
            must_stop.set()

    with pytest.raises(SoundDeviceError, match="silence only"):
        await record(path, must_stop, heard, backends=["NULL"])
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16_000)
        assert file.getnframes() >= times[-1] * 16_000 > 0
        assert len(file.readframes(1 << 20)) == 2 * file.getnframes()


@pytest.mark.slow
async def test_the_real_child_ends_at_the_longest_recording_to_the_sample(path):
    pytest.importorskip("miniaudio")
    with pytest.raises(SoundDeviceError, match="silence only"):
        await record(path, asyncio.Event(), lambda _: None, max_s=0.33, backends=["NULL"])
    with wave.open(str(path)) as file:
        assert file.getnframes() == 5_280


@pytest.mark.slow
async def test_the_real_child_plays_to_the_end():
    pytest.importorskip("miniaudio")
    told: list[str] = []
    await play(Sentences().said(), lambda said: told.append(said.text), backends=["NULL"])
    assert told == ["One.", "Two."]


@pytest.mark.slow
async def test_a_machine_without_a_microphone_says_so(path):
    miniaudio = pytest.importorskip("miniaudio")
    real = [each for each in miniaudio.Backend if each not in (miniaudio.Backend.NULL, miniaudio.Backend.CUSTOM)]
    try:
        miniaudio.CaptureDevice(backends=real).close()
    except miniaudio.MiniaudioError:
        with pytest.raises(SoundDeviceError, match=r"The microphone .*\. (Connect|Allow|End)"):
            await record(path, asyncio.Event(), lambda _: None)
    else:
        pytest.skip("this machine has a microphone")


def _running_fakes() -> list[int]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # a zombie of another test
            if any("fake_device_child" in part for part in child.cmdline()):
                found.append(child.pid)
    return found
