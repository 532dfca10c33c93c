from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.errors import RequestError
from app.service.generation.speech import (
    MAX_SENTENCE_BYTES,
    MAX_SENTENCE_CHARACTERS,
    VOICES,
    _voice,
    sentences,
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hello there. How are you? Fine!", ["Hello there.", "How are you?", "Fine!"]),
        ("It costs 3.5 euros, e.g. in Bonn. Not here.", ["It costs 3.5 euros, e.g. in Bonn.", "Not here."]),
        ('He said "Go." She went.', ['He said "Go."', "She went."]),
        ("A title\n\nA text of\ntwo lines.", ["A title", "A text of two lines."]),
        ("你好。你好吗？我很好", ["你好。", "你好吗？", "我很好"]),
        ("One… Two.   ", ["One…", "Two."]),
        ("*** --- ...", []),
        ("", []),
    ],
)
def test_a_text_is_cut_into_its_sentences(text: str, parts: list[str]) -> None:
    assert sentences(text) == parts


def test_a_long_sentence_is_cut_at_commas_then_at_blanks_then_anywhere() -> None:
    clause = "this is a clause of some words"
    found = sentences(", ".join([clause] * 30) + ".")
    assert all(part.endswith((",", ".")) for part in found)
    assert len(found) < 6, "clauses share a part as far as they fit"
    words = sentences(" ".join(["word"] * 200))
    assert set(" ".join(words).split()) == {"word"}
    assert len("".join(sentences("a" * 1000))) == 1000


@given(st.text(max_size=2000))
def test_every_word_is_said_once_in_parts_that_the_engine_takes(text: str) -> None:
    parts = sentences(text)
    assert all(len(part) <= MAX_SENTENCE_CHARACTERS for part in parts)
    assert all(len(part.encode("utf-8", "replace")) <= MAX_SENTENCE_BYTES for part in parts)
    letters = [letter for letter in text if letter.isalnum()]
    assert [letter for part in parts for letter in part if letter.isalnum()] == letters


def test_a_voice_is_a_sound_of_the_folder_or_of_the_request(tmp_path: Path) -> None:
    folder = tmp_path / VOICES
    assert _voice("", folder) is _voice("alloy", folder) is None
    inline = _voice("data:audio/wav;base64,QUJD", folder)
    assert inline is not None
    assert inline.data == b"ABC"
    folder.mkdir()
    folder.joinpath("Ann Ying.flac").write_bytes(b"sound")
    folder.joinpath("alloy.wav").write_bytes(b"own")
    for name, data in (("Ann Ying", b"sound"), ("alloy", b"own")):
        found = _voice(name, folder)
        assert found is not None
        assert found.data == data


@pytest.mark.parametrize("name", ["bob", "../secret", "/etc/passwd", "data:text/plain;base64,QQ==", "a" * 100, "."])
def test_a_voice_that_is_not_there_names_those_that_are(tmp_path: Path, name: str) -> None:
    folder = tmp_path / VOICES
    tmp_path.joinpath("secret.wav").write_bytes(b"secret")
    with pytest.raises(RequestError) as refused:
        _voice(name, folder)
    assert str(folder) in refused.value.remedy
    folder.mkdir()
    folder.joinpath("ann.mp3").write_bytes(b"sound")
    with pytest.raises(RequestError) as refused:
        _voice(name, folder)
    assert "Voices: ann" in refused.value.remedy
