"""Transcripts over HTTP and by OpenAI's client, with the fake engine: it says what the `prompt` tells it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.engine.media.files import flac_file, mp3_file, picture_file, sound_file
from tests.app.running import RunningService
from tests.app.service.api import sdk
from tests.quantizer.gguf_projectors import hearing_header

pytestmark = pytest.mark.slow  # each sound has a process that decodes it

SOUND = ("talk.wav", sound_file(2.0))
SAID = "Hello there."
SAY = f"<say>{SAID}</say>"
TWO_WINDOWS = ("long.wav", sound_file(40.0, 8000))


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a model that hears; models beside it hear nothing, or in Qwen3-ASR's way."""
    folder = tmp_path_factory.mktemp("hearing")
    hears = folder / "data" / "models" / "me" / "hearing"
    hearing_header(hears / "mmproj-hearing.gguf")
    shutil.copy(tiny_model, hears / "hearing.gguf")
    hearing_header(folder / "asr" / "mmproj-asr.gguf", kind="qwen3a")
    shutil.copy(tiny_model, folder / "asr" / "asr.gguf")
    return folder


@pytest.fixture(scope="module")
def hearing(folder: Path, tiny_model: Path, start_service: Callable[..., RunningService]) -> RunningService:
    """A service whose default hears nothing."""
    return start_service(model=str(tiny_model), data_dir=str(folder / "data"))


@pytest.fixture(scope="module")
def asr(folder: Path, start_service: Callable[..., RunningService]) -> RunningService:
    return start_service(model=str(folder / "asr" / "asr.gguf"))


@pytest.fixture(scope="module")
def client(hearing: RunningService) -> Iterator[sdk.openai.OpenAI]:
    with sdk.openai.OpenAI(base_url=f"{hearing.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def heard(
    service: RunningService, file: tuple[str, bytes] = SOUND, task: str = "transcriptions", **fields: Any
) -> httpx.Response:
    return service.http.post(f"/v1/audio/{task}", files={"file": file}, data={"prompt": SAY, **fields})


def refusal(response: httpx.Response, status: int = 400) -> str:
    assert response.status_code == status, response.text
    message: str = response.json()["error"]["message"]
    return message


def test_openais_client_reads_json(client: sdk.openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(file=SOUND, model="whisper-1", prompt=SAY)
    assert found.text == SAID
    assert found.usage is not None
    assert found.usage.type == "tokens"
    assert found.usage.output_tokens >= len(SAID)


def test_openais_client_reads_segments(client: sdk.openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(
        file=SOUND,
        model="hearing",
        prompt=SAY,
        language="en",
        response_format="verbose_json",
        timestamp_granularities=["segment"],
    )
    assert (found.text, found.language, found.duration) == (SAID, "en", 2.0)
    (segment,) = found.segments or ()
    assert (segment.id, segment.start, segment.end, segment.text) == (0, 0.0, 2.0, SAID)
    assert bytes(token for token in segment.tokens if token < 256).decode() == SAID, "the fake's tokens are bytes"
    assert segment.avg_logprob < 0
    assert segment.compression_ratio > 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("text", f"{SAID}\n"),
        ("srt", f"1\n00:00:00,000 --> 00:00:02,000\n{SAID}\n"),
        ("vtt", f"WEBVTT\n\n00:00:00.000 --> 00:00:02.000\n{SAID}\n"),
    ],
)
def test_openais_client_reads_text_and_subtitles(client: sdk.openai.OpenAI, name: Any, text: str) -> None:
    found: object = client.audio.transcriptions.create(file=SOUND, model="", prompt=SAY, response_format=name)
    assert found == text


def test_openais_client_reads_a_stream(client: sdk.openai.OpenAI) -> None:
    events = [*client.audio.transcriptions.create(file=SOUND, model="", prompt=SAY, stream=True)]
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == SAID
    done = events[-1]
    assert done.type == "transcript.text.done"
    assert done.text == SAID
    assert done.usage is not None
    assert {event.type for event in events} == {"transcript.text.delta", "transcript.text.done"}


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # which the SDK says of its own method
def test_openais_client_translates(client: sdk.openai.OpenAI) -> None:
    found = client.audio.translations.create(file=SOUND, model="hearing", prompt=SAY, response_format="verbose_json")
    assert (found.text, found.language) == (SAID, "English")


def test_a_stream_of_segments_says_how_long_the_sound_is(hearing: RunningService) -> None:
    response = heard(hearing, TWO_WINDOWS, stream="true", response_format="verbose_json")
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    segments = [event for event in events if event["type"] == "transcript.text.segment"]
    assert [(each["start"], each["end"]) for each in segments] == [(0.0, 30.0)]
    assert {round(each["duration"]) for each in segments} == {40}
    assert events[-1]["text"] == SAID, "what both windows have is there once"
    assert events[-1]["duration"] == 40.0


@pytest.mark.parametrize(
    "file", [("a.flac", flac_file()), ("a.mp3", mp3_file()), ("no name", sound_file(0.2, 44_100, 2))]
)
def test_each_format_is_recognised_by_its_content(hearing: RunningService, file: tuple[str, bytes]) -> None:
    assert heard(hearing, file).json()["text"] in (SAID, ""), "the MP3 is silent"


def test_silence_has_no_text_and_the_model_is_not_asked(hearing: RunningService) -> None:
    n_before = hearing.n_output_tokens()
    assert heard(hearing, ("a.mp3", mp3_file()), response_format="srt").text == ""
    assert hearing.n_output_tokens() == n_before


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (("a.wav", sound_file(0)), "has no samples"),
        (("a.wav", sound_file(0.01)), "10 ms. Send one of at least 100 ms"),
        (("a.wav", sound_file()[:40]), "damaged"),
        (("a.wav", picture_file()), "Send a sound: WAV, MP3, FLAC or Ogg Vorbis"),
        (("a.m4a", b"\0\0\0\x20ftypM4A "), "an M4A sound"),
        (("a.wav", b""), "no content"),
    ],
)
def test_a_file_without_a_sound_is_refused(hearing: RunningService, file: tuple[str, bytes], said: str) -> None:
    assert said in refusal(heard(hearing, file))
    assert said in refusal(heard(hearing, file, stream="true"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"timestamp_granularities[]": "word", "response_format": "verbose_json"}, "words have no times"),
        ({"include[]": "logprobs"}, "include has logprobs"),
        ({"response_format": "srt", "stream": "true"}, "is not streamed"),
        ({"response_format": "diarized_json"}, "response_format"),
        ({"known_speaker_names[]": "Ann"}, "Speakers are not told apart"),
        ({"language": "<|im_end|>"}, "language"),
        ({"temperature": "hot"}, "temperature"),
    ],
)
def test_what_no_transcript_has_is_refused(hearing: RunningService, fields: dict[str, str], said: str) -> None:
    assert said in refusal(heard(hearing, **fields))


def test_another_body_than_a_form_with_a_file_is_refused(hearing: RunningService) -> None:
    assert "form" in refusal(hearing.http.post("/v1/audio/transcriptions", json={"file": "a"}), 415)
    response = hearing.http.post("/v1/audio/transcriptions", files={"other": SOUND})
    assert "file" in refusal(response)
    response = hearing.http.post("/v1/audio/transcriptions", files={"x": ("", b"a")}, data={"file": "a.wav"})
    assert "file" in refusal(response)


def test_a_model_that_hears_nothing_says_which_does(hearing: RunningService, tiny_model: Path) -> None:
    assert "Ask hearing, which hears sounds." in refusal(heard(hearing, model=tiny_model.stem))
    assert refusal(heard(hearing, model="unheard-of-7b"), 404)


def test_without_a_model_that_hears_the_remedy_names_one(service: RunningService) -> None:
    for model in ("", "whisper-1"):
        assert "localllm pull ggml-org/Qwen3-ASR-0.6B-GGUF" in refusal(heard(service, model=model))


def test_a_model_that_only_writes_down_refuses_to_translate(asr: RunningService) -> None:
    assert "does not translate" in refusal(heard(asr, task="translations"))
    assert heard(asr).json()["text"] == SAID


def test_what_the_model_takes_none_of_is_named(asr: RunningService, hearing: RunningService) -> None:
    assert "warnings" not in heard(asr, language="en").json()
    assert "warnings" not in heard(hearing, language="en").json()
    assert heard(hearing, max_tokens="3").json()["warnings"] == [
        "The text from 0 to 2 s was cut at 3 tokens: the model repeats itself, or `max_tokens` is too few."
    ]
    assert "x" in heard(hearing, x="1").headers["x-localllm-warning"]


def test_a_client_that_hangs_up_ends_the_work_within_a_second(hearing: RunningService) -> None:
    n_tokens = 900
    n_before = hearing.n_output_tokens()
    form: dict[str, Any] = {
        "files": {"file": SOUND},
        "data": {"prompt": f"<noise>{n_tokens}</noise>", "stream": "true"},
    }
    with hearing.http.stream("POST", "/v1/audio/transcriptions", **form) as response:
        next(response.iter_lines())
        begun_s = time.monotonic()
    hearing.wait_until_cut(n_before, n_tokens)
    print(f"ended {time.monotonic() - begun_s:.2f} s after the client had gone")
