"""Transcripts by the engine that people have: of a tiny model of random weights that hears, and its projector."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.engine.llama.test_projector import converted
from tests.app.engine.media.files import sound_file
from tests.app.running import RunningService

pytestmark = pytest.mark.slow

SOUND = sound_file(1.5, 22_050, 2)
GREEDY = {"temperature": 0, "max_tokens": 4}  # few: what is as likely depends on the last bits


def in_chat(service: RunningService, *parts: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a chat to the sound as it is, with `parts` before it."""
    sound = {"type": "input_audio", "input_audio": {"data": b64encode(SOUND).decode(), "format": "wav"}}
    body = {"messages": [{"role": "user", "content": [*parts, sound]}], **GREEDY}
    answer: dict[str, Any] = service.http.post("/v1/chat/completions", json=body).json()
    return answer


def test_a_transcript_is_what_a_chat_answers_to_the_same_sound(
    start_service: Callable[..., RunningService], tmp_path: Path
) -> None:
    model, _ = converted(tmp_path, "qwen2audio")
    service = start_service(
        engine="llama", model=str(model), ctx="2048", cache_dir=str(tmp_path / "cache"), idle_tune="false"
    )
    chat = in_chat(service, {"type": "text", "text": "Transcribe audio to text (language: en)"})
    form = {key: str(value) for key, value in GREEDY.items()} | {"language": "en"}
    found = service.http.post("/v1/audio/transcriptions", files={"file": ("a.wav", SOUND)}, data=form).json()
    assert found["text"] == chat["choices"][0]["message"]["content"].strip() != ""
    assert found["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    form |= {"response_format": "verbose_json", "stream": "true"}
    long = sound_file(33, 8000)
    lines = service.http.post("/v1/audio/transcriptions", files={"file": ("a.wav", long)}, data=form).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    segments = [event for event in events if event["type"] == "transcript.text.segment"]
    assert {(segment["start"], segment["end"]) for segment in segments} <= {(0.0, 30.0), (30.0, 33.0)}
    text = "".join(event["delta"] for event in events if event["type"] == "transcript.text.delta")
    assert text == events[-1]["text"] == " ".join(segment["text"] for segment in segments)
