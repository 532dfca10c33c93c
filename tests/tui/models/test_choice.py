"""The choice of a model by a typed name."""

from __future__ import annotations

import pytest

from app.protocol.library import LocalModel
from quantizer.system.errors import UsageError
from tests.tui.model_scenes import GUIDE
from tui.models.choice import find_model, model_lines

MODELS = (
    GUIDE,
    *(
        LocalModel(id=name, where="library", path=f"/m/{name}.gguf", n_bytes=1)
        for name in ("qwen3-4b-Q4_K_M", "qwen3-4b-Q8_0", "qwen3-4b-Q8_0-long")
    ),
)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("guide", "guide"),
        ("QWEN3-4B-q8_0", "qwen3-4b-Q8_0"),
        ("/m/qwen3-4b-Q8_0.gguf", "qwen3-4b-Q8_0"),
        ("qwen q4", "qwen3-4b-Q4_K_M"),
    ],
)
def test_a_whole_name_or_words_that_only_one_name_has_find_a_model(typed, found):
    assert find_model(typed, MODELS).id == found


@pytest.mark.parametrize("typed", ["Qwen3-4B-Q8_0", "qwen3:4b-q8_0", "3-4B-Q8", "3:4b q8"])
def test_a_model_is_found_by_the_name_of_its_file_too(typed):
    models = [
        LocalModel(id=name, where="library", path=f"/m/{file}.gguf", n_bytes=1)
        for name, file in (("qwen3:4b-q8_0", "Qwen3-4B-Q8_0"), ("qwen3:4b-long-q4_0", "Qwen3-4B-long-Q4_0"))
    ]
    assert find_model(typed, models).id == "qwen3:4b-q8_0"


def test_the_hash_that_a_file_of_ollama_is_called_by_finds_nothing():
    blob = LocalModel(id="llama3.2:3b", where="Ollama", path="/o/blobs/sha256-4bq8", n_bytes=1)
    with pytest.raises(UsageError):
        find_model("4b q8", [blob])


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ("qwen", "qwen may be qwen3-4b-Q4_K_M, qwen3-4b-Q8_0, qwen3-4b-Q8_0-long."),
        ("giude", "There is no local model giude. Did you mean guide?"),
        ("###", "There is no local model ###. /model lists the local models."),
    ],
)
def test_a_name_that_finds_none_or_several_says_which_are_similar(typed, complaint):
    with pytest.raises(UsageError) as refused:
        find_model(typed, MODELS)
    assert str(refused.value).startswith(complaint)


def test_the_current_model_is_marked_in_the_list():
    assert model_lines(MODELS[:2], "guide") == ["* guide", "  qwen3-4b-Q4_K_M"]
    assert "localllm pull" in model_lines((), "guide")[0]
