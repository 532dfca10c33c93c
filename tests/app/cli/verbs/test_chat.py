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


@pytest.fixture
def asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Run a command line of a person, and return what the face was asked for and the exit status."""

    def run(*arguments: str, piped: str | None = None) -> list[Any]:
        seen: list[Any] = []

        def run_app(settings: Settings, flags: Mapping[str, object]) -> int:
            seen.append((settings.model, flags["connect"]))
            return 3

        stdin = io.TextIOWrapper(io.BytesIO((piped or "").encode()))
        monkeypatch.setattr(stdin, "isatty", lambda: piped is None)
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(SystemExit) as leaving:
            main(arguments, interface=UserInterface(run_app, seen.append))
        return [*seen, leaving.value.code]

    return run


def test_without_inline_it_is_the_full_screen_with_its_status(asked: Callable[..., list[Any]]) -> None:
    assert asked("chat", "-m", "some.gguf") == [("some.gguf", None), 3]


@pytest.mark.parametrize("option", ["--system=x", "--new", "--chat=1", "--temp=0", "--stats", "--yes"])
def test_what_the_full_screen_has_keys_for_is_refused_without_inline(
    option: str, asked: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked("chat", option) == [2]
    assert "Give --inline too." in capsys.readouterr().err


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


def test_chats_are_offered_by_their_numbers(home: Path) -> None:
    with ChatStore(home / "data") as store:
        for title in ("soup", "\x1b]0;bread\x07"):
            store.chats.create(title=title)
    typed = {"COMP_WORDS": "localllm chat --chat ", "COMP_CWORD": "3", "_LOCALLLM_COMPLETE": "zsh_complete"}
    command = [sys.executable, "-P", "-c", "from app.cli.main import main; main()"]
    done = subprocess.run(command, env={**os.environ, **typed}, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == ["plain", "2", "]0;bread", "plain", "1", "soup"]
