"""A conversation replaced by a summary, for clients that ask for it: how the model is asked, and how it reads it.

The chat of this project compacts by itself (`app/chat/compaction.py`), by figures that only a client knows.
"""

from __future__ import annotations

from dataclasses import replace

from app.protocol.chat import Message
from app.protocol.errors import RequestError, ServiceError
from app.service.generation.chat import ChatTurn, chat_generation
from app.service.generation.generation import Answer
from app.service.models.served_model import ServedModel
from app.service.tools.parser import NO_TOOLS

_MOST_TOKENS = 2048  # of a summary, where a client sets no limit

_ASK = (
    "Summarise our conversation so far. Your summary will take the place of these messages, so that the conversation "
    "can go on without them. Keep what was asked, what was decided and why, names, numbers, paths and code that are "
    "still needed, what has been done and what is left to do. Write in the language of the conversation, the summary "
    "alone without an introduction."
)
_READ = (
    "Earlier messages of this conversation are left out. This is a summary of them:\n\n{summary}\n\nThe summary ends."
)


def summary_message(summary: str) -> Message:
    """Return what the model reads in place of the messages that `summary` replaces."""
    return Message("user", _READ.format(summary=summary))


class NothingToSummarizeError(RequestError):
    """A conversation has no messages that a summary could replace."""


def compaction_turn(turn: ChatTurn, instructions: str = "") -> ChatTurn:
    """Return the turn whose answer is the summary of the messages of `turn`, as `instructions` say if they are given.
    Tools are left out, so that it is no call. Raises NothingToSummarizeError."""
    if all(message.role == "system" for message in turn.messages):
        raise NothingToSummarizeError("The conversation has no messages to summarise.", "Send the messages.")
    asked = Message("user", instructions.strip() or _ASK)
    request = turn.request
    if request.max_tokens is None:
        request = replace(request, max_tokens=_MOST_TOKENS)
    return replace(
        turn, messages=[*turn.messages, asked], request=request, tools=NO_TOOLS, answer_format=None, continues=False
    )


async def summary_of(model: ServedModel, turn: ChatTurn) -> Answer:
    """Return the answer to a turn of `compaction_turn`, whose text is the summary. Raises ServiceError without one."""
    (answer,) = await (await chat_generation(model, turn)).answers(model)
    if not answer.text.strip():
        raise ServiceError("The model wrote no summary.", "Ask again, or with a larger limit of tokens.")
    return answer
