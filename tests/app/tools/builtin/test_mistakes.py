"""A call that a small model gets wrong says what the next one needs: the name, the line, the form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.chat import ToolCall
from app.tools.approval import ApprovalQuestion, Decision, ToolSettings
from app.tools.backend import CallRequest, FinishedCall
from app.tools.builtin.folders import Folders
from app.tools.builtin.near_names import most_alike, what_is_there
from app.tools.builtin.servers import tool_runner
from app.tools.runner import ToolRunner
from app.tools.tool import ToolOutcome

_FILES = {
    "notes/monday.txt": "Buy leeks.\nCall Ada.\n",
    "notes/tuesday.txt": "The walrus sleeps at noon.\n",
    "shop/prices.py": "APPLE = 3\nPEAR = 7\n",
    "shop/old/readme.txt": "Prices of 1998.\n",
    "check.py": "print('all is well')\n",
    "config.ini": "[server]\nport = 8417\n    host = example.org\n",
}
# What small models were seen to call, and what its result must have: the next call can be written from it.
_MISTAKES: tuple[tuple[str, Mapping[str, object] | str, str], ...] = (
    ("read_file", {"path": "notes/tusday.txt"}, "notes/tuesday.txt"),
    ("read_file", {"path": "prices.py"}, "shop/prices.py"),
    ("read_file", {"path": "old_readme.txt"}, "shop/old/readme.txt"),
    ("read_file", {"path": "Config.INI"}, "config.ini"),
    ("read_file", {"path": "nothing-like-it.zip"}, "check.py"),
    ("read_file", {"path": "notes/qqq.md"}, "notes/monday.txt"),
    ("read_file", {"path": "shop"}, "list_folder"),
    ("list_folder", {"path": "note"}, "notes"),
    ("list_folder", {"path": "list_folder"}, "shop/"),
    ("list_folder", {"path": "check.py"}, "read_file"),
    ("search_text", {"pattern": "walrus", "path": "nots"}, "notes"),
    ("search_text", {"pattern": "pear"}, "1 line in another case"),
    ("edit_file", {"path": "config.ini", "old_text": "port: 8417", "new_text": "port: 9000"}, '"port = 8417"'),
    ("edit_file", {"path": "config.ini", "old_text": "host  =  example.org", "new_text": "x"}, ' host = example.org"'),
    ("edit_file", {"path": "cofig.ini", "old_text": "a", "new_text": "b"}, "config.ini"),
    ("run_command", {"argv": ["python3 check.py"]}, '["python3", "check.py"]'),
    ("run_command", {"argv": ["check.py"]}, '["python3", "check.py"]'),
    ("run_command", {"argv": ["ls"], "folder": "shp"}, "shop"),
    ("run_command", {"argv": "python3 check.py"}, '{"argv": ["python3", "test.py"]}'),
    ("read_file", {}, '{"path": "notes.txt"}'),
    ("read_file", {"file": "check.py"}, '{"path": "notes.txt"}'),
    ("read_file", '{"path": "check.py"', '{"path": "notes.txt"}'),
    ("readfile", {"path": "check.py"}, "read_file"),
)  # fmt: skip


class _Allowing:
    async def ask(self, question: ApprovalQuestion) -> Decision:
        del question
        return Decision.ONCE


@asynccontextmanager
async def _tools(tmp_path: Path) -> AsyncIterator[ToolRunner]:
    for name, text in _FILES.items():
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    runner = tool_runner(tmp_path / "data")
    try:
        yield runner
    finally:
        await runner.close()


async def _run(runner: ToolRunner, folder: Path, name: str, arguments: Mapping[str, object] | str) -> FinishedCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    settings = ToolSettings(("files", "commands"), (str(folder),))
    return await runner.run(CallRequest(ToolCall("c", name, text), settings, _Allowing()))


@pytest.mark.slow
async def test_a_wrong_call_is_told_what_the_next_one_needs(tmp_path: Path) -> None:
    async with _tools(tmp_path) as runner:
        lacking = []
        for name, arguments, needed in _MISTAKES:
            finished = await _run(runner, tmp_path / "work", name, arguments)
            assert finished.result.outcome is not ToolOutcome.DONE or name == "search_text", name
            if needed not in finished.text:
                lacking.append((name, arguments, finished.text))
        assert lacking == []


async def test_whether_a_file_is_elsewhere_is_not_told_before_anybody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").touch(mode=0o600)
    async with _tools(tmp_path) as runner:
        (tmp_path / "work" / "link.txt").symlink_to(tmp_path / "secret.txt")
        told = {
            (await _run(runner, tmp_path / "work", "run_command", {"argv": [name]})).text.partition(f"{name}. ")[2]
            for name in (str(tmp_path / "secret.txt"), str(tmp_path / "nothing.txt"), "../secret.txt", "link.txt")
        }
    assert told == {"Check its name, or run it with another program."}


async def test_of_a_folder_with_nothing_alike_a_few_names_are_told(tmp_path: Path) -> None:
    top = tmp_path / "work"
    top.mkdir()
    folders = Folders([top])
    assert what_is_there(folders, top / "soup.md") == "The folder is empty."
    for number in range(30):
        (top / f"{number:02}-zzzzzzzzzz.bin").touch()
    told = what_is_there(folders, top / "soup.md")
    assert told.startswith("The folder has: 00-zzzzzzzzzz.bin, ")
    assert told.endswith(", and 20 more.")
    (top / "a\nb.md").touch()
    assert "\n" not in what_is_there(folders, top / "a b.md"), "a name forges no line"


def test_what_a_link_leads_to_is_not_named(tmp_path: Path) -> None:
    top, other = tmp_path / "work", tmp_path / "other"
    top.mkdir()
    other.mkdir()
    (other / "secret.txt").touch()
    (top / "link").symlink_to(other)
    assert "secret" not in what_is_there(Folders([top]), top / "secret.txt")


@given(st.text(max_size=40), st.lists(st.text(max_size=40), max_size=8))
def test_what_is_alike_is_one_of_the_paths_and_an_equal_one_comes_first(wanted: str, paths: list[str]) -> None:
    found = most_alike(wanted, paths)
    assert set(found) <= set(paths)
    assert len(found) <= 3
    if wanted.isalnum():
        assert most_alike(wanted, ["zz zz", wanted])[:1] == [wanted]


def test_of_thousands_of_long_names_few_are_compared_letter_by_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    ratio = SequenceMatcher.ratio
    monkeypatch.setattr(SequenceMatcher, "ratio", lambda matcher: (compared.append(1), ratio(matcher))[1])
    paths = [f"{'deep/' * 20}{'name-' * 30}{number:04}.txt" for number in range(300)]
    assert most_alike(f"{'name-' * 30}0271.txt", paths)[0] == paths[271]
    assert 0 < len(compared) <= 200, "3,000 took 9 s"
