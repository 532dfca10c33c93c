"""The messages of a conversation as one chat template wants them: earlier reasoning, calls and results.

Owns under which name reasoning goes into a template, and the order that those of GPT-OSS and Llama 3 assume.
Independent of dialects, which give reasoning as `reasoning_content` in a message of the assistant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from app.common.answer_text import HARMONY

REASONING = "reasoning_content"
Message = dict[str, Any]

# The names of reasoning in a message; the first that a template reads counts (source: the templates of Qwen3, GLM 4.5,
# MiniMax M2, Kimi K2; of GPT-OSS, LFM2.5; of Solar Open).
_NAMES = (REASONING, "thinking", "reasoning")
_IN_PARTS = re.compile(r"""\[['"]type['"]\]\s*==\s*['"]thinking['"]""")  # Ministral 3, Magistral
# Templates that print one call of a message, and refuse or lose others: Llama 3.1 to 3.3, GigaChat 3.
_FIRST_CALL = re.compile(r"""tool_calls(?:['"]\])?\[0\]""")
_ALL_CALLS = re.compile(r"""\bin [\w.\[\]'"]*tool_calls""")
_PARAGRAPH_BREAK = "\n\n"


def messages_for(chat_template: str, messages: Iterable[Message]) -> list[Message]:
    """Return `messages` as `chat_template` reads them; reasoning that it does not read is left out."""
    if HARMONY.opens_in(chat_template):
        return _harmony([_with_reasoning(message, "thinking") for message in messages])
    if _FIRST_CALL.search(chat_template) and not _ALL_CALLS.search(chat_template):
        messages = _with_single_calls(list(messages))
    if _IN_PARTS.search(chat_template) and not _reads(REASONING, chat_template):
        return [_with_parts(message) for message in messages]
    name = next((name for name in _NAMES if _reads(name, chat_template)), "")
    return [_with_reasoning(message, name) for message in messages]


def _reads(name: str, chat_template: str) -> bool:
    return re.search(rf"""(?:\.|['"]){name}\b""", chat_template) is not None


def _with_reasoning(message: Message, name: str) -> Message:
    """Return `message` with its reasoning, if any, under `name`; without it where that is empty."""
    others = {key: value for key, value in message.items() if key != REASONING}
    reasoning = message.get(REASONING)
    return {**others, name: reasoning} if name and reasoning else others


def _with_parts(message: Message) -> Message:
    """Return `message` with its reasoning as a part of the content."""
    others = _with_reasoning(message, "")
    if not message.get(REASONING):
        return others
    parts = [{"type": "thinking", "thinking": message[REASONING]}]
    if message["content"]:
        parts.append({"type": "text", "text": message["content"]})
    return {**others, "content": parts}


def _with_single_calls(messages: Sequence[Message]) -> list[Message]:
    """Return `messages` with one call in each, followed by its result."""
    ordered, rest = [], list(messages)
    while rest:
        message = rest.pop(0)
        if len(message.get("tool_calls", ())) < 2:
            ordered.append(message)
            continue
        n_results = next((i for i, other in enumerate(rest) if other["role"] != "tool"), len(rest))
        first, *others = _paired(message, rest[:n_results])
        ordered += [{**message, "tool_calls": first["tool_calls"]}, *others]
        rest = rest[n_results:]
    return ordered


def _harmony(messages: Sequence[Message]) -> list[Message]:
    """Return `messages` with one system message, first, and each call in a message before its result.

    The template drops other system messages and all calls of a message but the first, and refuses a message that has
    text, reasoning and a call.
    """
    n_first = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    texts = [message["content"] for message in messages[:n_first] if message["content"]]
    ordered: list[Message] = [{"role": "system", "content": _PARAGRAPH_BREAK.join(texts)}] if texts else []
    rest = list(messages[n_first:])
    while rest:
        message = rest.pop(0)
        if message["role"] == "system":
            ordered.append({**message, "role": "user"})
        elif "tool_calls" in message:
            n_results = next((i for i, other in enumerate(rest) if other["role"] != "tool"), len(rest))
            ordered += _one_by_one(message, rest[:n_results])
            rest = rest[n_results:]
        else:
            ordered.append(message)
    return ordered


def _one_by_one(message: Message, results: Sequence[Message]) -> list[Message]:
    """Return each call of `message` with its result, and all that was thought and said with the first."""
    thoughts = _PARAGRAPH_BREAK.join(filter(None, (message.get("thinking"), message["content"])))
    first, *others = _paired(message, results)
    return [{**first, "thinking": thoughts} if thoughts else first, *others]


def _paired(message: Message, results: Sequence[Message]) -> list[Message]:
    """Return each call of `message` with its result, found by its id, or else the next one."""
    left, ordered = list(results), []
    for call in message["tool_calls"]:
        ordered.append({"role": "assistant", "content": None, "tool_calls": [call]})
        named = [result for result in left if result.get("tool_call_id") and result["tool_call_id"] == call["id"]]
        for result in (named or left)[:1]:
            left.remove(result)
            ordered.append(result)
    return [*ordered, *left]
