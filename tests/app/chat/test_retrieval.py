"""Folders are searched before a question where the model calls no tools; the passages stay with the question."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.activity import activity_of
from app.chat.attachments.prompt import compose_prompt
from app.chat.backend import ConnectionState, LoadedModel
from app.chat.branches import Conversation
from app.chat.compaction import estimated_tokens
from app.chat.conversation import Attachment, ChatSettings, MessageContent
from app.chat.events import ChatEvent, Note
from app.chat.exchange import ask, ask_again
from app.chat.repository import OpenedChat, SqliteChatRepository
from app.chat.retrieval import fitting, passage_tokens
from app.chat.session import OpenChat
from app.chat.state import ChatState
from app.connection import ServiceConnection, local_service
from app.knowledge.reading import read_folder
from app.knowledge.store import KnowledgeStore
from app.protocol.chat import Source
from app.settings.settings import Settings
from app.tools.approval import KNOWLEDGE, ApprovalRule, ToolSettings
from app.tools.builtin.servers import tool_runner
from app.tools.lazy import LazyTools
from tests.app.chat.tool_chats import call, calling, said, unbatched
from tests.app.client.scripted_client import ScriptedClient
from tests.quantizer.gguf_files import tiny_llama

__all__ = ["unbatched"]

ON = ToolSettings(enabled=(KNOWLEDGE,))
BROTH = "# Broth\n\nIt simmers for three hours."
_BY_WORDS = "Found by words alone: no embedding model has read the folders (`localllm help knowledge`)."


def _add_broth(tmp_path: Path) -> None:
    folder = tmp_path / "papers"
    folder.mkdir(exist_ok=True)
    (folder / "soup.md").write_text(BROTH)
    with KnowledgeStore(tmp_path) as store:
        list(read_folder(store, store.add_folder(folder)))


async def _chat(
    tmp_path: Path, client: ScriptedClient, settings: ChatSettings, *, takes_tools: bool | None, n_ctx: int = 4096
) -> ChatState:
    """Return a stored chat with one added document; the caller closes its repository and tools."""
    _add_broth(tmp_path)
    opened = OpenedChat(SqliteChatRepository(tmp_path).new(), Conversation(settings))
    state = ConnectionState(phase="ready", model="small", n_ctx=n_ctx, takes_tools=takes_tools)
    return ChatState(opened, LoadedModel(client, state), tools=tool_runner(tmp_path), clock=lambda: 0.0)


async def _ask(chat: ChatState, text: str) -> list[ChatEvent]:
    seen: list[ChatEvent] = []
    async with aclosing(ask(chat, MessageContent(content=text), chat.conversation.leaf_id)) as events:
        async for event in events:
            seen.append(event)
            if not isinstance(event, Note):
                activity_of(chat, 0.0)  # can be said at any moment
    return seen


def _notes(seen: list[ChatEvent]) -> list[str]:
    return [event.text for event in seen if isinstance(event, Note)]


@pytest.mark.parametrize(
    ("settings", "takes_tools", "searches"),
    [
        (ChatSettings(tools=ON), False, True),
        (ChatSettings(tools=ON), True, False),
        (ChatSettings(tools=ON), None, False),  # another engine does not say it
        (ChatSettings(tools=replace(ON, searches_first=True)), True, True),
        (ChatSettings(tools=ON, options={"template": "chatml"}), True, True),
        (ChatSettings(tools=ToolSettings(searches_first=True)), False, False),
        (ChatSettings(), False, False),
    ],
)
async def test_a_question_is_searched_for_where_the_model_calls_no_tools(
    tmp_path: Path, settings: ChatSettings, takes_tools: bool | None, searches: bool
) -> None:
    client = ScriptedClient(said("Three hours [1]."))
    chat = await _chat(tmp_path, client, settings, takes_tools=takes_tools)
    seen = await _ask(chat, "How long does broth simmer?")
    question, answer = chat.conversation.branch
    assert [source.text for source in question.sources] == [BROTH] * searches
    asked = client.requests[0][-1].content if client.requests else client.prompts[0]
    assert (f"[1] soup.md (Broth)\n```\n{BROTH}\n```" in asked) is searches
    assert "How long does broth simmer?" in asked
    assert _notes(seen) == [_BY_WORDS] * searches
    (entry,) = [each for each in chat.conversation.entries() if each.message.id == answer.id]
    assert [source.label for source in entry.sources] == ["soup.md (Broth)"] * searches
    offers_search = settings.tools.has_knowledge and not searches
    assert [tool.name for tool in client.options[0].tools] == ["search_knowledge"] * offers_search


async def test_the_passages_are_stored_with_the_question_and_sent_the_same_again(tmp_path: Path) -> None:
    client = ScriptedClient(said("Three hours [1]."), said("Three."))
    chat = await _chat(tmp_path, client, ChatSettings(tools=ON), takes_tools=False)
    await _ask(chat, "How long does broth simmer?")
    (tmp_path / "papers" / "soup.md").write_text("Nothing of this kind.")
    with KnowledgeStore(tmp_path) as store:
        list(read_folder(store, store.folders()[0]))
    async with aclosing(ask_again(chat, chat.conversation.branch[0])) as events:
        async for _ in events:
            pass
    assert client.requests[1] == client.requests[0]
    async with SqliteChatRepository(tmp_path) as repository:
        opened = await repository.open()
    (source,) = opened.conversation.branch[0].sources
    assert source == Source(str(tmp_path / "papers" / "soup.md"), BROTH, 0, len(BROTH), None, "Broth")


async def test_a_turn_without_hits_says_so_once_and_asks_plainly(tmp_path: Path) -> None:
    client = ScriptedClient(said("I do not know."), said("Three hours."))
    chat = await _chat(tmp_path, client, ChatSettings(tools=ON), takes_tools=False)
    notes = _notes(await _ask(chat, "Zebra?"))
    assert notes == ["No passage of your folders fits this question: it is asked without.", _BY_WORDS]
    assert client.requests[0][-1].content == "Zebra?"
    assert _notes(await _ask(chat, "And broth?")) == [], "what the search lacks is said once"
    assert chat.conversation.branch[2].sources


async def test_a_follow_up_is_searched_with_the_question_before_and_asked_as_it_was_typed(tmp_path: Path) -> None:
    client = ScriptedClient(said("Three hours."), said("No."))
    chat = await _chat(tmp_path, client, ChatSettings(tools=ON), takes_tools=False)
    await _ask(chat, "What about broth?")
    assert _notes(await _ask(chat, "And is it ever stirred?")) == []
    question = chat.conversation.branch[2]
    assert question.content == "And is it ever stirred?"
    assert [source.text for source in question.sources] == [BROTH]


async def test_without_room_the_question_is_asked_without_passages(tmp_path: Path) -> None:
    client = ScriptedClient(said("Long."))
    chat = await _chat(tmp_path, client, ChatSettings(tools=ON), takes_tools=False, n_ctx=64)
    notes = _notes(await _ask(chat, "How long does broth simmer?"))
    assert "no room" in notes[-1]
    assert client.requests[0][-1].content == "How long does broth simmer?"


async def test_a_search_that_the_chat_refuses_or_that_fails_is_said(tmp_path: Path) -> None:
    client = ScriptedClient(said("a"), said("b"))
    denied = ApprovalRule("tool", KNOWLEDGE, "search_knowledge", is_denied=True)
    chat = await _chat(tmp_path, client, ChatSettings(tools=replace(ON, rules=(denied,))), takes_tools=False)
    (note,) = _notes(await _ask(chat, "broth?"))
    assert note.startswith("Your folders were not searched, questions are asked without: The user does not allow")
    with KnowledgeStore(tmp_path) as store:
        store.remove_folder(store.folders()[0])
    (note,) = _notes(await _ask(chat, "broth?"))
    assert note.startswith("Your folders were not searched")


_BOOK = Attachment(
    "book.md",
    "\n\n".join(
        f"# Chapter {n}\n\nOf {word}. " + "And so on. " * 60
        for n, word in enumerate(("soup", "bicycles", "barometers"), start=1)
    ),
    is_searched=True,
)


async def _ask_about_the_book(chat: ChatState, text: str) -> list[str]:
    attached = () if chat.conversation.branch else (_BOOK,)
    asked = MessageContent(content=text, attachments=attached)
    async with aclosing(ask(chat, asked, chat.conversation.leaf_id)) as events:
        return [event.text async for event in events if isinstance(event, Note)]


@pytest.mark.parametrize("takes_tools", [True, False])
async def test_an_attached_text_is_searched_for_each_question_of_its_branch(tmp_path: Path, takes_tools: bool) -> None:
    client = ScriptedClient(said("Two."), said("Three."))
    chat = await _chat(tmp_path, client, ChatSettings(), takes_tools=takes_tools)
    assert await _ask_about_the_book(chat, "What is said of bicycles?") == []
    assert await _ask_about_the_book(chat, "What is said of barometers?") == []
    first, _, second, _ = chat.conversation.branch
    assert first.sources[0].label == "book.md (Chapter 2)"
    assert second.sources[0].label == "book.md (Chapter 3)"
    asked = client.requests[1]
    assert asked[0].content.startswith("book.md, ")
    assert "Of soup" not in "".join(turn.content for turn in asked)
    assert asked[-1].content.index("Of barometers") < asked[-1].content.index("What is said of barometers?")
    async with SqliteChatRepository(tmp_path) as repository:
        opened = await repository.open()
    assert opened.conversation.branch[0].attachments == (_BOOK,)
    assert opened.conversation.branch[2].sources == second.sources
    (entry,) = [each for each in chat.conversation.entries() if each.message.content == "Three."]
    assert entry.sources == second.sources


async def test_where_no_word_of_a_question_is_in_the_text_its_beginning_is_sent(tmp_path: Path) -> None:
    client = ScriptedClient(said("A book."), said("Again."))
    chat = await _chat(tmp_path, client, ChatSettings(), takes_tools=False)
    (note,) = await _ask_about_the_book(chat, "Summarize!")
    assert note == "No passage of book.md has a word of this question: the beginning is sent."
    assert await _ask_about_the_book(chat, "Rephrase!") == [], "it is said once"
    assert chat.conversation.branch[0].sources[0].heading == "Chapter 1"


async def test_a_text_and_the_folders_are_both_searched(tmp_path: Path) -> None:
    client = ScriptedClient(said("Three hours."))
    chat = await _chat(tmp_path, client, ChatSettings(tools=ON), takes_tools=False)
    await _ask_about_the_book(chat, "What of broth and soup?")
    assert [source.heading for source in chat.conversation.branch[0].sources] == ["Chapter 1", "Broth"]


@pytest.mark.slow
async def test_a_real_service_says_that_a_model_has_no_tools_and_has_the_passages_cached(tmp_path: Path) -> None:
    template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"
    model = tiny_llama(tmp_path / "tiny.gguf", lambda writer: writer.add_chat_template(template))
    _add_broth(tmp_path)
    settings = Settings(engine="fake", port=0, model=str(model), data_dir=tmp_path, cache_dir=tmp_path / "cache")
    async with (
        ServiceConnection(local_service(settings), settings.model) as connection,
        SqliteChatRepository(tmp_path) as repository,
    ):
        opened = OpenedChat(repository.new(), Conversation(ChatSettings(tools=ON)))
        chat = OpenChat(opened, connection, lambda: 0.0, lambda _: None, LazyTools(settings))
        try:
            chat.ask(MessageContent(content="How long does broth simmer? <say>Three hours [1].</say>"))
            await chat.wait()
            chat.answer_again()
            await chat.wait()
        finally:
            await chat.close()
    question, again = chat.conversation.branch
    assert [source.text for source in question.sources] == [BROTH]
    assert again.content == "Three hours [1]."
    assert again.stats["n_cached_tokens"] == again.stats["n_prompt_tokens"] - 1


async def test_calls_have_their_sources_below_the_answer_that_follows_them(tmp_path: Path) -> None:
    client = ScriptedClient(calling(call(1, "search_knowledge", query="broth simmer")), said("Three hours."))
    chat = await _chat(tmp_path, client, ChatSettings(tools=ON), takes_tools=True)
    await _ask(chat, "How long?")
    _, called, result, answered = chat.conversation.entries()
    assert result.message.result is not None
    assert [source.text for source in result.message.result.sources] == [BROTH]
    assert (called.sources, [source.label for source in answered.sources]) == ((), ["soup.md (Broth)"])


@given(st.lists(st.text(max_size=400), max_size=6), st.integers(0, 3000))
def test_passages_are_the_best_ones_and_fit(texts: list[str], n_tokens: int) -> None:
    sources = [Source("/a.md", text) for text in texts]
    kept = fitting(sources, n_tokens)
    assert list(kept) == sources[: len(kept)]
    assert not kept or estimated_tokens(compose_prompt("", (), kept)) <= n_tokens
    if len(kept) < len(sources):
        assert estimated_tokens(compose_prompt("", (), sources[: len(kept) + 1])) > n_tokens


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 20), st.integers(10, 95))
def test_passages_leave_room_for_what_follows(n_ctx: int, n_used: int, fill_percent: int) -> None:
    n_tokens = passage_tokens(n_ctx, n_used, fill_percent)
    assert n_tokens >= 0
    if n_ctx and n_tokens:
        assert n_used + n_tokens <= n_ctx * fill_percent // 100
        assert n_tokens <= n_ctx // 4
