"""Switching the tools of a chat, its folders and its rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.chat.tool_switches import (
    names_of,
    rule_text,
    switched,
    tools_text,
    with_folder,
    with_rounds,
    without_folder,
    without_rule,
)
from app.tools.approval import ApprovalRule, ToolSettings
from app.tools.tool import BoundCommand, Effect, ServerStatus
from quantizer.system.errors import UsageError
from tests.app.tools.fake import fake_tool

FILES = ServerStatus(
    "files",
    "built in",
    "ready",
    (fake_tool("read_file", Effect.READ, "files"), fake_tool("write_file", Effect.WRITE, "files")),
)
REMOTE = ServerStatus("remote", "mcp.json", "failed", problem="It does not start.")
SERVERS = (FILES, REMOTE)
NONE = ToolSettings()
ECHO = BoundCommand(("echo", "a b"), "/bin/echo", "/bin/busybox", "/home/me")


def on(settings, *names):
    for name in names:
        settings = switched(settings, SERVERS, name, is_switched_on=True)
    return settings


def off(settings, *names):
    for name in names:
        settings = switched(settings, SERVERS, name, is_switched_on=False)
    return settings


@pytest.mark.parametrize(
    ("settings", "enabled"),
    [
        (on(NONE, "files"), ("files",)),
        (on(NONE, "files/read_file"), ("files/read_file",)),
        (on(NONE, "read_file", "read_file"), ("files/read_file",)),
        (on(NONE, "read_file", "files"), ("files",)),
        (on(NONE, "remote"), ("remote",)),
        (off(on(NONE, "files"), "files"), ()),
        (off(on(NONE, "files"), "write_file"), ("files/read_file",)),
        (off(on(NONE, "read_file"), "write_file"), ("files/read_file",)),
        (off(on(NONE, "read_file", "remote"), "files"), ("remote",)),
        (off(on(NONE, "read_file", "remote"), "all"), ()),
        (off(ToolSettings(enabled=("gone", "gone/one")), "gone/one"), ()),  # its other tools are not known
        (off(ToolSettings(enabled=("gone",)), "gone"), ()),
    ],
)
def test_servers_and_tools_are_switched_by_their_names(settings, enabled):
    assert settings.enabled == enabled


@pytest.mark.parametrize("name", ["", "nothing", "files/nothing", "remote/read_file", "all"])
def test_a_name_that_nobody_has_cannot_be_switched_on(name):
    with pytest.raises(UsageError, match=r"files, remote"):
        on(NONE, name)


def test_all_names_can_be_completed():
    assert names_of(SERVERS) == ["files", "files/read_file", "files/write_file", "remote"]


def test_folders_rules_and_rounds_change_one_by_one():
    settings = with_folder(with_folder(with_folder(NONE, "/a"), "/b"), "/a")
    assert settings.folders == ("/a", "/b")
    assert without_folder(settings, "/a").folders == ("/b",)
    with pytest.raises(UsageError):
        without_folder(settings, "/c")
    ruled = ToolSettings(rules=(ApprovalRule("tool", "files", "read_file"), ApprovalRule("server", "remote")))
    assert without_rule(ruled, 0).rules == ruled.rules[1:]
    for index in (-1, 2):
        with pytest.raises(UsageError):
            without_rule(ruled, index)
    assert with_rounds(NONE, "7").max_rounds == 7
    for text in ("0", "-1", "", "many", "1001", "٧"):
        with pytest.raises(UsageError):
            with_rounds(NONE, text)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (ApprovalRule("tool", "files", "write_file"), "allowed: write_file of files"),
        (ApprovalRule("tool", "files", "write_file", is_denied=True), "refused: write_file of files"),
        (ApprovalRule("server", "remote\x1b"), "allowed: all of remote"),
        (
            ApprovalRule("command", "commands", "run_command", ECHO),
            "allowed: echo 'a b', /bin/echo in /home/me",
        ),
        (
            ApprovalRule("command", "commands", "run_command", ECHO, has_more=True),
            "allowed: echo 'a b' and any arguments after it, /bin/echo in /home/me",
        ),
        (
            ApprovalRule("command", "commands", "run_command", replace(ECHO, folder="/home/a\nb")),
            "allowed: echo 'a b', /bin/echo in \"/home/a\\nb\"",
        ),
        (
            ApprovalRule("command", "commands", "run_command", argv_prefix=("echo", "a b")),
            "no longer allowed: commands that begin with echo 'a b', of any program and folder; the next one asks",
        ),
    ],
)
def test_a_rule_is_a_line(rule, text):
    assert rule_text(rule) == text


def test_the_list_says_what_is_on_what_it_costs_and_what_is_wrong():
    settings = ToolSettings(
        enabled=("files/read_file",), folders=("/home/me",), rules=(ApprovalRule("server", "files"),), max_rounds=9
    )
    lines = tools_text(settings, SERVERS, 812).splitlines()
    assert lines[:-1] == [
        "1 tool on, 812 tokens of every prompt, at most 9 rounds of calls an answer.",
        "[x] files (built in)",
        "    [x] read_file: Does read_file.",
        "    [ ] write_file: Does write_file.",
        "[ ] remote (mcp.json)",
        "    ! It does not start.",
        "folder: /home/me",
        "1. allowed: all of files",
    ]
    assert tools_text(NONE, SERVERS, None).startswith("No tools are on in this chat.")
