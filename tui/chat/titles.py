"""A title for a chat, from the model that answered in it, while nothing else is to be done.

Owns when a model is asked for one, in which words, and what of its answer is a title. Where a title is kept it does not
know.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from app.chat.conversation import Message, MessageState
from app.chat.text import provisional_title
from app.terminal import printable_line
from tui.chat.conversation import Role

if TYPE_CHECKING:
    from app.client import ModelStatus
    from tui.backend import ChatBackend

__all__ = ["generate_title", "is_idle", "needs_title", "parse_title"]

_REQUEST = "Give this conversation a title of two to six words. Answer with the title alone."
_MAX_TOKENS = 32
_GUIDE = "guide"  # answers questions about localllm, and does nothing else it is told
_AROUND = " \t#*_`\"'“”‘’«»."


def needs_title(branch: Sequence[Message]) -> bool:
    """Return whether this is the moment for a title: the first answer is there, whole, and nothing follows it."""
    if [message.role for message in branch] != ["user", "assistant"]:
        return False
    return branch[1].state is MessageState.FINISHED and bool(branch[1].content)


def is_idle(model: ModelStatus | None) -> bool:
    """Return whether `model` is one that can find titles, and known to have nothing else to do."""
    if model is None or model.id == _GUIDE or model.occupancy is None:
        return False
    return model.occupancy.n_running == model.occupancy.n_waiting == 0


async def generate_title(client: ChatBackend, model: str, turns: Sequence[tuple[Role, str]]) -> str:
    """Return a title for `turns`; an empty text where the model is busy or says none. Cancelling it stops the model.
    Raises the UserError that ended it."""
    from app.client import GenerationOptions, TextDelta
    from app.client import Message as Turn

    if not is_idle((await client.status()).model(model)):
        return ""
    messages = [*(Turn(role, content) for role, content in turns), Turn("user", _REQUEST)]
    options = GenerationOptions(temperature=0.0, max_tokens=_MAX_TOKENS)
    async with aclosing(client.chat(messages, model=model, options=options)) as events:
        said = [event.text async for event in events if isinstance(event, TextDelta)]
    return parse_title("".join(said))


def parse_title(answer: str) -> str:
    """Return the title in what a model said: its first line of words, without marks around it, cut as titles are."""
    lines = (printable_line(line).strip(_AROUND) for line in answer.splitlines())
    line = next(filter(None, lines), "")
    label, colon, rest = line.partition(":")
    title = rest if colon and label.strip(_AROUND).casefold() == "title" else line
    return provisional_title(title.strip(_AROUND))
