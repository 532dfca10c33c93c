"""Variables in mcp.json are replaced when a server starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.tools.mcp.config.entry import HttpLaunch, StdioLaunch
from app.tools.mcp.config.expansion import expanded
from app.tools.mcp.errors import ToolError

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
