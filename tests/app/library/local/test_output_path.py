from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.library.local.model_files import ModelRef
from app.library.local.naming import model_output_path
from quantizer.errors import UsageError

MODELS = Path("/models")
OLLAMA = ModelRef("llama3.2:3b", Path("/o/blobs/sha256-ab"), "ollama/llama3.2", "Ollama")
CACHED = ModelRef("org/name/m-Q4", Path("/h/snapshots/c/m-Q4.gguf"), "org/name", "Hugging Face")
LOOSE = ModelRef("m", Path("/x/m.gguf"))
SPLIT = ModelRef("big-00001-of-00002", Path("/x/big-00001-of-00002.gguf"))


@pytest.mark.parametrize(
    ("source", "wanted", "place"),
    [
        (OLLAMA, "", "ollama/llama3.2/llama3.2-3b.gguf"),
        (CACHED, "", "org/name/m-Q4.gguf"),
        (LOOSE, "", "local/m/m.gguf"),
        (SPLIT, "", "local/big/big.gguf"),
        (CACHED, "mine", "local/mine/mine.gguf"),
        (CACHED, "mine.gguf", "local/mine/mine.gguf"),
        (CACHED, "me/mine", "me/mine/m-Q4.gguf"),
        (CACHED, "me/mine/fast", "me/mine/fast.gguf"),
    ],
)
def test_a_model_is_in_the_folder_of_its_name(source: ModelRef, wanted: str, place: str) -> None:
    assert model_output_path(source, wanted, MODELS) == MODELS / place


@pytest.mark.parametrize(
    "wanted",
    [
        "..",
        "../..",
        "a/../b",
        "/abs",
        "a//b",
        "a/b/c/d",
        ".hidden",
        "a\\b",
        "c:",
        "nul",
        "com1/x",
        "a\x1bb",
        "a.",
    ],
)
def test_what_is_no_safe_name_is_refused(wanted: str) -> None:
    with pytest.raises(UsageError, match="not a valid name for a model"):
        model_output_path(LOOSE, wanted, MODELS)


@given(st.text(), st.text(), st.text(), st.text())
def test_no_name_of_anybody_leaves_the_folder(wanted: str, model_id: str, repo: str, file: str) -> None:
    source = ModelRef(model_id, Path("/x") / file.replace("\0", ""), repo)
    try:
        place = model_output_path(source, wanted, MODELS)
    except UsageError:
        assert wanted
    else:
        assert place.parents[2] == MODELS
        assert len(place.parts) == 5
        assert not any(part.startswith(".") for part in place.parts)
        assert place.suffix == ".gguf"
