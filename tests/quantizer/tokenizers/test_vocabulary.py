from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantizer.checkpoint.config import CheckpointError
from quantizer.tokenizers import Token, TokenType, vocabulary_entries
from quantizer.tokenizers.vocabulary import token_list
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


def test_the_settings_do_not_count_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("new")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "c"}))
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    found = vocabulary_of(tmp_path, lambda _parsed, settings: settings.update(chat_template=named))
    assert found.chat_templates == {"default": "new"}


def test_further_files_stand_beside_the_default_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("b")
    found = vocabulary_of(tmp_path, lambda _parsed, settings: settings.update(chat_template="a"))
    assert found.chat_templates == {"default": "a", "rag": "b"}


def test_templates_may_be_named_by_an_object(tmp_path: Path) -> None:
    named = {"default": "a", "tool_use": "b"}
    found = vocabulary_of(tmp_path, lambda _parsed, settings: settings.update(chat_template=named))
    assert found.chat_templates == named


def test_a_processor_file_may_name_several(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": named}))
    found = vocabulary_of(tmp_path, lambda _parsed, settings: settings.pop("chat_template"))
    assert found.chat_templates == {"default": "a", "rag": "b"}


def test_the_settings_of_a_processor_count_where_the_tokenizer_has_none(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text(json.dumps({"chat_template": "p"}))
    assert vocabulary_of(tmp_path).chat_templates != {"default": "p"}
    found = vocabulary_of(tmp_path, lambda _parsed, settings: settings.pop("chat_template"))
    assert found.chat_templates == {"default": "p"}


def entries_of(folder: Path, chat_template: object) -> dict[str, bytes]:
    found = vocabulary_of(folder, lambda _parsed, settings: settings.update(chat_template=chat_template))
    entries = [entry for entry in vocabulary_entries(found) if entry.key.startswith("tokenizer.chat_template")]
    return {entry.key: entry.payload for entry in entries}


def test_each_template_has_its_key_and_the_named_ones_are_listed(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool use", "template": "b"}]
    found = vocabulary_of(tmp_path, lambda _parsed, settings: settings.update(chat_template=named))
    keys = [entry.key for entry in vocabulary_entries(found)]
    assert keys[-3:] == ["tokenizer.chat_template", "tokenizer.chat_templates", "tokenizer.chat_template.tool_use"]


@pytest.mark.parametrize("template", [7, ["x"], [{"name": "a"}], {"default": 7}])
def test_templates_without_text_are_refused(tmp_path: Path, template: object) -> None:
    with pytest.raises(CheckpointError, match="is invalid"):
        vocabulary_of(tmp_path, lambda _parsed, settings: settings.update(chat_template=template))


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja is invalid"):
        vocabulary_of(tmp_path)


def test_named_templates_without_a_default_have_no_plain_key(tmp_path: Path) -> None:
    keys = entries_of(tmp_path, [{"name": "rag", "template": "b"}, {"name": "", "template": "c"}])
    assert list(keys) == ["tokenizer.chat_templates", "tokenizer.chat_template.rag"]


def test_a_template_is_written_as_it_stands(tmp_path: Path) -> None:
    text = "{{ 'ä' }}\n{%- if x %}\r\n  y{% endif %}\n"
    keys = entries_of(tmp_path, text)
    assert list(keys) == ["tokenizer.chat_template"]
    assert keys["tokenizer.chat_template"].endswith(text.encode())


def test_added_tokens_beyond_the_embedding_are_left_out_even_where_the_alphabet_lists_them() -> None:
    alphabet = {0: Token("a"), 1: Token("b"), 2: Token("<pad>")}
    tokens = token_list(alphabet, [(1, "<s>", TokenType.CONTROL), (2, "<pad>", TokenType.CONTROL)], 2)
    assert [token.text for token in tokens] == ["a", "<s>"]
    with pytest.raises(CheckpointError, match="do not fit"):
        token_list(alphabet, [], 2)
