"""The command tables."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pkgutil import walk_packages

import pytest

import tui
from tui.app import LocalllmApp
from tui.chat.actions import MessageActions, SettingsActions, ToolActions
from tui.chat.commands import CHAT_COMMANDS
from tui.chat.draft_actions import DraftActions
from tui.chat.other_windows import OtherWindows
from tui.chat.screen import ChatScreen
from tui.commands import APP_COMMANDS, FEATURES, slash_line, unknown_command
from tui.history.open_chat import OpenChatActions
from tui.inline.chat import COMMANDS, InlineChat

SCREENS = [feature.screen_class() for feature in FEATURES]
PARTS = {
    ChatScreen: (MessageActions, DraftActions, ToolActions, SettingsActions, OpenChatActions, OtherWindows)
}  # they carry out commands too
EVERY_SCREEN = pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.__name__)


@EVERY_SCREEN
def test_ids_keys_and_words_are_each_used_once(screen):
    commands = [*screen.TABLE, *APP_COMMANDS]
    keys = [key for command in commands for key in command.keys.split(",") if key]
    keys += [key for binding in screen.KEYS for key in binding.key.split(",")]
    words = [word for command in commands for word in (command.slash, *command.also) if word]
    for names in ([command.id for command in commands], keys, words):
        assert max(Counter(names).values()) == 1


def test_no_capital_means_another_thing_than_its_letter():
    """Keys are shown as capitals; one that is not bound does what its letter does."""
    names = [module.name for module in walk_packages(tui.__path__, "tui.") if not module.name.endswith("__main__")]
    kinds = {kind for name in names for kind in vars(import_module(name)).values() if isinstance(kind, type)}
    bound = {(kind, binding.key) for kind in kinds for binding in vars(kind).get("BINDINGS", ()) if binding.key}
    assert len(bound) > 100
    for kind, keys in bound:
        for key in keys.split(","):
            is_capital = len(key) == 1 and key.isupper()
            assert not is_capital or key.lower() in keys.split(","), (kind, keys)


@EVERY_SCREEN
def test_every_command_is_reachable_and_described(screen):
    commands = [*screen.TABLE, *APP_COMMANDS]
    assert all((command.keys or command.slash) and command.title and command.tooltip for command in commands)


@EVERY_SCREEN
def test_every_command_is_a_method_of_its_screen_or_of_the_app(screen):
    targets = (screen, *PARTS.get(screen, ()))
    for command in screen.TABLE:
        assert any(callable(getattr(target, command.method, None)) for target in targets), command.id
    assert all(callable(getattr(LocalllmApp, command.method)) for command in APP_COMMANDS)


def test_every_command_of_the_scrollback_is_a_method_there():
    assert all(callable(getattr(InlineChat, command.method)) for command in COMMANDS)


@EVERY_SCREEN
def test_every_key_has_an_id_and_a_tooltip(screen):
    assert all(binding.id and binding.tooltip for binding in (*screen.BINDINGS, *screen.KEYS))


@EVERY_SCREEN
def test_a_screen_binds_the_keys_of_its_table(screen):
    bound = {binding.id for kind in screen.__mro__ for binding in vars(kind).get("BINDINGS", ())}
    assert {command.id for command in (*screen.TABLE, *APP_COMMANDS) if command.keys} <= bound


@pytest.mark.parametrize(("word", "command"), {"bye": "quit", "exit": "quit", "clear": "new", "?": "help"}.items())
def test_the_words_of_other_programs_are_commands_too(word, command):
    found = CHAT_COMMANDS.of_word(word) or APP_COMMANDS.of_word(word)
    assert found is not None
    assert found.id == command


def test_an_unknown_command_names_the_most_similar_one_if_there_is_any():
    assert unknown_command("qiut", APP_COMMANDS, "F1.") == "Unknown command /qiut. Did you mean /quit? F1."
    assert unknown_command("zzz", APP_COMMANDS, "F1.") == "Unknown command /zzz. F1."


@pytest.mark.parametrize(
    ("line", "word", "argument"),
    [
        ("/new", "new", ""),
        ("/system  Be brief. ", "system", "Be brief."),
        ("/QUIT", "quit", ""),
        ("?", "?", ""),
        ("/?", "?", ""),
    ],
)
def test_slash_lines_are_a_word_and_an_argument(line, word, argument):
    assert slash_line(line) == (word, argument)


@pytest.mark.parametrize("line", ["what is /new", "/etc/hosts says what?", "/", "//", "/2+2", "hello", "/new\nline"])
def test_other_lines_are_questions(line):
    assert slash_line(line) is None
