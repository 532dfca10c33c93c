from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from app.library.local.model_task import models_for, task_of
from app.settings.settings import Settings
from tests.quantizer.gguf_files import tiny_llama


@pytest.mark.parametrize(
    ("architecture", "metadata", "task"),
    [
        ("llama", {}, "text"),
        ("llama", {"llama.pooling_type": 0}, "text"),
        ("qwen3", {"qwen3.pooling_type": 3}, "vectors"),
        ("bert", {"bert.pooling_type": 1, "bert.attention.causal": False}, "vectors"),
        ("bert", {"bert.pooling_type": 4}, "ranking"),
        ("nomic-bert", {"nomic-bert.attention.causal": False}, "vectors"),
        ("t5encoder", {}, "vectors"),
    ],
)
def test_the_header_says_what_a_model_was_made_for(architecture: str, metadata: dict[str, object], task: str) -> None:
    assert task_of(architecture, metadata) == task


def test_models_for_a_task_come_smallest_first_and_damaged_files_are_skipped(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    settings.models_dir.mkdir()

    def large(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("llama.pooling_type", 1)
        writer.add_string("general.description", "x" * 10_000)

    tiny_llama(settings.models_dir / "a-large.gguf", large)
    tiny_llama(settings.models_dir / "b-small.gguf", lambda writer: writer.add_uint32("llama.pooling_type", 1))
    tiny_llama(settings.models_dir / "c-chat.gguf")
    (settings.models_dir / "d-damaged.gguf").write_bytes(b"GGUF")
    assert [ref.id for ref in models_for("vectors", settings)] == ["b-small", "a-large"]
    assert list(models_for("ranking", settings)) == []
