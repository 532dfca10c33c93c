from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from app.knowledge.citation import SHOWN_CHARACTERS, surroundings
from app.knowledge.reading import read_folder
from app.knowledge.search import search
from app.knowledge.store import KnowledgeStore
from app.protocol.chat import Source

_PARAGRAPHS = [f"Paragraph {number}: " + f"word{number} " * 90 for number in range(30)]


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "papers" / "soup.md"
    path.parent.mkdir()
    _write(path, "\n\n".join(_PARAGRAPHS))
    _read(tmp_path)
    return path


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, (1, 1))


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _read(tmp_path: Path) -> None:
    with KnowledgeStore(tmp_path / "data") as store:
        list(read_folder(store, store.add_folder(tmp_path / "papers")))


async def _found(tmp_path: Path, words: str) -> Source:
    return (await search(tmp_path / "data", words, limit=1)).hits[0].source


async def test_a_passage_is_shown_with_what_stands_around_it(tmp_path: Path, document: Path) -> None:
    source = await _found(tmp_path, "word12")
    found = surroundings(tmp_path / "data", source)
    text = "\n\n".join(_PARAGRAPHS)
    assert text[source.begin : source.end] == source.text
    assert found.note == ""
    before = text[max(0, source.begin - SHOWN_CHARACTERS) : source.begin]
    after = text[source.end : source.end + SHOWN_CHARACTERS]
    assert "".join(found.before.split()) == "".join(before.split())
    assert "".join(found.after.split()) == "".join(after.split())


async def test_a_document_that_changed_is_said_to_have(tmp_path: Path, document: Path) -> None:
    source = await _found(tmp_path, "word12")
    _write(document, "Other.")
    assert surroundings(tmp_path / "data", source).note == "The document has changed since it was read."
    _read(tmp_path)
    found = surroundings(tmp_path / "data", source)
    assert "have this passage no longer" in found.note
    assert (found.before, found.after) == ("", "")


@pytest.mark.parametrize("path", ["/etc/passwd", "soup.md", "/no/such/file", ""])
async def test_no_file_outside_of_the_folders_is_read(tmp_path: Path, document: Path, path: str) -> None:
    source = replace(await _found(tmp_path, "word12"), path=path)
    words = "have this passage no longer" if Path(path).is_absolute() else "attached text"
    assert words in surroundings(tmp_path / "data", source).note
    forged = Source(str(document), "Something else.", source.begin, source.end)
    assert "have this passage no longer" in surroundings(tmp_path / "data", forged).note


async def test_without_any_knowledge_the_passage_stands_alone(tmp_path: Path) -> None:
    assert surroundings(tmp_path, Source("/a.md", "text")).note
    assert not _names(tmp_path)


def test_an_attached_text_of_another_branch_is_not_said_to_be_of_a_folder(tmp_path: Path) -> None:
    assert "attached text" in surroundings(tmp_path, Source("book.md", "Of soup", 10, 17)).note


async def test_a_page_of_the_web_stands_alone_and_nothing_is_asked_for_it(tmp_path: Path) -> None:
    source = Source("https://a.example/soup", "text", heading="Soup")
    assert surroundings(tmp_path / "data", source).note == "From the web, as it was found then."
    assert not (tmp_path / "data").exists()
    assert source.label == "https://a.example/soup (Soup)"
