"""The options of verbs that let a model use tools."""

from __future__ import annotations

import pytest

from app.chat.tool_switches import RequestedTools
from app.cli.options import ToolOptions
from quantizer.system.errors import UsageError


def test_names_are_separated_by_commas_folders_are_absolute_and_commands_are_words(tmp_path, monkeypatch):
    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(tmp_path)
    requested = ToolOptions(
        ("files,web", "files"), ("a b",), ("files",), ("pytest -q 'a b'",), ("cargo test",), 9
    ).requested()
    folder = str((tmp_path / "a b").resolve())
    commands, beginnings = (("pytest", "-q", "a b"),), (("cargo", "test"),)
    assert requested == RequestedTools(("files", "web"), (folder,), ("files",), commands, beginnings, 9)
    assert requested
    assert not ToolOptions().requested()


@pytest.mark.parametrize(
    ("folders", "allowed", "commands", "cause"),
    [
        (("nowhere",), (), (), "There is no folder nowhere."),
        ((), ("files,commands",), (), "all at once"),
        ((), ("commands/run_command",), (), "all at once"),
        ((), (), ("a 'b",), "cannot be split"),
        ((), (), (" ",), "is empty"),
    ],
)
def test_what_cannot_be_is_refused(folders, allowed, commands, cause):
    with pytest.raises(UsageError, match=cause):
        ToolOptions((), folders, allowed, commands).requested()
