"""Where the prompts of other turns and chats may leave a prompt: places at which a model with states should save them.

Owns which messages those are: the first of the user, before which chats share a system prompt and tools, and the last,
which is edited or answered again. Independent of templates, which are only asked to render.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from app.protocol.errors import RequestError
from app.service.pool.background import common_prefix

_OTHER_WORDS = ("A", "B")


async def branches_of(
    prompt: str,
    messages: Sequence[Mapping[str, Any]],
    render: Callable[[Sequence[dict[str, Any]]], Awaitable[str]],
) -> tuple[int, ...]:
    """Return the ends, in characters of `prompt`, of what it shares with prompts that differ from a message on.

    A template may print its last messages otherwise, or refuse fewer of them: what is shared is then shorter, or the
    place is left out.
    """
    of_user = [index for index, message in enumerate(messages) if message["role"] == "user"]
    ends: set[int] = set()
    for index in {*of_user[:1], *of_user[-1:]}:
        said = messages[index].get("content")
        word = next(word for word in _OTHER_WORDS if not str(said).lstrip().startswith(word))
        try:
            other = await render([*map(dict, messages[:index]), {**messages[index], "content": word}])
        except RequestError:
            continue
        ends.add(len(common_prefix(prompt, other)))
    return tuple(sorted(ends - {0}))
