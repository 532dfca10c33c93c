"""Entries of mcp.json: those that others write are understood, those that make no sense say why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.tools.mcp.config.entry import HttpLaunch, StdioLaunch, config_of, expanded, identity_of, launch_entry
from app.tools.mcp.errors import ToolError

LAUNCHES = (
    StdioLaunch("npx", ("-y", "server"), {"TOKEN": "${TOKEN}"}, "/work"),
    StdioLaunch("server"),
    HttpLaunch("https://example.org/mcp", {"Authorization": "Bearer ${TOKEN}"}, "http"),
    HttpLaunch("${URL}", {}, "sse"),
)


@pytest.mark.parametrize("launch", LAUNCHES)
def test_an_entry_says_what_its_launch_was(launch: StdioLaunch | HttpLaunch) -> None:
    config = config_of("a", launch_entry(launch, timeout_s=5))
    assert (config.launch, config.timeout_s, config.problem) == (launch, 5, "")


def test_identities_differ_where_launches_do() -> None:
    assert len({identity_of(launch) for launch in LAUNCHES}) == len(LAUNCHES)


@pytest.mark.parametrize(
    ("entry", "launch"),
    [
        ({"command": "a", "type": "stdio", "args": []}, StdioLaunch("a")),
        ({"command": "a", "env": None, "unknown": {"kept": 1}}, StdioLaunch("a")),
        (
            {"url": "http://127.0.0.1:1/mcp", "type": "streamable-http"},
            HttpLaunch("http://127.0.0.1:1/mcp", {}, "http"),
        ),
        ({"url": "http://127.0.0.1:1/mcp"}, HttpLaunch("http://127.0.0.1:1/mcp")),
    ],
)
def test_forms_of_other_programs_are_understood(entry: dict[str, Any], launch: object) -> None:
    assert config_of("a", entry).launch == launch


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (None, "must be an object"),
        ({}, "neither `command` nor `url`"),
        ({"command": 3}, "`command` must be a text"),
        ({"command": "a\0b"}, "`command` must be a text"),
        ({"command": "a", "url": "http://h"}, "both"),
        ({"command": "a", "args": "b"}, "`args` must be a list of texts"),
        ({"command": "a", "args": [1]}, "`args` must be a list of texts"),
        ({"command": "a", "env": {"A": 1}}, "`env` must be an object"),
        ({"command": "a", "type": "sse"}, "needs a `url`"),
        ({"command": "a", "disabled": "yes"}, "`disabled` must be true or false"),
        ({"command": "a", "timeout_s": 0}, "`timeout_s` must be a number"),
        ({"command": "a", "timeout_s": True}, "`timeout_s` must be a number"),
        ({"command": "a", "timeout_s": float("nan")}, "`timeout_s` must be a number"),
        ({"url": "file:///etc/passwd"}, "must begin with http"),
        ({"url": "http://["}, "must begin with http"),
        ({"url": "http://h", "type": "carrier pigeon"}, "http or sse"),
        ({"url": "http://h", "headers": {"A": "b\r\nC: d"}}, "one line"),
        ({"url": "http://h", "headers": {"a b": "c"}}, "no name of a header"),
    ],
)
def test_an_entry_that_makes_no_sense_says_why(entry: object, problem: str) -> None:
    config = config_of("a", entry)
    assert config.launch is None
    assert problem in config.problem


@pytest.mark.parametrize("name", ["", "a\nb", "a\x1b[2J", "x" * 65, " a"])
def test_names_are_short_and_printable(name: str) -> None:
    assert "name" in config_of(name, {"command": "a"}).problem


ENVIRONMENT = {"TOKEN": "abc", "EMPTY": "", "NESTED": "${TOKEN}"}


def of(text: str) -> str:
    launch = expanded(StdioLaunch(text), ENVIRONMENT)
    assert isinstance(launch, StdioLaunch)
    return launch.command


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain $TOKEN {TOKEN}", "plain $TOKEN {TOKEN}"),
        ("${TOKEN}-${env:TOKEN}", "abc-abc"),
        ("${MISSING:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("${TOKEN:-other}", "abc"),
        ("${MISSING:-}", ""),
        ("${NESTED}", "${TOKEN}"),  # a value is not read again
        ("${userHome}", str(Path.home())),
    ],
)
def test_a_variable_is_replaced(text: str, value: str) -> None:
    assert of(text) == value


@pytest.mark.parametrize(
    ("text", "cause"),
    [("${MISSING}", "has no MISSING"), ("${input:key}", "does not know"), ("${}", "does not know")],
)
def test_one_that_has_no_value_is_named(text: str, cause: str) -> None:
    with pytest.raises(ToolError, match=cause):
        of(text)


def test_every_text_of_an_entry_may_have_variables() -> None:
    launch = StdioLaunch("a", ("--token=${TOKEN}",), {"KEY": "${TOKEN}"}, "/${TOKEN}")
    assert expanded(launch, ENVIRONMENT) == StdioLaunch("a", ("--token=abc",), {"KEY": "abc"}, "/abc")
    assert expanded(HttpLaunch("http://h/${TOKEN}", {"A": "Bearer ${TOKEN}"}, "sse"), ENVIRONMENT) == HttpLaunch(
        "http://h/abc", {"A": "Bearer abc"}, "sse"
    )
