from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantizer.errors import CheckpointError
from quantizer.tokenizers import vocabulary_entries
from tests.quantizer.tokenizer_files import vocabulary_of


def test_a_file_goes_before_the_settings(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert vocabulary_of(tmp_path).chat_templates == {"default": "{{ messages }}"}


def test_named_templates_are_kept(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    found = vocabulary_of(tmp_path, lambda _parsed, settings: settings.update(chat_template=named))
    assert found.chat_templates == {"default": "a", "tool_use": "b"}


def test_further_files_are_named_after_themselves(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("a")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("b")
    assert vocabulary_of(tmp_path).chat_templates == {"default": "a", "rag": "b"}


def test_a_processor_may_hold_the_template(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "c"}))
    found = vocabulary_of(tmp_path, lambda _parsed, settings: settings.pop("chat_template"))
    assert found.chat_templates == {"default": "c"}


def test_each_template_has_its_key_and_the_named_ones_are_listed(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool use", "template": "b"}]
    found = vocabulary_of(tmp_path, lambda _parsed, settings: settings.update(chat_template=named))
    keys = [entry.key for entry in vocabulary_entries(found)]
    assert keys[-3:] == ["tokenizer.chat_template", "tokenizer.chat_templates", "tokenizer.chat_template.tool_use"]


@pytest.mark.parametrize("template", [7, ["x"], [{"name": "a"}]])
def test_templates_without_text_are_refused(tmp_path: Path, template: object) -> None:
    with pytest.raises(CheckpointError, match="not sound"):
        vocabulary_of(tmp_path, lambda _parsed, settings: settings.update(chat_template=template))


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja is not sound"):
        vocabulary_of(tmp_path)
