"""Texts of files that a chat read, which the engine keeps to draft later answers in the same folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.chat.backend import ConnectionState, LoadedModel
from app.chat.branches import Conversation
from app.chat.conversation import Attachment, ChatSettings, Message, MessageContent, placed
from app.chat.draft_texts import LEAST_CHARACTERS, READING_TOOLS, corpus_of, file_texts
from app.chat.exchange import ask
from app.chat.repository import InMemoryChatRepository, OpenedChat, SqliteChatRepository
from app.chat.state import ChatState
from app.tools.approval import ToolSettings
from app.tools.builtin.files import READ_FILE
from app.tools.tool import ToolOutcome, ToolResult
from quantizer.system.errors import EngineError
from tests.app.chat.test_exchange import drained
from tests.app.client.scripted_client import ScriptedClient

NOTES = "A line of the notes that were attached.\n" * 20
QUESTION = MessageContent(role="user", content="Quote it.", attachments=(Attachment("notes.txt", NOTES),))
FOLDERS = ("/home/me/project",)
HERE = corpus_of(FOLDERS)


def chat_of(client: ScriptedClient, key: str | None = None, *, keeps: bool = True) -> ChatState:
    settings = ChatSettings(tools=ToolSettings(folders=FOLDERS))
    opened = OpenedChat(InMemoryChatRepository(key).new(), Conversation(settings))
    state = ConnectionState(phase="ready", model="guide", n_ctx=2048)
    return ChatState(opened, LoadedModel(client, state), keeps_file_texts=lambda: keeps)


def result(text: str, server: str = "files", outcome: ToolOutcome = ToolOutcome.DONE) -> Message:
    ended = ToolResult(call_id="1", tool="read_file", server=server, outcome=outcome)
    return placed(MessageContent(role="tool", content=text, result=ended), 1, None)


async def test_what_was_attached_is_kept_after_the_answer_and_named_by_the_next_requests() -> None:
    client = ScriptedClient()
    chat = chat_of(client)
    await drained(ask(chat, QUESTION, None))
    assert client.kept_texts == [(HERE, (NOTES,), None)]
    assert client.corpora == [HERE]
    await drained(ask(chat, MessageContent(role="user", content="Once more."), chat.conversation.leaf_id))
    assert len(client.kept_texts) == 1  # each once


async def test_a_stored_chat_keeps_texts_under_its_key(tmp_path: Path) -> None:
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository:
        model = LoadedModel(client, ConnectionState(phase="ready", model="guide"))
        chat = ChatState(await repository.open(), model, keeps_file_texts=lambda: True)
        await drained(ask(chat, QUESTION, None))
        assert client.kept_texts == [(corpus_of(()), (NOTES,), chat.stored.prompt_cache_key)]


@pytest.mark.parametrize(
    ("keeps", "key"), [(True, ""), (False, None), (False, "chat")], ids=["private", "switched off", "stored"]
)
async def test_a_private_chat_keeps_and_uses_no_texts_and_none_does_where_that_is_off(
    keeps: bool, key: str | None
) -> None:
    client = ScriptedClient()
    await drained(ask(chat_of(client, key, keeps=keeps), QUESTION, None))
    assert client.kept_texts == []
    assert client.corpora == [None]


def test_texts_are_those_of_files_and_long_enough() -> None:
    branch = [
        placed(QUESTION, 1, None),
        result("x" * LEAST_CHARACTERS),
        result("[lines 3 to 9 of 80; go on with first_line 10]\n" + "y" * LEAST_CHARACTERS),
        result("z" * LEAST_CHARACTERS, server="of others"),
        result("z" * LEAST_CHARACTERS, outcome=ToolOutcome.FAILED),
        result("z" * (LEAST_CHARACTERS - 1)),
    ]
    assert [*file_texts(branch)] == [NOTES, "x" * LEAST_CHARACTERS, "y" * LEAST_CHARACTERS]


def test_the_tool_that_reads_files_is_the_one_of_ours() -> None:
    assert {(READ_FILE.server, READ_FILE.name)} == READING_TOOLS


async def test_an_answer_is_whole_where_texts_cannot_be_kept_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logged: list[str] = []
    monkeypatch.setattr("app.chat.draft_texts.log_event", lambda _source, text: logged.append(text))
    client = ScriptedClient()
    client.keep_error = EngineError("It is an infer key.", "Use another one.")
    chat = chat_of(client)
    events = await drained(ask(chat, QUESTION, None))
    assert type(events[-1]).__name__ == "Finished"
    assert logged == ["Texts of files were not kept for drafts: It is an infer key. Use another one."]


def test_the_project_is_where_this_was_started_unless_the_tools_have_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert corpus_of(()) == corpus_of((str(tmp_path.resolve()),))
    assert corpus_of(("/srv/a", "/srv/b")) == corpus_of(("/srv/a",)) != corpus_of(())
    assert tmp_path.name not in corpus_of(())


def test_where_the_folder_was_removed_there_is_no_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: (_ for _ in ()).throw(FileNotFoundError()))
    assert corpus_of(()) == ""
