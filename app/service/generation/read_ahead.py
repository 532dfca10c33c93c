"""What is certain of a question before it is asked: the request that computes it.

A client sends the messages as it would ask them, of which the last is as far as it is written. What the template makes
of two different continuations of that, the prompt of every question has that goes on so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.common.common_prefix import n_common_prefix
from app.engine.request import Request
from app.protocol.chat import Message
from app.protocol.errors import RequestError
from app.service.generation.chat import ChatTurn, branches_of
from app.service.generation.prompt import write_prompt
from app.service.models.served_model import ServedModel
from app.service.pool.background import ANY_TWO_WORDS, prefill_request


async def read_ahead_request(model: ServedModel, turn: ChatTurn) -> Request | None:
    """Return the request that computes what the prompt of `turn` begins with however its last message, the user's,
    continues; None if that is nothing. Raises RequestError where the template refuses the messages, and for another
    last message."""
    model = model.for_chat(has_tools=bool(turn.tools.tools))
    *before, begun = turn.messages
    if begun.role != "user":
        raise RequestError("The last message is not the user's.", "Send the beginning of a question, or an empty one.")

    async def write(messages: Sequence[Message]) -> str:
        return (await write_prompt(model, messages, turn.tools, turn.thinking))[0]

    continued = [[*before, replace(begun, content=begun.content + word)] for word in ANY_TWO_WORDS]
    text, quoted = await write_prompt(model, continued[0], turn.tools, turn.thinking)
    n_same = n_common_prefix(text, await write(continued[1]))
    if not n_same:
        return None
    facts = model.engine.status.facts
    branches: tuple[int, ...] = ()
    if facts is not None and not facts.truncation.is_unlimited:
        branches = await branches_of(text, continued[0], write)
    bos_token, prefix = model.file.bos_token, text[:n_same]
    return replace(
        prefill_request(
            replace(turn.request, media=await turn.media.inputs(prefix)),
            prefix,
            tuple((begin, min(end, n_same)) for begin, end in quoted if begin < n_same),
        ),
        add_special=not (bos_token and text.startswith(bos_token)),
        branches=tuple(sorted({min(place, n_same) for place in branches})),
    )
