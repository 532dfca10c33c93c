from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.chat.conversation import ChatSettings
from app.chat.store.chat_store import ChatStore
from app.cli.main import main
from app.cli.prompts import ChatOptions, UserInterface
from app.settings.settings import Settings
from tests.patience import PATIENCE_S


@pytest.fixture
def asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Run a command line of a person, and return what the face was asked for and the exit status."""

    def run(*arguments: str, piped: str | None = None, shows: bool = False) -> list[Any]:
        seen: list[Any] = []

        def run_app(settings: Settings, flags: Mapping[str, object], opening: ChatOptions | None) -> int:
            seen.append((settings.model, flags["connect"], opening))
            return 3

        stdin = io.TextIOWrapper(io.BytesIO((piped or "").encode()))
        monkeypatch.setattr(stdin, "isatty", lambda: piped is None)
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: shows, raising=False)
        with pytest.raises(SystemExit) as leaving:
            main(arguments, interface=UserInterface(run_app, seen.append))
        return [*seen, leaving.value.code]

    return run


def test_without_inline_it_is_the_full_screen_with_its_status(asked: Callable[..., list[Any]]) -> None:
    [(model, connect, opening), status] = asked("chat", "-m", "some", shows=True)
    assert (model, connect, opening.keeps_model, opening.is_new, status) == ("some", None, True, False, 3)


def test_the_full_screen_takes_the_options_of_the_chat(asked: Callable[..., list[Any]], home: Path) -> None:
    line = "chat --new --system brief --temp 0.5 --tools files --folder . --stats --yes"
    [(_, _, opening), _] = asked(*line.split(), shows=True)
    assert opening.is_new
    assert opening.shows_stats
    assert opening.chat == ChatSettings("brief", {"temperature": 0.5})
    assert (opening.tools.enabled, opening.tools.folders) == (("files",), (str(Path.cwd()),))
    assert opening.settings.when_unfit == "load"
    with ChatStore(home / "data") as store:
        chat_id = store.chats.create(title="soup").id
    [(_, _, opening), _] = asked("chat", f"--chat={chat_id}", shows=True)
    assert (opening.chat_id, opening.settings.when_unfit) == (chat_id, "warn")


def test_a_chat_that_does_not_exist_is_said_before_the_screen_opens(
    asked: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(asked("chat", "--chat=99", shows=True)) == 1
    assert "There is no chat 99." in capsys.readouterr().err


def test_text_that_is_piped_in_or_an_output_that_is_no_screen_needs_no_inline(asked: Callable[..., list[Any]]) -> None:
    [options, _] = asked("chat", "--new", piped="hello", shows=True)
    assert (options.prompt, options.is_new) == ("hello", True)
    [options, _] = asked("chat", "--new")
    assert options.is_new


def test_inline_is_a_saved_chat_with_the_options_of_the_command_line(asked: Callable[..., list[Any]]) -> None:
    line = "chat --inline -m tiny --system brief --temp 0.5 --seed 7 --think 300 --stats --ctx 512 --chat 3"
    [options, status] = asked(*line.split())
    assert status == 0
    assert (options.settings.model, options.settings.ctx) == ("tiny", 512)
    assert options.chat == ChatSettings("brief", {"temperature": 0.5, "seed": 7, "think": "300"})
    assert (options.is_saved, options.chat_id, options.is_new, options.shows_stats, options.prompt) == (
        True,
        3,
        False,
        True,
        "",
    )


def test_run_without_a_prompt_is_an_unsaved_chat(asked: Callable[..., list[Any]]) -> None:
    [options, status] = asked("run", "tiny", "--temp", "0")
    assert status == 0
    assert isinstance(options, ChatOptions)
    assert (options.settings.model, options.chat, options.is_saved) == (
        "tiny",
        ChatSettings("", {"temperature": 0.0}),
        False,
    )


def test_an_engine_elsewhere_chooses_the_model_itself(asked: Callable[..., list[Any]]) -> None:
    [options, _] = asked("chat", "--inline", "--connect", "http://far:8000", "--api-key", "secret")
    assert (options.settings.connect, options.settings.api_key, options.settings.model) == (
        "http://far:8000",
        "secret",
        "",
    )


def test_piped_text_is_the_question(asked: Callable[..., list[Any]]) -> None:
    [options, _] = asked("chat", "--inline", "--new", piped="two\nlines\n")
    assert (options.prompt, options.is_new) == ("two\nlines", True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--inline", "--new", "--chat", "1"), "exclude each other"),
        (("--inline",), "no prompt"),
        (("--inline", "--temp", "-1"), "temperature is -1"),
        (("--inline", "hello"), "unexpected extra argument"),
    ],
)
def test_wrong_use_is_status_2(
    arguments: tuple[str, ...], words: str, asked: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked("chat", *arguments, piped="") == [2]
    assert words in capsys.readouterr().err


def test_without_a_terminal_interface_there_is_no_chat(localllm: Callable[..., Any]) -> None:
    ran = localllm("chat")
    assert (ran.status, ran.out) == (2, "")
    assert "There is no terminal interface." in ran.err


@pytest.mark.slow
def test_chats_are_offered_by_their_numbers(home: Path) -> None:
    with ChatStore(home / "data") as store:
        for title in ("soup", "\x1b]0;bread\x07"):
            store.chats.create(title=title)
    typed = {"COMP_WORDS": "localllm chat --chat ", "COMP_CWORD": "3", "_LOCALLLM_COMPLETE": "zsh_complete"}
    command = [sys.executable, "-P", "-c", "from app.cli.main import main; main()"]
    done = subprocess.run(
        command, env={**os.environ, **typed}, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout.splitlines() == ["plain", "2", "]0;bread", "plain", "1", "soup"]
