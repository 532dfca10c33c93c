from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.protocol.errors import RequestError
from app.service.generation.branches import branches_of

SYSTEM, FIRST, ANSWER, LAST = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "A fox?"},
    {"role": "assistant", "content": "Red."},
    {"role": "user", "content": "And a wolf?"},
)


async def render(messages: Sequence[dict[str, Any]]) -> str:
    return "".join(f"<{message['role']}>{message['content']}\n" for message in messages) + "<assistant>"


async def test_other_prompts_leave_before_the_first_and_the_last_message_of_the_user() -> None:
    messages = [SYSTEM, FIRST, ANSWER, LAST]
    prompt = await render(messages)
    assert [prompt[:end] for end in await branches_of(prompt, messages, render)] == [
        "<system>Be brief.\n<user>",
        "<system>Be brief.\n<user>A fox?\n<assistant>Red.\n<user>",
    ]


async def test_the_only_message_is_left_before_its_text() -> None:
    assert await branches_of("<user>A fox?\n<assistant>", [FIRST], render) == (len("<user>"),)


async def test_a_message_without_text_or_user_has_no_branch_of_its_own() -> None:
    assert await branches_of("<assistant>Red.\n<assistant>", [ANSWER], render) == ()
    assert await branches_of("", [], render) == ()


async def test_a_place_where_the_template_refuses_fewer_messages_is_left_out() -> None:
    async def strict(messages: Sequence[dict[str, Any]]) -> str:
        if len(messages) < 4:
            raise RequestError("too few", "send more")
        return await render(messages)

    messages = [SYSTEM, FIRST, ANSWER, LAST]
    assert len(await branches_of(await render(messages), messages, strict)) == 1


async def test_what_a_template_prints_otherwise_shortens_the_branch() -> None:
    async def counting(messages: Sequence[dict[str, Any]]) -> str:
        return f"{len(messages)} " + await render(messages)

    messages = [SYSTEM, FIRST, ANSWER, LAST]
    ends = await branches_of(await counting(messages), messages, counting)
    assert len(ends) == 1
