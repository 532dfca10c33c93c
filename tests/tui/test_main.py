"""The command `localllm`: its options, and what it starts."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from app.settings.settings import load_settings
from tui import __main__
from tui.__main__ import app_options


class Stream:
    def __init__(self, is_terminal: bool) -> None:
        self.isatty = lambda: is_terminal


@pytest.fixture
def start(monkeypatch):
    """Call main() with arguments and streams; return what was started with what."""

    def call(arguments: list[str], stdin_is_terminal: bool = True, stdout_is_terminal: bool = True) -> list[object]:
        started: list[object] = []
        command_line, app = ModuleType("app.cli.main"), ModuleType("tui.run")
        command_line.main = lambda given, interface: started.append(("cli", given))
        app.run = lambda settings, flags, opening: started.append(("app", settings.model)) or 0
        monkeypatch.setitem(sys.modules, "app.cli.main", command_line)
        monkeypatch.setitem(sys.modules, "tui.run", app)
        monkeypatch.setattr(sys, "argv", ["localllm", *arguments])
        monkeypatch.setattr(sys, "stdin", Stream(stdin_is_terminal))
        monkeypatch.setattr(sys, "stdout", Stream(stdout_is_terminal))
        monkeypatch.setenv("LOCALLLM_CONFIG", "nowhere.toml")
        try:
            __main__.main()
        except SystemExit as end:
            started.append(end.code)
        return started

    return call


def test_terminal_gets_the_app(start):
    assert start(["--model", "some.gguf"]) == [("app", "some.gguf"), 0]


@pytest.mark.parametrize("terminals", [(False, True), (True, False), (False, False)])
def test_pipe_gets_plain_answers(start, terminals):
    assert start([], *terminals) == [("cli", ["run"])]


def test_verbs_go_to_the_command_line(start):
    assert start(["quantize", "x", "Q4_K_M"]) == [("cli", ["quantize", "x", "Q4_K_M"])]


def test_chat_is_the_app_too_and_inline_is_a_verb(start):
    assert start(["chat", "--model", "some.gguf"]) == [("app", "some.gguf"), 0]
    assert start(["chat", "-m", "x"], stdin_is_terminal=False) == [("cli", ["run", "-m", "x"])]
    assert start(["chat", "--inline"]) == [("cli", ["chat", "--inline"])]
    assert start(["chat", "run"]) == [("cli", ["chat", "run"])]


def test_streams_that_are_closed_are_no_terminals(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert not __main__._is_terminal(sys.stdin)


def test_bad_setting_is_a_sentence_and_status_2(start, monkeypatch, capsys):
    monkeypatch.setenv("LOCALLLM_PORT", "many")
    assert start([]) == [2]
    assert "LOCALLLM" in (message := capsys.readouterr().err) or "environment" in message


def test_options_of_the_app_are_read():
    assert app_options([]) == {}
    assert app_options(["-m", "x.gguf", "--ctx=4096"]) == {"model": "x.gguf", "ctx": "4096"}


@pytest.mark.parametrize("arguments", [["--kv-type", "q8_0"], ["--ctx", "8192", "--no-gpu"], ["--theme=nord"]])
def test_every_setting_starts_the_app_and_the_chat_without_a_screen(start, monkeypatch, arguments):
    assert start(arguments)[-1] == 0
    assert start(["chat", *arguments])[-1] == 0
    seen = []
    monkeypatch.setattr("tui.screen_check.prepare_screen", lambda: "no screen")
    monkeypatch.setattr(__main__, "_run_inline", seen.append)
    assert start(arguments) == [0]
    assert seen[0].settings == load_settings(app_options(arguments))


def test_an_engine_elsewhere_chooses_the_model_itself():
    options = app_options(["--connect", "http://far:8000", "--api-key", "secret"])
    assert options is not None
    assert (options["connect"], options["api_key"], options["model"]) == ("http://far:8000", "secret", "")


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["--help"], ["--version"], ["--model", "x", "run", "hi"], ["--model"], ["-x"]],
)
def test_everything_else_is_for_the_command_line(arguments):
    assert app_options(arguments) is None
