from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.library.local.model_record import BaseTemplate, base_template, difference
from quantizer.gguf.header import Header, read_header
from tests.app.small_models import small_model

URL = "https://huggingface.co/org/base"


def _header(folder: Path, url: str = URL) -> Header:
    return read_header(small_model(folder / "m.gguf", general__base_model__0__repo_url=url))


def _cached(folder: Path, settings: object, repo: str = "org/base") -> None:
    snapshot = folder / f"models--{repo.replace('/', '--')}" / "snapshots" / "c1"
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"HF_HUB_CACHE": str(tmp_path / "hub")}


def test_the_template_of_a_base_that_is_here_is_found(tmp_path: Path, environment: dict[str, str]) -> None:
    _cached(tmp_path / "hub", {"chat_template": "{{ messages }}"})
    assert base_template(_header(tmp_path), environment) == BaseTemplate("org/base", "{{ messages }}")


def test_a_base_without_a_template_has_an_empty_one(tmp_path: Path, environment: dict[str, str]) -> None:
    _cached(tmp_path / "hub", {})
    assert base_template(_header(tmp_path), environment) == BaseTemplate("org/base", "")


@pytest.mark.parametrize(
    "url", ["https://example.org/org/base", "https://huggingface.co/../../etc", "https://huggingface.co/org", ""]
)
def test_what_is_no_address_of_the_hub_is_no_base(tmp_path: Path, environment: dict[str, str], url: str) -> None:
    _cached(tmp_path / "hub", {"chat_template": "x"})
    assert base_template(_header(tmp_path, url), environment) is None


@pytest.mark.parametrize("settings", [[], {"chat_template": 3}, "text"])
def test_an_invalid_base_is_not_compared(tmp_path: Path, environment: dict[str, str], settings: object) -> None:
    _cached(tmp_path / "hub", settings)
    assert base_template(_header(tmp_path), environment) is None


def test_a_base_that_is_not_here_is_not_compared(tmp_path: Path, environment: dict[str, str]) -> None:
    assert base_template(_header(tmp_path), environment) is None


def test_a_difference_is_the_lines_that_came_and_went() -> None:
    changed = difference("one\ntwo\nthree", "one\n2\nthree\nfour")
    assert [line for line in changed if line[0] in "+-"] == ["-two", "+2", "+four"]


def test_what_is_too_long_is_not_compared() -> None:
    assert difference("a\n" * 9000, "b\n" * 9000) == []
