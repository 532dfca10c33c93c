from __future__ import annotations

from pathlib import Path

import pytest

from app.launch import model_facts
from app.launch.model_facts import FirstPrompts, token_sample


def test_the_longest_measurement_of_a_version_and_a_model_is_kept(tmp_path: Path) -> None:
    prompts = FirstPrompts(tmp_path / "cache", "claude 2.1")
    assert prompts.of("coder") == 0
    for n_tokens in (18_000, 35_000, 20_000):
        prompts.record("coder", n_tokens)
    assert prompts.of("coder") == 35_000
    assert prompts.of("other") == 0
    assert FirstPrompts(tmp_path / "cache", "claude 2.2").of("coder") == 0


def test_the_oldest_measurements_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_facts, "_MOST_KEPT", 2)
    prompts = FirstPrompts(tmp_path, "pi")
    for model in ("a", "b", "a", "c"):
        prompts.record(model, 5)
    assert [prompts.of(model) for model in "abc"] == [5, 0, 5]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"pi a": "5"}', '{"pi a": true}', '{"pi a": -3}', "\xff"])
def test_a_damaged_file_counts_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "first_prompts.json").write_text(text, encoding="latin-1")
    prompts = FirstPrompts(tmp_path, "pi")
    assert prompts.of("a") == 0
    prompts.record("a", 7)
    assert prompts.of("a") == 7


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    FirstPrompts(tmp_path / "file", "pi").record("a", 7)
    assert FirstPrompts(tmp_path / "file", "pi").of("a") == 0


def test_the_sample_is_the_text_that_was_counted() -> None:
    assert len(token_sample().encode()) == 2224, "count N_SAMPLE_TOKENS anew with Qwen's tokenizer"
