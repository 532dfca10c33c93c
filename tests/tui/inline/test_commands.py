"""The commands of a chat in the scrollback."""

from __future__ import annotations

import pytest

from tui.inline.commands import COMMANDS, help_text, needs_full_screen, parse_command


@pytest.mark.parametrize(
    ("text", "command", "argument"),
    [
        ("/retry", "retry", ""),
        ("/system Be brief.", "system", "Be brief."),
        ("/SYSTEM  Be brief. ", "system", "Be brief."),
        ("/?", "help", ""),
        ("/bye", "quit", ""),
        ("/clear", "new", ""),
    ],
)
def test_a_word_after_a_slash_is_a_command_of_the_app(text, command, argument):
    line = parse_command(text)
    assert line is not None
    assert line[0] is not None
    assert (line[0].id, line[2]) == (command, argument)


@pytest.mark.parametrize("text", ["retry", "/etc/hosts is what?", "a\n/retry", "? /retry", "/1"])
def test_all_else_is_a_question(text):
    assert parse_command(text) is None


def test_a_word_that_means_nothing_here_may_mean_something_in_the_full_screen():
    assert parse_command("/models") == (None, "models", "")
    assert needs_full_screen("models")
    assert not needs_full_screen("frobnicate")


def test_help_lists_every_command_and_promises_no_saving_for_an_unsaved_chat():
    kept, forgotten = (help_text(is_saved=is_saved, breaks_lines=is_saved) for is_saved in (True, False))
    for command in COMMANDS:
        assert f"/{command.slash}" in kept
    assert "this one stays" in kept
    assert "this one stays" not in forgotten
    assert "Alt+Enter" in kept
    assert "Alt+Enter" not in forgotten
