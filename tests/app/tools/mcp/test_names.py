"""Names of servers and tools for models: of few characters, short, and never two the same."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from app.tools.mcp.names import BUILT_IN_SERVERS, server_names, tool_names

NAMES = st.lists(st.text(min_size=1, max_size=80), max_size=6, unique=True)
FORM = re.compile("[A-Za-z0-9_-]{1,64}")


@given(NAMES, NAMES)
def test_all_tools_of_all_servers_have_names_of_their_own(servers: list[str], tools: list[str]) -> None:
    found = server_names(servers)
    names = [name for server in found.values() for name in tool_names(server, tools).values()]
    assert len(set(names)) == len(servers) * len(tools)
    assert all(FORM.fullmatch(name) for name in names)
    assert not BUILT_IN_SERVERS & set(found.values())
    assert all("__" not in server for server in found.values())


@given(NAMES, NAMES)
def test_names_do_not_change_from_start_to_start(servers: list[str], tools: list[str]) -> None:
    assert server_names(servers) == server_names(servers)
    assert tool_names("server", tools) == tool_names("server", tools)


def test_usual_names_stay_as_they_are() -> None:
    assert server_names(["github", "my server", "my_server", "files", "a__b"]) == {
        "github": "github",
        "my server": "my_server",
        "my_server": "my_server_2",
        "files": "files_2",
        "a__b": "a_b",
    }
    assert tool_names("github", ["create_issue", "list.issues", "list/issues"]) == {
        "create_issue": "github__create_issue",
        "list.issues": "github__list_issues",
        "list/issues": "github__list_issues_2",
    }


def test_long_names_are_cut_and_stay_apart() -> None:
    first, second = "x" * 100 + "a", "x" * 100 + "b"
    names = tool_names("server", [first, second])
    assert {len(name) for name in names.values()} == {64}
    assert names[first] != names[second]
