from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.library.local.recipe import NO_RECIPE, Recipe, read_recipe, recipe_path, write_recipe
from app.protocol.chat import Message
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import StorageError

FULL = Recipe(
    base="tiny",
    system="Be short.",
    template="{{ messages }}",
    license="MIT",
    parameters={"temperature": 0.5, "stop": ["a", "b"]},
    messages=({"role": "user", "content": "Hi"},),
)
ASKED = [{"role": "user", "content": "hello"}]


def test_a_recipe_comes_back_as_it_was_kept_and_a_model_without_one_has_none(tmp_path: Path) -> None:
    path = tmp_path / "made-Q4.gguf"
    assert read_recipe(path) == NO_RECIPE
    write_recipe(path, FULL)
    assert read_recipe(path) == FULL
    assert [entry.name for entry in tmp_path.iterdir()] == ["made-Q4.recipe.json"]


def test_a_recipe_that_cannot_be_kept_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        write_recipe(tmp_path / "missing" / "made.gguf", FULL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"messages": 3}',
        '{"messages": [], "system": 3}',
        '{"messages": [], "unknown": 3}',
        '{"messages": [], "parameters": []}',
        '{"messages": ["x"]}',
        '{"messages": [{"role": "tool", "content": "x"}]}',
        '{"messages": [{"role": "user", "content": 3}]}',
        "[" * 100_000,
        " " * (2 << 20),
    ],
)
def test_a_damaged_recipe_raises_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "made.gguf"
    recipe_path(path).write_text(text)
    with pytest.raises(ModelFileError, match="cannot be read") as refused:
        read_recipe(path)
    assert "made.recipe.json" in refused.value.remedy


def test_a_recipe_over_another_one_changes_only_its_own_fields() -> None:
    grown = Recipe(system="Be kind.", parameters={"temperature": 1}).over(FULL)
    assert (grown.system, grown.template, grown.base) == ("Be kind.", FULL.template, "tiny")
    assert grown.parameters == {"temperature": 1, "stop": ["a", "b"]}
    assert NO_RECIPE.over(FULL) == FULL
    assert FULL.over(NO_RECIPE) == FULL


def test_a_conversation_begins_with_the_recipe_and_a_system_prompt_of_its_own_goes_before() -> None:
    asked, hi = [Message("user", "Well?")], Message("user", "Hi")
    assert FULL.begin(asked) == [Message("system", "Be short."), hi, *asked]
    own = Message("system", "Be long.")
    assert FULL.begin([own, *asked]) == [own, hi, *asked]
    assert NO_RECIPE.begin(asked) == asked
    assert NO_RECIPE.begin([]) == []


def test_a_recipe_file_is_readable_json(tmp_path: Path) -> None:
    write_recipe(tmp_path / "made.gguf", FULL)
    assert json.loads((tmp_path / "made.recipe.json").read_text())["system"] == "Be short."
