"""Speech over HTTP and by OpenAI's client, with the fake engine: a tone for each sentence."""

from __future__ import annotations

import io
import json
import time
import wave
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.engine.media.files import sound_file
from tests.app.running import RunningService
from tests.app.service.api import sdk
from tests.patience import PATIENCE_S
from tests.quantizer.gguf_speakers import tiny_speaker

pytestmark = pytest.mark.slow  # services of its own

TEXT = "Hello there. How are you today? "
FRAME = 2 * 1920  # bytes
SIZES = [3 * FRAME, 5 * FRAME]  # of its sentences, a frame for four characters


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a model that speaks and one that needs a voice, and a voice."""
    data = tmp_path_factory.mktemp("data")
    tiny_speaker(data / "models" / "me" / "talker", "qwen3tts")
    (data / "voices").mkdir()
    (data / "voices" / "ann.wav").write_bytes(sound_file(0.5))
    return data


@pytest.fixture(scope="module")
def speaking(data: Path, tiny_model: Path, start_service: Callable[..., RunningService]) -> RunningService:
    """A service whose default does not speak."""
    return start_service(model=str(tiny_model), data_dir=str(data))


@pytest.fixture(scope="module")
def client(speaking: RunningService) -> Iterator[sdk.openai.OpenAI]:
    with sdk.openai.OpenAI(base_url=f"{speaking.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def asked(service: RunningService, text: str = TEXT, **fields: Any) -> httpx.Response:
    return service.http.post("/v1/audio/speech", json={"input": text, **fields})


def refusal(response: httpx.Response, status: int = 400) -> str:
    assert response.status_code == status, response.text
    message: str = response.json()["error"]["message"]
    return message


def test_openais_client_gets_a_wav(client: sdk.openai.OpenAI) -> None:
    found = client.audio.speech.create(input=TEXT, model="tts-1", voice="alloy", response_format="wav")
    assert found.response.headers["content-type"] == "audio/wav"
    with wave.open(io.BytesIO(found.content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        assert len(file.readframes(1 << 20)) == sum(SIZES)


def test_openais_client_gets_raw_samples_and_writes_them(client: sdk.openai.OpenAI, tmp_path: Path) -> None:
    speech = client.audio.speech
    with speech.with_streaming_response.create(
        input=TEXT, model="qwen3tts", voice="ann", response_format="pcm"
    ) as found:
        found.stream_to_file(tmp_path / "a.pcm")
    assert found.headers["content-type"] == "audio/pcm"
    assert (tmp_path / "a.pcm").stat().st_size == sum(SIZES)


def test_a_single_sentence_has_a_wav_of_known_length(speaking: RunningService) -> None:
    data = asked(speaking, "Hello there.").content
    with wave.open(io.BytesIO(data)) as file:
        assert file.getnframes() == 3 * 1920


def test_events_have_a_sentence_each(speaking: RunningService) -> None:
    response = asked(speaking, stream_format="sse", response_format="pcm")
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    *sentences, done = events
    assert [(each["type"], each["text"]) for each in sentences] == [
        ("speech.audio.delta", "Hello there."),
        ("speech.audio.delta", "How are you today?"),
    ]
    assert [len(b64decode(each["audio"])) for each in sentences] == SIZES
    assert done["type"] == "speech.audio.done"
    assert done["usage"] == {"input_tokens": 30, "output_tokens": 8, "total_tokens": 38}


def test_the_first_sentence_comes_before_the_last_is_said(speaking: RunningService) -> None:
    body = {"input": TEXT * 200, "response_format": "pcm"}
    with speaking.http.stream("POST", "/v1/audio/speech", json=body) as response:
        assert 0 < len(next(response.iter_bytes())) < 100 * sum(SIZES)


def test_voices_differ_and_may_come_with_the_request(speaking: RunningService) -> None:
    def said(**fields: Any) -> bytes:
        response = asked(speaking, response_format="pcm", seed=1, **fields)
        assert response.status_code == 200, response.text
        return response.content

    inline = f"data:audio/wav;base64,{b64encode(sound_file(0.5)).decode()}"
    assert said() == said() == said(voice="alloy")
    assert said(voice="ann") == said(voice={"id": "ann"}) == said(voice=inline)
    assert said(voice="ann") != said()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"response_format": "mp3"}, "response_format mp3 is not made here. Ask for wav or pcm"),
        ({"response_format": "opus"}, "Ask for wav or pcm"),
        ({"speed": 2.0}, "speed is not supported"),
        ({"speed": 9.0}, "speed"),
        ({"text": "... !"}, "no letter or digit"),
        ({"text": ""}, "input"),
        ({"text": "a" * 70_000}, "input"),
        ({"voice": "bob"}, "There is no voice 'bob'. Voices: ann"),
        ({"voice": "../ann"}, "neither a name nor a data: URL"),
        ({"language": "<|im_end|>"}, "language"),
        ({"stream_format": "words"}, "stream_format"),
        ({"temperature": 9}, "temperature"),
    ],
)
def test_what_cannot_be_said_is_refused(speaking: RunningService, fields: dict[str, Any], said: str) -> None:
    assert said in refusal(asked(speaking, **fields))


def test_a_model_that_does_not_speak_says_which_does(speaking: RunningService, tiny_model: Path) -> None:
    assert "does not speak. Ask qwen3tts, which does." in refusal(asked(speaking, model=tiny_model.stem))
    assert refusal(asked(speaking, model="unheard-of-7b"), 404)


def test_without_a_model_that_speaks_the_remedy_names_one(service: RunningService) -> None:
    for model in ("", "tts-1", "gpt-4o-mini-tts"):
        assert "localllm pull ggml-org/Qwen3-TTS" in refusal(asked(service, model=model))


def test_a_model_without_its_projector_says_so(
    tmp_path: Path, tiny_model: Path, start_service: Callable[..., RunningService]
) -> None:
    model = tiny_speaker(tmp_path / "models" / "me" / "mute", "qwen3tts")
    model.with_name("mmproj-qwen3tts.gguf").unlink()
    service = start_service(model=str(tiny_model), data_dir=str(tmp_path))
    assert "speaks only with its mmproj file" in refusal(asked(service, model="qwen3tts"))


def test_a_model_that_needs_a_voice_says_where_voices_are(
    tmp_path: Path, tiny_model: Path, start_service: Callable[..., RunningService]
) -> None:
    tiny_speaker(tmp_path / "models" / "me" / "pocket", "pockettts")
    service = start_service(model=str(tiny_model), data_dir=str(tmp_path))
    assert str(tmp_path / "voices") in refusal(asked(service, model="pockettts", voice="alloy"))
    inline = f"data:audio/wav;base64,{b64encode(sound_file(0.5)).decode()}"
    assert asked(service, model="pockettts", voice=inline).status_code == 200


def test_a_model_that_speaks_does_not_chat(speaking: RunningService) -> None:
    body = {"model": "qwen3tts", "messages": [{"role": "user", "content": "Hello"}]}
    assert "only says texts aloud" in refusal(speaking.http.post("/v1/chat/completions", json=body))


def test_instructions_have_no_effect_and_that_is_told(speaking: RunningService) -> None:
    response = asked(speaking, stream_format="sse", instructions="Whisper.")
    done = json.loads([line for line in response.text.splitlines() if line.startswith("data: {")][-1][6:])
    assert done["warnings"] == ["instructions has no effect: qwen3tts takes none."]


def test_a_client_that_hangs_up_ends_the_work_within_a_second(speaking: RunningService) -> None:
    text = TEXT * 2000  # a minute and a half of the fake's frames
    with speaking.http.stream("POST", "/v1/audio/speech", json={"input": text, "response_format": "pcm"}) as response:
        chunks = response.iter_bytes()  # whose end would end the connection
        next(chunks)
        assert "in use" in refusal(speaking.http.post("/api/localllm/unload", json={"model": "qwen3tts"}))
        gone_s = time.monotonic()
    while speaking.http.post("/api/localllm/unload", json={"model": "qwen3tts"}).status_code != httpx.codes.OK:
        assert time.monotonic() - gone_s < PATIENCE_S
    print(f"free {time.monotonic() - gone_s:.2f} s after the client had gone")
