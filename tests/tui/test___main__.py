"""Command lines of the app."""

from __future__ import annotations

import pytest

from tui.__main__ import app_options


def test_no_arguments_are_for_the_app():
    assert app_options([]) == dict.fromkeys(("model", "host", "connect", "api_key", "ctx", "threads", "port"))


def test_options_of_the_app_are_read():
    options = app_options(["-m", "x.gguf", "--ctx=4096", "--port", "1234"])
    assert options is not None
    assert {name: value for name, value in options.items() if value is not None} == {
        "model": "x.gguf",
        "ctx": 4096,
        "port": 1234,
    }


def test_an_engine_elsewhere_chooses_the_model_itself():
    options = app_options(["--connect", "http://far:8000", "--api-key", "secret"])
    assert options is not None
    assert (options["connect"], options["api_key"], options["model"]) == ("http://far:8000", "secret", "")


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["--help"], ["--version"], ["--model", "x", "run", "hi"], ["--ctx", "many"], ["--model"], ["-x"]],
)
def test_everything_else_is_for_the_command_line(arguments):
    assert app_options(arguments) is None
