"""Folders of documents in the app: added, listed, asked, forgotten; cited passages opened in their documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.knowledge.reading import read_folder
from app.knowledge.store import KnowledgeStore
from app.settings.settings import Settings
from app.tools.lazy import LazyTools
from tests.app.chat.tool_chats import said
from tests.app.client.scripted_client import READY, ScriptedClient

pytestmark = pytest.mark.slow

_WIDE = (120, 40)


class _NoTools(ScriptedClient):
    """A service whose model calls no tools."""

    def __init__(self, *replies) -> None:
        super().__init__(*replies)
        from dataclasses import replace

        self.model = replace(READY, takes_tools=False, n_ctx=8192)


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "soup.md").write_text("# Broth\n\nIt simmers for three hours.\n\n# Salt\n\nA pinch of it is enough.\n")
    (folder / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / ".env").write_text("SECRET=1")
    return folder


def _tools(tmp_path: Path) -> LazyTools:
    return LazyTools(Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache"))


def _read(tmp_path: Path, papers: Path) -> None:
    with KnowledgeStore(tmp_path / "data") as store:
        list(read_folder(store, store.add_folder(papers)))


async def test_a_folder_is_added_read_asked_and_forgotten(open_app, tmp_path: Path, papers: Path) -> None:
    async with open_app(_NoTools(), _WIDE, tools=_tools(tmp_path)) as user:
        await user.sees("ready")
        await user.asks("/knowledge")
        await user.sees("No folder yet.", "This chat does not search them")
        await user.presses("a")
        await user.sees("Folder of documents")
        await user.pastes(str(papers))
        await user.presses("enter")
        await user.sees("papers", "1 file · 1 passage · 2 left out", "1 file read, 2 left out")
        await user.sees("found by words alone")
        await user.presses("l")
        await user.sees("photo.png", ".env")
        await user.presses("escape")
        await user.presses("slash")
        await user.pastes("how much salt")
        await user.presses("enter")
        await user.sees("words 1", "soup.md (Broth)", "Found by words alone")
        await user.presses("enter")
        await user.sees("A pinch of it is enough.", "Y copies the path", str(papers / "soup.md")[:40])
        await user.presses("escape", "escape", "m")
        await user.sees("This chat searches them when it is needed")
        await user.presses("m")
        await user.sees("This chat searches them before each question")
        await user.presses("delete")
        await user.sees("Forget the folder", "The documents stay.")
        await user.presses("enter")
        await user.sees("No folder yet.", "The documents are untouched.")
        await user.presses("escape")
        await user.sees("tools: knowledge")
    assert (papers / "soup.md").exists()


async def test_an_answer_shows_its_sources_and_one_opens_in_its_document(
    open_app, tmp_path: Path, papers: Path
) -> None:
    _read(tmp_path, papers)
    client = _NoTools(said("Three hours [1]."))
    async with open_app(client, _WIDE, tools=_tools(tmp_path)) as user:
        await user.sees("ready")
        await user.asks("/knowledge on")
        await user.sees("Your folders are searched before each question of this chat.")
        await user.asks("How long does broth simmer?")
        await user.sees("Three hours [1].", "[1] soup.md (Broth)")
        await user.asks("/source 1")
        await user.sees(str(papers / "soup.md")[:40], "It simmers for three hours.")
        await user.presses("escape")
        await user.presses("ctrl+up")
        await user.sees("Source")
        await user.presses("s")
        await user.sees("Y copies the path")
        await user.presses("escape")
        await user.asks("/source 2")
        await user.sees("There is no source 2.")
    assert "[1] soup.md (Broth)" in client.requests[0][-1].content


@pytest.mark.parametrize(
    ("typed", "said_then"),
    [
        ("/knowledge on", "No folder was added as knowledge."),
        ("/knowledge add /no/such/folder", "is not a folder."),
        ("/knowledge rm /no/such/folder", "was not added."),
        ("/knowledge sing", "/knowledge sing is not known."),
        ("/source", "No passage of your documents was given to this answer."),
    ],
)
async def test_what_cannot_be_done_is_said(open_app, tmp_path: Path, typed: str, said_then: str) -> None:
    async with open_app(_NoTools(), _WIDE, tools=_tools(tmp_path)) as user:
        await user.sees("ready")
        await user.asks(typed)
        await user.sees(said_then)
