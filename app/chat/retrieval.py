"""Passages for a question, found before it is asked: of attached texts that are searched instead of read whole, and of
the person's folders for models that call no tools.

Owns how many tokens of the context the passages may take, and what is said about a search. The search of the folders is
the tool's, with its rules; whether a chat does this is `ChatState.searches_first`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from app.chat.attachments.prompt import compose_prompt
from app.chat.compaction import ContextBudget, estimated_tokens
from app.chat.conversation import Attachment, Message, searched_texts
from app.chat.events import Changed, Events, Note
from app.chat.state import ChatState
from app.common.terminal import printable_line
from app.protocol.chat import Source, ToolCall
from app.tools.backend import CallRequest
from app.tools.builtin.knowledge import DETAIL_SEPARATOR, MAX_QUERY_CHARACTERS, SEARCH_KNOWLEDGE
from app.tools.tool import ToolOutcome

_MOST_PASSAGES = 5  # of some 250 tokens each; recall@5 is what the search was tuned for
_CONTEXT_SHARE = 4  # at most a quarter of it, as the result of a call
_ROOM_SHARE = 2  # and at most half of what a prompt may still fill: the next questions want room too
_LEAST_CTX = 2048  # where an engine does not say how long its context is
_NOTHING = "No passage of your folders fits this question: it is asked without."
_NO_ROOM = "The context has no room for a passage: the question is asked without. /compact makes room."


def passage_tokens(n_ctx: int, n_used: int, fill_percent: int) -> int:
    """Return how many tokens passages may take in a context of `n_ctx` (0: unknown) of which `n_used` are taken."""
    budget = ContextBudget(n_ctx=n_ctx or max(_LEAST_CTX, 2 * n_used), fill_percent=fill_percent)
    return max(0, min(budget.n_ctx // _CONTEXT_SHARE, (budget.n_full - n_used) // _ROOM_SHARE))


def fitting(sources: Sequence[Source], n_tokens: int) -> tuple[Source, ...]:
    """Return the first passages that have at most `n_tokens` as a question is sent with them."""
    n_fitting = len(sources)
    while n_fitting and estimated_tokens(compose_prompt("", (), sources[:n_fitting])) > n_tokens:
        n_fitting -= 1
    return tuple(sources[:n_fitting])


async def find_passages(chat: ChatState, question: Message) -> Events:
    """Search what is to be searched for `question`, and store what is sent with it. Yields a note where it is asked
    without passages; why nothing was searched, and what the search had to do without, once. Raises StorageError."""
    path = chat.conversation.path(question.id)
    texts = searched_texts(path)
    if not (texts or chat.searches_first):
        return

    from app.knowledge.search import searched_words  # few chats need it

    found: list[Source] = []
    words = searched_words([message.content for message in path if message.role == "user"])
    if texts:
        async with aclosing(_in_texts(chat, texts, words, found)) as events:
            async for event in events:
                yield event
    if chat.searches_first:
        async with aclosing(_in_folders(chat, words, found)) as events:
            async for event in events:
                yield event
    if not found:
        return
    n_used = chat.context_size(question.id).n_tokens
    n_tokens = passage_tokens(chat.connection.state.n_ctx, n_used, chat.compaction().fill_percent)
    if sources := fitting(found, n_tokens):
        await chat.stored.write_sources(question.id, sources)
        chat.conversation.messages[question.id] = replace(question, sources=sources)
        yield Changed()
    else:
        yield Note(_NO_ROOM)


async def _in_texts(chat: ChatState, texts: tuple[Attachment, ...], question: str, found: list[Source]) -> Events:
    """Add the passages of `texts` to `found`; their beginnings where no passage fits, as for "summarize it"."""
    from app.knowledge.texts import TextIndex  # few chats need it

    if chat.text_index is None or chat.text_index.texts != texts:
        chat.text_index = TextIndex(texts)
    index = chat.text_index
    passages = await asyncio.to_thread(index.search, question, _MOST_PASSAGES)
    if not passages:
        passages = await asyncio.to_thread(index.beginning, _MOST_PASSAGES)
        names = " and ".join(printable_line(text.name) for text in texts)
        for sentence in chat.new_sentences(
            f"No passage of {names} has a word of this question: the beginning is sent."
        ):
            yield Note(sentence)
    found += passages


async def _in_folders(chat: ChatState, question: str, found: list[Source]) -> Events:
    """Add the passages of the person's folders to `found`."""
    query = question.strip()[:MAX_QUERY_CHARACTERS]
    if chat.tools is None or not query:
        return
    arguments = json.dumps({"query": query, "max_results": _MOST_PASSAGES})
    call = ToolCall("", SEARCH_KNOWLEDGE.definition.name, arguments)
    finished = await chat.tools.run(CallRequest(call, chat.conversation.settings.tools, chat.approvals))
    if finished.result.outcome is not ToolOutcome.DONE:
        for sentence in chat.new_sentences(
            f"Your folders were not searched, questions are asked without: {finished.text}"
        ):
            yield Note(sentence)
        return
    found += finished.result.sources
    if not finished.result.sources:
        yield Note(_NOTHING)
    _, _, missing = finished.result.detail.partition(DETAIL_SEPARATOR)
    for sentence in chat.new_sentences(missing):
        yield Note(sentence)
