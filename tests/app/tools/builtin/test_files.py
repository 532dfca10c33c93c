"""The server of tools for files: reading within bounds, and writing exactly what was shown."""

from __future__ import annotations

import asyncio
import errno
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.tools.builtin.files import FILE_TOOLS, FileServer
from app.tools.file_history import FileHistory
from app.tools.tool import CallContext, FileChange, Preview, ToolOutput
from quantizer.system.errors import UserError


@dataclass
class Project:
    """A folder of a chat with its tools."""

    folder: Path
    history: FileHistory
    changes: list[FileChange] = field(default_factory=list)
    on_record: Callable[[], None] = lambda: None
    max_characters: int = 24_000

    def __post_init__(self) -> None:
        self.server = FileServer(self.history)

    def context(self) -> CallContext:
        async def record(change: FileChange) -> None:
            self.changes.append(change)
            self.on_record()

        return CallContext((self.folder,), record_change=record, max_characters=self.max_characters)

    async def preview(self, name: str, **arguments: Any) -> Preview:
        return await self.server.preview(tool_of(name), arguments, self.context())

    async def call(self, name: str, **arguments: Any) -> ToolOutput:
        return await self.server.call(tool_of(name), arguments, self.context())

    async def do(self, name: str, **arguments: Any) -> ToolOutput:
        await self.preview(name, **arguments)
        return await self.call(name, **arguments)

    def file(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path


def tool_of(name: str) -> Any:
    return next(tool for tool in FILE_TOOLS if tool.name == name)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder, FileHistory(tmp_path / "history"))


async def test_a_file_is_read_whole(project: Project) -> None:
    project.file("a.txt", "one\nzwei\nтри\n".encode())
    output = await project.do("read_file", path="a.txt")
    assert (output.text, output.detail) == ("one\nzwei\nтри\n", "3 lines")


async def test_a_folder_that_may_not_be_entered_is_said_with_a_remedy(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")  # root is refused nothing

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(UserError, match=r"a\.txt cannot be read: Permission denied\. Check its permissions"):
        await project.call("read_file", path="shut/a.txt")


async def test_lines_of_a_file_are_read_and_numbered(project: Project) -> None:
    project.file("a.txt", b"1\r\n2\r\n3\r\n4\r\n")
    output = await project.do("read_file", path="a.txt", first_line=2, last_line=3)
    assert output.text == "[CRLF line endings; lines 2 to 3 of 4]\n2\n3\n"


async def test_of_a_long_file_the_model_is_told_where_to_go_on(project: Project) -> None:
    project.file("a.txt", b"".join(b"line %d\n" % number for number in range(1, 1001)))
    project.max_characters = 1000
    output = await project.do("read_file", path="a.txt")
    assert output.text.startswith("[lines 1 to 100 of 1,000; go on with first_line 101]\nline 1\n")
    assert len(output.text) <= 1000
    assert (await project.do("read_file", path="a.txt", first_line=101)).text.startswith("[lines 101 to")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("b.bin", b"\x7fELF\0\0", "not text: it has 6 bytes"),
        ("large", b"x" * 17_000_000, "more than 16 MiB"),
        (None, b"", "There is no file missing"),
    ],
    ids=["binary", "too large", "missing"],
)
async def test_what_cannot_be_read_is_said_and_not_dumped(
    project: Project, name: str | None, content: bytes, told: str
) -> None:
    if name:
        project.file(name, content)
    with pytest.raises(UserError, match=told):
        await project.do("read_file", path=name or "missing")


async def test_lines_beyond_the_end_are_said_to_be_none(project: Project) -> None:
    project.file("a.txt", b"1\n2\n")
    with pytest.raises(UserError, match="has 2 lines"):
        await project.do("read_file", path="a.txt", first_line=3)
    project.file("empty", b"")
    assert (await project.do("read_file", path="empty")).text == ""


async def test_a_write_is_shown_as_a_difference_and_happens_as_shown(project: Project) -> None:
    path = project.file("a.py", b"x = 1\n")
    path.chmod(0o755)
    preview = await project.preview("write_file", path="a.py", content="x = 2\n")
    assert (preview.kind, preview.title) == ("diff", "write a.py")
    assert preview.text == "--- a.py\n+++ a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2"
    assert path.read_bytes() == b"x = 1\n"
    output = await project.call("write_file", path="a.py", content="x = 2\n")
    assert (output.text, output.detail) == ("Wrote a.py (+1 −1 lines).", "+1 −1 lines")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"x = 2\n", 0o755)


async def test_the_change_is_recorded_before_it_is_made_and_can_be_undone(project: Project) -> None:
    path = project.file("a.py", b"old")
    project.on_record = lambda: seen.append(path.read_bytes())
    seen: list[bytes] = []
    await project.do("write_file", path="a.py", content="new")
    assert seen == [b"old"]
    project.history.undo(project.changes)
    assert path.read_bytes() == b"old"


async def test_a_new_file_is_shown_as_one_and_its_folders_are_made(project: Project) -> None:
    preview = await project.preview("write_file", path="src/new/a.py", content="a\n")
    assert preview.text.startswith("[A new file]\n--- /dev/null\n+++ src/new/a.py\n@@ -0,0 +1 @@\n+a")
    await project.call("write_file", path="src/new/a.py", content="a\n")
    assert (project.folder / "src/new/a.py").read_text() == "a\n"
    assert project.changes[0].n_new_folders == 2


async def test_an_edit_keeps_encoding_mark_and_line_endings(project: Project) -> None:
    path = project.file("a.txt", "\ufeffé\r\nb\r\n".encode("utf-16-le"))
    await project.do("edit_file", path="a.txt", old_text="b\n", new_text="x\ny\n")
    assert path.read_bytes() == "\ufeffé\r\nx\r\ny\r\n".encode("utf-16-le")


async def test_a_file_written_anew_keeps_its_line_endings(project: Project) -> None:
    path = project.file("a.txt", b"a\r\nb\r\n")
    await project.do("write_file", path="a.txt", content="x\ny\n")
    assert path.read_bytes() == b"x\r\ny\r\n"


async def test_an_old_encoding_that_lacks_a_character_becomes_utf8_and_says_so(project: Project) -> None:
    path = project.file("a.txt", b"caf\xe9\n")
    preview = await project.preview("write_file", path="a.txt", content="三\n")
    assert "[The encoding becomes UTF-8]" in preview.text
    await project.call("write_file", path="a.txt", content="三\n")
    assert path.read_bytes() == "三\n".encode()


@pytest.mark.parametrize("when", ["before the call", "before the write"])
async def test_a_file_that_changed_after_it_was_shown_is_not_written(project: Project, when: str) -> None:
    path = project.file("a.py", b"old")
    await project.preview("write_file", path="a.py", content="new")
    if when == "before the call":
        path.write_bytes(b"by hand")
    else:
        project.on_record = lambda: path.write_bytes(b"by hand") and None
    with pytest.raises(UserError, match="changed"):
        await project.call("write_file", path="a.py", content="new")
    assert path.read_bytes() == b"by hand"


async def test_a_link_that_leads_elsewhere_after_it_was_shown_is_not_written_through(project: Project) -> None:
    first, second = project.file("one", b"same"), project.file("two", b"same")
    link = project.folder / "link"
    link.symlink_to("one")
    await project.preview("write_file", path="link", content="new")
    link.unlink()
    link.symlink_to("two")
    with pytest.raises(UserError, match="changed after"):
        await project.call("write_file", path="link", content="new")
    assert (first.read_bytes(), second.read_bytes()) == (b"same", b"same")


async def test_nothing_is_written_that_was_not_shown(project: Project) -> None:
    await project.preview("write_file", path="a", content="shown")
    with pytest.raises(UserError, match="not shown"):
        await project.call("write_file", path="a", content="other")
    await project.call("write_file", path="a", content="shown")
    with pytest.raises(UserError, match="not shown"):
        await project.call("write_file", path="a", content="shown")


async def test_a_file_too_large_to_keep_is_replaced_and_both_say_so(project: Project) -> None:
    path = project.file("large.log", b"x" * 17_000_000)
    preview = await project.preview("write_file", path="large.log", content="short\n")
    assert "cannot be undone" in preview.text
    output = await project.call("write_file", path="large.log", content="short\n")
    assert "cannot be undone" in output.text
    assert "cannot be undone" in output.detail
    assert path.read_bytes() == b"short\n"


async def test_other_names_of_a_file_are_mentioned(project: Project) -> None:
    path = project.file("a", b"old")
    (project.folder / "b").hardlink_to(path)
    assert "has 2 names" in (await project.preview("write_file", path="a", content="new")).text


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "out/a", ".git/hooks/pre-commit", "C:\\a"])
async def test_no_write_leaves_the_folders(project: Project, path: str) -> None:
    (project.folder / "out").symlink_to("/tmp")
    for name, more in (("write_file", {"content": "x"}), ("edit_file", {"old_text": "a", "new_text": "b"})):
        with pytest.raises(UserError):
            await project.preview(name, path=path, **more)


async def test_a_write_that_was_cancelled_after_it_began_is_finished(project: Project) -> None:
    project.file("a", b"old")
    await project.preview("write_file", path="a", content="new")
    running = asyncio.create_task(project.call("write_file", path="a", content="new"))
    project.on_record = lambda: running.cancel() and None
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (project.folder / "a").read_bytes() in (b"old", b"new")
    project.history.undo(project.changes)
    assert (project.folder / "a").read_bytes() == b"old"


async def test_a_folder_is_listed_without_what_git_ignores(project: Project) -> None:
    for name in ("src/a.py", "src/deep/b.py", "build/x.o", ".git/config", "b\nroken"):
        project.file(name, b"12345")
    project.file(".gitignore", b"build/\n")
    (project.folder / "link").symlink_to("/etc")
    output = await project.do("list_folder", depth=2)
    assert output.text.split("\n") == [
        ".gitignore  7 bytes",
        '"b\\nroken"  5 bytes',
        "link  (a link, which is not followed)",
        "src/",
        "src/a.py  5 bytes",
        "src/deep/",
    ]
    assert output.detail == "6 entries"
    assert "build/x.o" in (await project.do("list_folder", depth=2, include_ignored=True)).text


async def test_of_a_large_folder_it_is_said_how_many_entries_are_not_shown(project: Project) -> None:
    for number in range(1100):
        project.file(f"{number:04}", b"")
    assert (await project.do("list_folder")).text.endswith("[100 more entries are not shown; list a folder in it]")


@pytest.mark.slow
async def test_text_is_searched_in_files_below(project: Project) -> None:
    project.file("src/a.py", b"import os\nprint(os.name)\n")
    project.file("b.md", b"OS\r\n")
    project.file("c.bin", b"os\0")
    assert (await project.do("search_text", pattern="os")).text == "src/a.py:1: import os\nsrc/a.py:2: print(os.name)"
    assert (await project.do("search_text", pattern="os", ignore_case=True, glob="*.md")).text == "b.md:1: OS"
    assert (await project.do("search_text", pattern=r"os\.\w+", is_regex=True)).text == "src/a.py:2: print(os.name)"
    assert (await project.do("search_text", pattern="name", path="src/a.py")).text == "src/a.py:2: print(os.name)"
    assert "No line matches in 2 files" in (await project.do("search_text", pattern="nowhere")).text


async def test_a_regular_expression_that_is_none_is_refused(project: Project) -> None:
    project.file("a", b"a")
    with pytest.raises(UserError, match="not valid"):
        await project.do("search_text", pattern="(", is_regex=True)


@pytest.mark.slow
async def test_a_search_that_takes_forever_can_be_stopped(project: Project) -> None:
    project.file("a", b"a" * 40 + b"!\n")
    running = asyncio.create_task(project.do("search_text", pattern="^(a+)+$", is_regex=True))
    await asyncio.sleep(0.5)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_long_lines_are_shown_around_the_match(project: Project) -> None:
    project.file("a", b"x" * 5000 + b"needle" + b"y" * 5000)
    text = (await project.do("search_text", pattern="needle")).text
    assert "needle" in text
    assert len(text) < 320
