"""What can be attached: pasted texts, files below a folder, and files elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from app.chat.conversation import Attachment
from quantizer.system.errors import UsageError
from tui.chat.composer.attachments import (
    AttachmentReader,
    Mentioned,
    MentionReader,
    complete_path,
    files_below,
    is_long,
    mention_of,
    unused_name,
    without_mention,
)


def test_a_paste_is_long_by_its_letters_or_its_lines() -> None:
    assert not is_long("x" * 1000)
    assert is_long("x" * 1001)
    assert not is_long("\n" * 11)
    assert is_long("\n" * 12)


def test_pasted_texts_have_names_of_their_own() -> None:
    first, second = Attachment("pasted 1", "a"), Attachment("pasted 2", "b")
    names = [unused_name("pasted", others) for others in ([], [first], [second])]
    assert names == ["pasted 1", "pasted 2", "pasted 1"]


def test_files_are_found_nearest_first_and_noise_is_passed_over(tmp_path: Path) -> None:
    for name in ("b.txt", "a/deep/c.py", "a/d.py", ".git/config", "node_modules/x.js", ".env"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert files_below(tmp_path) == ["b.txt", "a/d.py", "a/deep/c.py"]


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "secret").symlink_to("/etc/passwd")
    assert files_below(tmp_path) == []


def test_a_folder_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert files_below(tmp_path / "nowhere") == []


@pytest.mark.skipif(os.name == "nt", reason="pipes with a name are files elsewhere")
def test_a_pipe_is_no_completion(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pine").write_text("a tree")
    assert complete_path("pi", tmp_path) == ["pine"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    (folder / "src").mkdir(parents=True)
    for name in ("notes.txt", "my notes.txt", "src/main.py", ".hidden", "../outside.txt"):
        (folder / name).write_text(name)
    return folder


def test_an_unfinished_name_becomes_files_and_folders(folder: Path) -> None:
    assert complete_path("", folder) == ["my notes.txt", "notes.txt", "src/"]
    assert complete_path("no", folder) == ["notes.txt"]
    assert complete_path("src/", folder) == ["src/main.py"]
    assert complete_path(".h", folder) == [".hidden"]
    assert complete_path("../o", folder) == ["../outside.txt"]
    assert complete_path("nothing/", folder) == []


async def no_contents(contents) -> None:
    """Keep nothing: these files are texts."""
    assert not contents


def reader_of(folder: Path) -> MentionReader:
    return MentionReader(folder, AttachmentReader(no_contents))


async def read_mentions(question: str, folder: Path, attached=(), *, is_typed: bool = True) -> Mentioned:
    return await reader_of(folder).find(question, attached, is_typed=is_typed)


def names_of(mentioned: Mentioned) -> list[str]:
    return [attachment.name for attachment in mentioned.attachments]


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("What is in @notes.txt?", ["notes.txt"]),
        ("@src/main.py: explain, and @notes.txt too, @notes.txt.", ["src/main.py", "notes.txt"]),
        ('Sum up @"my notes.txt"!', ["my notes.txt"]),
        ("Write to me@notes.txt or @property, @@notes, @ src", []),
        ("@src is a folder", []),
        ("@" + "x" * 5000, []),
    ],
)
async def test_a_word_behind_an_at_sign_is_a_file_where_there_is_one(
    folder: Path, question: str, names: list[str]
) -> None:
    mentioned = await read_mentions(question, folder)
    assert (names_of(mentioned), mentioned.faults) == (names, ())


async def test_a_file_elsewhere_is_attached_unless_the_text_may_be_pasted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("USERPROFILE", str(folder.parent))
    question = f"@~/outside.txt @../outside.txt @{folder.parent}/outside.txt @src/../notes.txt"
    assert len(names_of(await read_mentions(question, folder))) == 4
    possibly_pasted = await read_mentions(question, folder, is_typed=False)
    assert names_of(possibly_pasted) == ["src/../notes.txt"]
    assert len(possibly_pasted.faults) == 3
    assert "~/outside.txt is outside this folder" in possibly_pasted.faults[0]


@pytest.mark.parametrize("swapped", ["src", "src/main.py"])
async def test_a_name_that_leads_elsewhere_than_when_it_was_typed_is_a_fault(folder: Path, swapped: str) -> None:
    outside = folder.parent / "elsewhere"
    outside.mkdir()
    (outside / "main.py").write_text("secret")
    reader = reader_of(folder)
    assert names_of(await reader.find("Read @src/main.py")) == ["src/main.py"]
    (folder / swapped).rename(folder / "former")
    (folder / swapped).symlink_to(outside if swapped == "src" else outside / "main.py")
    found = await reader.find("Read @src/main.py now")
    assert found == Mentioned((), ("src/main.py leads to another file than when it was typed.",))
    with pytest.raises(UsageError, match="another file"):
        await reader.read("Read @src/main.py now")
    assert await reader.read("Read @src/main.py now") == ()  # sent again: as text
    await reader.find("Another question")
    assert names_of(await reader.find("Read @src/main.py")) == ["src/main.py"]  # named again, by whoever looked at it


async def test_a_link_that_comes_between_check_and_use_is_not_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "secret.py").write_text("secret")
    original = AttachmentReader.read_file

    async def swap_first(self: AttachmentReader, path: Path, *rest: Any, **more: Any) -> Attachment:
        os.rename(path, folder / "former.py")  # noqa: PTH104
        os.symlink(folder.parent / "secret.py", path)  # noqa: PTH211
        return await original(self, path, *rest, **more)

    monkeypatch.setattr(AttachmentReader, "read_file", swap_first)
    found = await read_mentions("Read @src/main.py", folder, is_typed=False)
    assert found == Mentioned((), ("src/main.py was replaced by a link.",))


async def test_a_missing_file_is_a_fault(folder: Path) -> None:
    question = "@notes.text, @src/nothing, @nul\0x.txt, @src/ and @wrongfile or @~nobody-here/x.txt see @notes.txt"
    mentioned = await read_mentions(question, folder)
    assert mentioned.faults == (
        "No such file: notes.text.",
        "No such file: src/nothing.",
        "No such file: nul\0x.txt.",
        "src/ is a folder: mention one of its files.",
        "No such file: wrongfile.",
        "No such file: ~nobody-here/x.txt.",
    )
    assert names_of(mentioned) == ["notes.txt"]
    assert await read_mentions("@app.route('/')\n@nothing.txt", folder, is_typed=False) == Mentioned()


@pytest.mark.parametrize(
    "question",
    [
        "What does @property do?",
        "Why is @pytest.fixture slow, and @functools.cache not?",
        "When does @Override help, and @media in a stylesheet?",
        "Explain `@wrongfile` to me",
        "Explain\n```python\n@wrongfile.py\ndef f(): ...\n```",
        "@app.get\nasync def index():\n    ...\nWhat is wrong?",
        "@wrapped\n@twice\nclass Thing: ...",
        "@app.get('/') is what?",
        "Mail me@example.com or @somebody@mastodon.social @5pm, 3 @ 4",
        "@src is a folder here",
    ],
)
async def test_code_addresses_and_times_are_no_missing_files(folder: Path, question: str) -> None:
    assert await read_mentions(question, folder) == Mentioned()


@pytest.mark.parametrize("name", ["wrongfile", "Makefile", "LICENSE", "train.ipynb", "weights.safetensors", "a.b.rs"])
async def test_a_name_that_may_be_a_file_is_a_fault_where_there_is_none(folder: Path, name: str) -> None:
    assert (await read_mentions(f"Sum up @{name}.", folder)).faults == (f"No such file: {name}.",)


async def test_a_word_that_was_sent_as_text_is_a_word_from_then_on(folder: Path) -> None:
    reader = reader_of(folder)
    with pytest.raises(UsageError, match=r"No such file: somebody\."):
        await reader.read("Write to @somebody")
    assert await reader.read("Write to @somebody") == ()
    assert await reader.read("And to @somebody again") == ()
    with pytest.raises(UsageError, match=r"No such file: someone\."):
        await reader.read("And to @someone")


@pytest.mark.skipif(os.name == "nt", reason="pipes with a name are files elsewhere")
async def test_a_pipe_is_a_fault_and_nobody_waits_for_it(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (fault,) = (await read_mentions("What comes out of @pipe?", folder)).faults
    assert fault.startswith("pipe is a pipe.")


async def test_a_file_that_is_attached_already_is_not_read_again(folder: Path) -> None:
    (folder / "notes.txt").unlink()
    assert await read_mentions("@notes.txt, please", folder, {"notes.txt"}) == Mentioned()


async def test_a_question_with_a_fault_is_held_back_once(folder: Path) -> None:
    reader = reader_of(folder)
    with pytest.raises(UsageError, match=r"No such file: nope.txt. Enter again"):
        await reader.read("@nope.txt and @notes.txt")
    with pytest.raises(UsageError, match=r"No such file: nope.txt."):
        await reader.read("@nope.txt and, again, @notes.txt")
    (attached,) = await reader.read("@nope.txt and, again, @notes.txt")
    assert attached.name == "notes.txt"
    with pytest.raises(UsageError, match=r"No such file: nope.txt."):  # another time it is a mistake again
        await reader.read("@nope.txt and, again, @notes.txt")


def test_a_mention_is_written_in_quotes_where_its_name_has_spaces_and_can_be_taken_out() -> None:
    assert mention_of("notes.txt") == "@notes.txt "
    assert mention_of("my notes.txt") == '@"my notes.txt" '
    assert mention_of("my folder/", is_finished=False) == '@"my folder/'
    assert without_mention('Is @notes.txt, or @"my notes.txt" @notes.txt.old?', "notes.txt") == (
        'Is , or @"my notes.txt" @notes.txt.old?'
    )
    assert without_mention('Is @"my notes.txt" it?', "my notes.txt") == "Is  it?"
