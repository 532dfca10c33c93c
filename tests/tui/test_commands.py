"""The one table of commands."""

from __future__ import annotations

from collections import Counter

import pytest

from tui.commands import COMMANDS, slash_command
from tui.screens.chat import ChatScreen
from tui.widgets.prompt_input import PromptInput


def test_ids_keys_and_words_are_each_used_once():
    keys = [key for command in COMMANDS for key in command.keys.split(",") if key]
    keys += [key for binding in PromptInput.KEYS for key in binding.key.split(",")]
    for names in ([command.id for command in COMMANDS], keys, [command.slash for command in COMMANDS if command.slash]):
        assert max(Counter(names).values()) == 1


def test_every_command_can_be_reached_and_says_what_it_does():
    assert all((command.keys or command.slash) and command.title and command.tooltip for command in COMMANDS)


def test_every_key_has_an_id_and_a_tooltip():
    assert all(binding.id and binding.tooltip for binding in (*ChatScreen.BINDINGS, *PromptInput.BINDINGS))


@pytest.mark.parametrize(
    ("line", "command_id", "argument"),
    [("/new", "new", ""), ("/system  Be brief. ", "system", "Be brief."), ("/QUIT", "quit", ""), ("/nosuch", None, "")],
)
def test_slash_lines_name_a_command(line, command_id, argument):
    command, rest = slash_command(line)
    assert (command.id if command else None, rest) == (command_id, argument)


@pytest.mark.parametrize("line", ["what is /new", "/etc/hosts says what?", "/", "//", "/2+2", "hello", "/new\nline"])
def test_other_lines_are_questions(line):
    assert slash_command(line) is None
