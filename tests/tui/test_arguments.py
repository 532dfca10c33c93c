"""Which command lines are for the app."""

from __future__ import annotations

import pytest

from tui.arguments import app_options


def test_no_arguments_are_for_the_app():
    assert app_options([]) == dict.fromkeys(("model", "host", "ctx", "threads", "port"))


def test_options_of_the_app_are_read():
    options = app_options(["-m", "x.gguf", "--ctx=4096", "--port", "1234"])
    assert options is not None
    assert {name: value for name, value in options.items() if value is not None} == {
        "model": "x.gguf",
        "ctx": 4096,
        "port": 1234,
    }


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["--help"], ["--version"], ["--model", "x", "run", "hi"], ["--ctx", "many"], ["--model"], ["-x"]],
)
def test_everything_else_is_for_the_command_line(arguments):
    assert app_options(arguments) is None
