"""How models that hear are asked, and what their answers begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.library.local.model_files import ModelRef
from app.library.local.projectors import FoundProjector
from app.protocol.errors import RequestError
from app.service.generation.sound_reader import Window
from app.service.generation.transcription import Wanted, _Heard, _TaggedText, check_wanted
from app.service.models.model_file import ModelFile, Senses
from app.service.models.served_model import ServedModel
from quantizer.gguf.projector_header import read_projector
from tests.app.service.generation.test_chat import PLAIN, HereAndNow
from tests.quantizer.gguf_projectors import hearing_header

WINDOW = Window(0.0, 1.0, 1.0, False, "UklGRg==")
SOUND = "<sound>"


class _Hearing(ServedModel):
    """A model that hears, without an engine."""

    senses = Senses(hears=True)


def model(tmp_path: Path, kind: str) -> ServedModel:
    found = FoundProjector(read_projector(hearing_header(tmp_path / f"mmproj-{kind}.gguf", kind)))
    file = ModelFile(chat_template=PLAIN, bos_token="", eos_token="", n_ctx_train=1, n_bytes=1, projector=found)
    no_engine = cast("Any", None)
    return _Hearing(ModelRef("test", Path("test.gguf")), file, no_engine, no_engine, HereAndNow())


async def prompt(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, **wanted: Any) -> str:
    """The prompt for one window, with its sound as SOUND."""

    async def turn_as_text(_model: ServedModel, turn: Any) -> Any:
        (marker,) = turn.media.markers
        said = "".join(f"[{each.role}]{each.content}" for each in turn.messages)
        raise _Asked(said.replace(marker, SOUND))

    monkeypatch.setattr("app.service.generation.transcription.chat_generation", turn_as_text)
    with pytest.raises(_Asked) as asked:
        await _Heard(model(tmp_path, kind), Wanted(**wanted))._generation(WINDOW)
    return str(asked.value)


class _Asked(Exception):
    pass


@pytest.mark.parametrize(
    ("kind", "wanted", "asked"),
    [
        ("ultravox", {}, f"[user]Transcribe audio to text{SOUND}"),
        ("ultravox", {"language": "en"}, f"[user]Transcribe audio to text (language: en){SOUND}"),
        ("ultravox", {"translates": True}, f"[user]Translate audio to English text{SOUND}"),
        (
            "ultravox",
            {"context": "Ann {x}"},
            f"[user]Transcribe audio to text\n\nWhat is known about it: Ann {{x}}\n\n{SOUND}",
        ),
        ("qwen3a", {}, f"[user]{SOUND}"),
        ("qwen3a", {"context": "Ann"}, f"[system]Ann[user]{SOUND}"),
        ("qwen3a", {"language": "de"}, f"[user]{SOUND}[assistant]language German<asr_text>"),
        ("qwen3a", {"language": "Frisian"}, f"[user]{SOUND}[assistant]language Frisian<asr_text>"),
        ("voxtral", {}, f"[user]{SOUND}[assistant][TRANSCRIBE]"),
        ("voxtral", {"language": "fr"}, f"[user]{SOUND}[assistant]lang:fr[TRANSCRIBE]"),
        ("voxtral", {"translates": True, "language": "fr"}, f"[user]Translate audio to English text{SOUND}"),
        ("lfm2a", {}, f"[system]Perform ASR.[user]{SOUND}"),
        ("granite_speech", {}, f"[user]{SOUND}can you transcribe the speech into a written format?"),
    ],
)
async def test_each_kind_of_model_is_asked_in_its_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, wanted: dict[str, Any], asked: str
) -> None:
    assert await prompt(tmp_path, kind, monkeypatch, **wanted) == asked


def test_what_a_model_cannot_is_refused_and_what_has_no_effect_is_noted(tmp_path: Path) -> None:
    lfm2 = model(tmp_path, "lfm2a")
    with pytest.raises(RequestError, match="does not translate"):
        check_wanted(lfm2, Wanted(translates=True))
    check_wanted(lfm2, Wanted(language="en", context="Ann"))
    assert [notice.partition(" ")[0] for notice in lfm2.record.notices] == ["prompt", "language"]
    any_model = model(tmp_path, "ultravox")
    check_wanted(any_model, Wanted(language="en", context="Ann", translates=True))
    assert any_model.record.notices == []


def untagged(answer: str, n_characters: int, tag: str = "<asr_text>") -> tuple[str, str]:
    tagged = _TaggedText(tag)
    pieces = [answer[begin : begin + n_characters] for begin in range(0, len(answer), n_characters)]
    text = "".join(tagged.push(piece, is_final=False) for piece in pieces)
    return text + tagged.push("", is_final=True), tagged.language


@pytest.mark.parametrize(
    ("answer", "text", "language"),
    [
        ("language English<asr_text>Hello.", "Hello.", "English"),
        ("language None<asr_text>", "", ""),
        ("languages are hard", "languages are hard", ""),
        ("language ", "language ", ""),
        ("", "", ""),
    ],
)
@pytest.mark.parametrize("n_characters", [1, 7, 100])
def test_the_language_that_an_answer_begins_with_is_no_text(
    answer: str, text: str, language: str, n_characters: int
) -> None:
    assert untagged(answer, n_characters) == (text, language)


@given(st.text("lang uge<>", max_size=120), st.integers(1, 9))
def test_an_answer_without_a_tag_is_text(answer: str, n_characters: int) -> None:
    assert untagged(answer, n_characters, tag="") == (answer, "")
    assert untagged(answer, n_characters) == (answer, "")
