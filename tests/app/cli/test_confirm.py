from __future__ import annotations

import io
import sys

import click
import pytest

from app.cli.prompts import confirm_load
from app.cli.resources import with_unfit_policy
from app.protocol.errors import UnfitError
from app.settings.settings import Settings


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def sit_at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called by a test: what a fixture sets, pytest's capture replaces before the test."""
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())


def test_at_a_terminal_the_user_is_asked_unless_the_settings_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    sit_at_terminal(monkeypatch)
    assert with_unfit_policy(Settings(), assume_yes=False, may_ask=True).when_unfit == "ask"
    assert with_unfit_policy(Settings(), assume_yes=False, may_ask=False).when_unfit == "warn"
    assert with_unfit_policy(Settings(when_unfit="load"), assume_yes=False, may_ask=True).when_unfit == "load"


def test_assume_yes_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sit_at_terminal(monkeypatch)
    assert with_unfit_policy(Settings(), assume_yes=True, may_ask=True).when_unfit == "load"


def test_nobody_is_asked_where_nobody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert with_unfit_policy(Settings(), assume_yes=False, may_ask=True).when_unfit == "warn"
    monkeypatch.setattr(sys, "stdin", None)
    assert with_unfit_policy(Settings(), assume_yes=False, may_ask=True).when_unfit == "warn"


@pytest.mark.parametrize(("typed", "answer"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_the_question_comes_with_the_cliff_and_no_is_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, answer: bool
) -> None:
    monkeypatch.setattr(click.termui, "visible_prompt_func", lambda _prompt: typed.strip())
    assert confirm_load(UnfitError("20 of 33 layers fit.", "What would help: Q4_K_M.")) is answer
    assert "20 of 33 layers fit. What would help: Q4_K_M." in capsys.readouterr().err
