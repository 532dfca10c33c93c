from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from app.cli import confirm
from tests.app.running import RunningService
from tests.app.small_models import small_model

Run = Callable[..., Any]


@pytest.fixture
def model(models: Path) -> Path:
    return small_model(models / "me" / "x" / "m.gguf")


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[str]]:
    """Let a person at a terminal say yes or no; returns what was asked."""

    def give(is_yes: bool) -> list[str]:
        asked: list[str] = []
        monkeypatch.setattr(sys, "stdin", _Terminal())
        monkeypatch.setattr(click, "confirm", lambda question, **_: bool(asked.append(question)) or is_yes)
        return asked

    return give


class _Terminal:
    def isatty(self) -> bool:
        return True


def test_a_model_goes_after_a_yes_and_stays_after_a_no(
    localllm: Run, model: Path, answer: Callable[[bool], list[str]]
) -> None:
    asked = answer(False)
    assert localllm("rm", "m").status == 1
    assert model.exists()
    assert f"m (frees {model.stat().st_size} B)" in asked[0]
    answer(True)
    assert localllm("rm", "m").status == 0
    assert not model.exists()


def test_where_nobody_can_be_asked_nothing_goes(localllm: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirm.sys, "stdin", None)
    ran = localllm("rm", "m")
    assert ran.status == 2
    assert "--yes" in ran.err
    assert model.exists()


def test_several_models_go_together_or_none(localllm: Run, models: Path, model: Path) -> None:
    small_model(models / "me" / "y" / "n.gguf")
    assert localllm("rm", "m", "guide", "--yes").status == 2
    assert model.exists()
    output = localllm("rm", "m", "n", "m", "--yes", "--json").json["removed"]
    assert [(item["id"], len(item["paths"])) for item in output] == [("m", 1), ("n", 1)]
    assert list(models.iterdir()) == []


def test_a_model_that_a_service_has_loaded_stays_unless_insisted(
    localllm: Run, models: Path, service: RunningService, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    path = small_model(models / "me" / "x" / "tiny.gguf")  # as the service calls its model
    monkeypatch.setenv("LOCALLLM_PORT", service.url.rpartition(":")[2])
    ran = localllm("rm", "tiny")
    assert ran.status == 1
    assert "has tiny loaded" in ran.err
    assert path.exists()
    assert localllm("rm", "tiny", "--yes").status == 0
    assert not path.exists()


def test_a_model_that_a_service_has_unloaded_can_be_removed(
    localllm: Run,
    models: Path,
    start_service: Callable[..., RunningService],
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[bool], list[str]],
) -> None:
    service = start_service()
    assert service.http.post("/api/localllm/unload", json={}).json()["state"] == "unloaded"
    path = small_model(models / "me" / "x" / "tiny.gguf")  # as the service calls its model
    monkeypatch.setenv("LOCALLLM_PORT", service.url.rpartition(":")[2])
    asked = answer(True)
    assert localllm("rm", "tiny").status == 0
    assert len(asked) == 1
    assert not path.exists()
