"""`localllm speak`: its files and failures, with the fake engine."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import wave
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

import pytest

from app.cli.verbs.speak import _collected
from app.protocol.speech import Said
from tests.app.cli.in_process import json_of, run_localllm
from tests.app.engine.media.files import picture_file, sound_file
from tests.app.running import RunningService
from tests.app.service_process import start_command
from tests.patience import PATIENCE_S
from tests.quantizer.gguf_speakers import tiny_speaker

pytestmark = pytest.mark.slow  # a service of its own

TEXT = "Hello there. How are you? "
N_SAMPLES = 6 * 1920  # a frame for four characters of each sentence


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory, start_service: Callable[..., RunningService]) -> RunningService:
    return start_service(model=str(tiny_speaker(tmp_path_factory.mktemp("speaking"), "qwen3tts")))


@pytest.fixture
def at_service(speaking: RunningService, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that finds the service with a model that speaks."""
    return {**environment, "LOCALLLM_PORT": speaking.url.rpartition(":")[2]}


def test_a_wav_of_known_length_is_written(at_service: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "a.wav"
    done = run_localllm(at_service, "speak", TEXT, "-o", output)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert f"{output}: 0.5 s" in done.stderr
    with wave.open(str(output)) as file:
        assert (file.getnframes(), file.getframerate()) == (N_SAMPLES, 24_000)


def test_raw_samples_and_json(at_service: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "a.pcm"
    found = json_of(run_localllm(at_service, "speak", TEXT, "-o", output, "--json", "--seed", 1))
    assert found == {
        "file": str(output),
        "length_s": 0.48,
        "sample_rate": 24_000,
        "sentences": ["Hello there.", "How are you?"],
    }
    assert output.stat().st_size == 2 * N_SAMPLES


def test_a_piped_text_goes_to_a_piped_wav(at_service: dict[str, str]) -> None:
    process = start_command(at_service, "speak", "-", "-o", "-", "--language", "en")
    written, _ = process.communicate(TEXT.encode(), timeout=PATIENCE_S)
    assert process.returncode == 0
    with wave.open(io.BytesIO(written)) as file:
        assert len(file.readframes(1 << 20)) == 2 * N_SAMPLES


def test_a_voice_is_a_file_of_this_machine(at_service: dict[str, str], tmp_path: Path) -> None:
    voice = tmp_path / "ann.wav"
    voice.write_bytes(sound_file(0.5))
    sounds = []
    for arguments in (("--voice", voice), ("--voice", "alloy"), ()):
        run_localllm(at_service, "speak", TEXT, "-o", tmp_path / "a.pcm", "--seed", 1, *arguments)
        sounds.append((tmp_path / "a.pcm").read_bytes())
    assert sounds[0] != sounds[1] == sounds[2]


@pytest.mark.parametrize(
    ("arguments", "said", "status"),
    [
        ((TEXT, "-o", "a.mp3"), "no format of speech. End it in .wav or .pcm", 2),
        ((TEXT, "-o", "-", "--json"), "cannot have both", 2),
        ((TEXT, "-o", "none/a.wav"), "cannot be written", 1),
        ((TEXT, "-o", "a.wav", "--voice", "gone.wav"), "gone.wav cannot be read", 2),
        ((TEXT, "-o", "a.wav", "--voice", "picture.png"), "picture.png is a picture", 2),
        ((TEXT, "-o", "a.wav", "--voice", "bob"), "There is no voice 'bob'", 1),
        (("-", "-o", "a.wav"), "There is no text to say", 2),
        ((" ", "-o", "a.wav"), "There is no text to say", 2),
        (("?!", "-o", "a.wav"), "no letter or digit", 1),
        ((TEXT,), "Missing option", 2),
        (("-o", "a.wav"), "Missing argument", 2),
    ],
)
def test_what_cannot_be_done_is_said_and_writes_nothing(
    at_service: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], said: str, status: int
) -> None:
    tmp_path.joinpath("picture.png").write_bytes(picture_file())
    done = run_localllm(at_service, "speak", *arguments, cwd=tmp_path)
    assert said in done.stderr
    assert done.returncode == status
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


async def test_a_sentence_that_was_cut_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    async def said() -> AsyncGenerator[Said, None]:
        yield Said(samples=bytes(96_000), sample_rate=24_000, text="Never ends.", is_cut=True)
        yield Said(samples=bytes(2), sample_rate=24_000, text="Ends.")

    assert [each.text for each in await _collected(said())] == ["Never ends.", "Ends."]
    told = capsys.readouterr().err
    assert "Cut after 2 s, for the model did not end it: Never ends." in told
    assert "Ends." not in told.replace("Never ends.", "")


@pytest.mark.skipif(os.name == "nt", reason="a signal of POSIX")
def test_ctrl_c_ends_it_and_leaves_the_file_as_it_was(
    speaking: RunningService, at_service: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "a.wav"
    output.write_bytes(b"before")
    process = start_command(at_service, "speak", TEXT * 2000, "-o", str(output))
    while speaking.http.post("/api/localllm/unload", json={}).status_code == 200:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    try:
        written, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert (process.returncode, written) == (130, b"")
    assert output.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]
    while speaking.http.post("/api/localllm/unload", json={}).status_code != 200:
        pass
