"""What `truncation: "auto"` does: the oldest turns leave a conversation that is longer than the context.

Owns which messages leave. Independent of the engine, which says by how much a prompt is too long.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.protocol.chat import Message
from app.protocol.errors import ContextOverflowError

_SHARE = 0.75  # of the context, so that the answer has room and the next turns do not cut again
_MESSAGE_CHARACTERS = 48  # what a template adds to a message, at least


def without_oldest(messages: Sequence[Message], overflow: ContextOverflowError) -> list[Message]:
    """Return `messages` with the system's and the newest turns of the others, each of which begins with the user.

    The number of tokens is estimated by length, so the result may be too long again, but it is shorter.
    Raises `overflow` where no turn can leave.
    """
    n_system = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    starts = [index for index in range(n_system + 1, len(messages)) if messages[index].role == "user"]
    if not starts:
        raise overflow
    lengths = [
        len(message.content)
        + len(message.reasoning)
        + sum(len(call.name) + len(call.arguments) for call in message.calls)
        + _MESSAGE_CHARACTERS
        for message in messages
    ]
    most = _SHARE * overflow.n_ctx * sum(lengths) / max(1, overflow.n_prompt_tokens)
    start = next((start for start in starts if sum(lengths[:n_system]) + sum(lengths[start:]) <= most), starts[-1])
    return [*messages[:n_system], *messages[start:]]
