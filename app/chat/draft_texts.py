"""The texts of files that a chat read, which the engine keeps to draft later answers in the same folder.

Owns which texts those are, which chats keep any (those with a folder, and never a private one), and that a chat goes on
where they cannot be kept: they only make answers faster.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.conversation import Message
from app.common.event_log import log_event
from app.tools.tool import ToolOutcome
from quantizer.system.errors import UserError

if TYPE_CHECKING:
    from app.chat.state import ChatState

LEAST_CHARACTERS = 200  # shorter texts hold no draft that pays for looking at them
# Server and tool whose results are the text of a file. What other tools return is no file of the folder.
READING_TOOLS = frozenset({("files", "read_file")})
_TIMEOUT_S = 5.0  # the answer is there already


def corpus_of(folders: Sequence[str]) -> str:
    """Return what requests call the texts of a project, "" where there is none: that of the first of `folders`, which
    are those of a chat's tools, else that of the folder in which this was started. Its path stays here."""
    try:
        folder = folders[0] if folders else str(Path.cwd())
    except OSError:  # it was removed
        return ""
    return hashlib.blake2b(folder.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def file_texts(branch: Sequence[Message]) -> Iterator[str]:
    """Yield the texts of a branch's files in order: what was attached, and what tools read."""
    for message in branch:
        for attachment in message.attachments:
            if len(attachment.content) >= LEAST_CHARACTERS:
                yield attachment.content
        result = message.result
        if result is not None and (result.server, result.tool) in READING_TOOLS and result.outcome is ToolOutcome.DONE:
            # A part of a file has a line before it that says which.
            head, _, rest = message.content.partition("\n")
            text = rest if head.startswith("[") and head.endswith("]") else message.content
            if len(text) >= LEAST_CHARACTERS:
                yield text


async def keep_file_texts(chat: ChatState) -> None:
    """Let the engine keep the texts of the shown branch that it was not told of yet, after an answer. A failure is
    logged, and those texts are not sent again."""
    corpus = chat.draft_corpus
    if not corpus:
        return
    texts = [text for text in file_texts(chat.conversation.branch) if (corpus, hash(text)) not in chat.kept_texts]
    if not texts:
        return
    chat.kept_texts.update((corpus, hash(text)) for text in texts)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            client = await chat.client()
            await client.keep_draft_texts(corpus, texts, chat.stored.prompt_cache_key)
    except (UserError, TimeoutError) as error:
        log_event("app", f"Texts of files were not kept for drafts: {error or 'the engine did not answer in time.'}")
