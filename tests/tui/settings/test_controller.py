"""Validation of custom keys."""

from __future__ import annotations

import pytest

from quantizer.system.errors import UsageError
from tui.commands import APP_COMMANDS
from tui.settings.controller import check_keys, ids_with_keys

REFUSED = {
    "no such command": {"fly": "f12"},
    "a command without a key": {"theme": "f12"},
    "no such key": {"help": "banana"},
    "no such modifier": {"help": "hypr+x"},
    "not a valid key": {"help": ""},
    "a key that types": {"help": "h"},
    "a key with a name that types": {"help": "question_mark"},
    "a key of Textual's": {"help": "ctrl+q"},
    "a key of another command": {"help": "f5"},
    "a key that was given to another command": {"interrupt": "ctrl+c", "quit": "ctrl+c"},
    "the same key twice": {"go-chats": "f11", "go-models": "f11"},
}


@pytest.mark.parametrize("why", REFUSED)
def test_keys_that_cannot_be_are_refused(why: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_keys(REFUSED[why])
    assert refused.value.remedy


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"help": "f12,ctrl+f1"},
        {"go-chats": "f6", "go-models": "f5"},
        {"settings-change": "c", "chats-rename": "question_mark"},
        {"quit": "ctrl+q,alt+x"},
        {"quit": "ctrl+c"},
        {"undo": "ctrl+z"},
        {"new": "ctrl+c", "interrupt": "ctrl+x"},
    ],
)
def test_keys_that_are_free_or_change_places_are_taken(keys: dict[str, str]) -> None:
    check_keys(keys)


def test_own_keys_go_before_those_of_the_table() -> None:
    help_command = APP_COMMANDS.find("help")
    assert help_command is not None
    assert help_command.bound_keys({}) == "f1"
    assert help_command.bound_keys({"help": "f12"}) == "f12"
    assert {"help", "go-settings", "chats-rename"} <= set(ids_with_keys())
