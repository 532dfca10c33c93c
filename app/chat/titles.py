"""Titles of chats: when a chat gets a generated one, the request for it, and what of the answer is taken.

Owns the words of the request. Which chat has which title is stored by `app.chat.session`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from app.chat.backend import ChatBackend
from app.chat.conversation import Message, MessageState, provisional_title
from app.chat.stream import with_cache_key
from app.common.terminal import printable_line
from app.protocol.chat import AnswerDelta, GenerationOptions, Tool
from app.protocol.chat import Message as ChatMessage

if TYPE_CHECKING:
    from app.protocol.status import ModelStatus


_REQUEST = "Give this conversation a title of two to six words. Answer with the title alone."
_MAX_TOKENS = 32
_GUIDE = "guide"  # only answers questions about localllm
_TRIMMED = " \t#*_`\"'“”‘’«»."


def needs_title(branch: Sequence[Message]) -> bool:
    """Return whether the chat has exactly one question and its finished answer, with whatever that called."""
    if not branch or [message.role for message in branch].count("user") != 1 or branch[0].role != "user":
        return False
    answer = branch[-1]
    is_answered = answer.role == "assistant" and not answer.calls
    return is_answered and answer.state is MessageState.FINISHED and bool(answer.content)


def is_idle(model: ModelStatus | None) -> bool:
    """Return whether `model` can generate titles and has no other requests."""
    if model is None or model.id == _GUIDE or model.occupancy is None:
        return False
    return model.occupancy.n_running == model.occupancy.n_waiting == 0


async def generate_title(
    client: ChatBackend,
    model: str,
    turns: Sequence[ChatMessage],
    prompt_cache_key: str | None = "",
    tools: Sequence[Tool] = (),
) -> str:
    """Return a title for `turns`, "" if the model is busy or returns none. Cancelling stops it. Raises UserError.

    The same `tools` as for the answer keep the prompt the same, which is cached; a call is no title.
    """
    if not is_idle((await client.status()).model(model)):
        return ""
    messages = [*turns, ChatMessage("user", _REQUEST)]
    options = GenerationOptions(temperature=0.0, max_tokens=_MAX_TOKENS, tools=tuple(tools))
    options = with_cache_key(options, prompt_cache_key)
    async with aclosing(client.chat(messages, model=model, options=options)) as events:
        parts = [event.text async for event in events if isinstance(event, AnswerDelta)]
    return parse_title("".join(parts))


def parse_title(answer: str) -> str:
    """Return the title in a model's response: its first line of words without quotes or markup, shortened."""
    lines = (printable_line(line).strip(_TRIMMED) for line in answer.splitlines())
    line = next(filter(None, lines), "")
    label, colon, rest = line.partition(":")
    title = rest if colon and label.strip(_TRIMMED).casefold() == "title" else line
    return provisional_title(title.strip(_TRIMMED))
