"""OpenAI's API, as its reference and its SDK (Python 3.54) have it: /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.conformance.row import ABSENT, MODEL, Ask, Row

_CHAT, _TEXT, _EMBED = "POST /v1/chat/completions", "POST /v1/completions", "POST /v1/embeddings"
_USER = {"role": "user", "content": "hello"}
_HELLO: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "messages": [_USER]}
_PROMPT: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "prompt": "hello"}
_CALL_TWICE = (
    '<say><tool_call>\n{"name": "look", "arguments": {"at": "a"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {"at": "b"}}\n</tool_call></say>'
)
_LOOK = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
_CALLING: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 200,
    "messages": [{"role": "user", "content": _CALL_TWICE}],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": _LOOK}}],
}
_NAMELESS = {"type": "function", "function": {}}
_NAMED = {"type": "function", "function": {"name": "look"}}
_CHATS, _TEXTS = "API reference, Create chat completion", "API reference, Create completion"
_FINGERPRINT = re.compile(r"^\S+$")


def _faults() -> Iterator[Row]:
    """Yield a row for each fault that clients show by `param` and `message`."""
    faults: tuple[tuple[str, str, dict[str, Any], str, str], ...] = (
        ("too many inputs", _EMBED, {"model": MODEL, "input": ["x"] * 3000}, "input", "2048 items"),
        ("an input of numbers and texts", _EMBED, {"model": MODEL, "input": ["a", 5]}, "input[1]", "valid string"),
        ("an unknown role", _CHAT, {**_HELLO, "messages": [{**_USER, "role": "bot"}]}, "messages[0].role", "assistant"),
        (
            "a part without text",
            _CHAT,
            {**_HELLO, "messages": [{**_USER, "content": 5}]},
            "messages[0].content",
            "list",
        ),
        ("no messages", _CHAT, {"model": MODEL}, "messages", "required"),
        ("too hot", _CHAT, {**_HELLO, "temperature": 1e6}, "temperature", "temperature"),
        ("too many answers", _CHAT, {**_HELLO, "n": 1000}, "n", "1000"),
        ("alternatives without probabilities", _CHAT, {**_HELLO, "top_logprobs": 2}, "top_logprobs", "logprobs"),
        (
            "a choice without a name",
            _CHAT,
            {**_CALLING, "tool_choice": {**_NAMED, "function": {}}},
            "tool_choice.function.name",
            "required",
        ),
        ("an unknown choice", _CHAT, {**_CALLING, "tool_choice": "always"}, "tool_choice", "always"),
    )
    for name, path, body, param, words in faults:
        yield Row(
            name=f"the error of {name} names the field",
            ask=Ask(path, body),
            source="guide, Error codes: the error object has message, type, param and code",
            status=400,
            holds={
                "error.param": param,
                "error.message": re.compile(re.escape(words)),
                "error.type": "invalid_request_error",
            },
        )


def _zstd(data: bytes) -> bytes:
    """Return `data`, of at most 255 bytes, as a frame with one raw block (source: RFC 8878, section 3.1.1)."""
    return b"\x28\xb5\x2f\xfd\x20" + bytes([len(data)]) + (len(data) << 3 | 1).to_bytes(3, "little") + data


ROWS: tuple[Row, ...] = (
    Row(
        name="a request compressed with zstd",
        ask=Ask(
            _CHAT,
            _zstd(b'{"model": "default", "max_tokens": 6, "messages": [{"role": "user", "content": "hello"}]}'),
            {"Content-Type": "application/json", "Content-Encoding": "zstd"},
        ),
        source="Codex sends such requests to OpenAI where its feature for them is on",
        holds={"choices.0.message.role": "assistant"},
        otherwise="A request compressed with zstd is a 415",
        our_status=415,
        ours={"error.message": str},
    ),
    Row(
        name="a chat has the fingerprint of the system",
        ask=Ask(_CHAT, _HELLO),
        source=_CHATS,
        holds={"system_fingerprint": _FINGERPRINT, "choices.0.message.role": "assistant"},
    ),
    Row(
        name="each chunk of a chat has the fingerprint of the system",
        ask=Ask(_CHAT, {**_HELLO, "stream": True}),
        source=_CHATS,
        holds={"0.system_fingerprint": _FINGERPRINT, "-1.system_fingerprint": _FINGERPRINT},
    ),
    Row(
        name="a completion has the fingerprint of the system",
        ask=Ask(_TEXT, _PROMPT),
        source=_TEXTS,
        holds={"system_fingerprint": _FINGERPRINT},
    ),
    Row(
        name="logprobs 0 has the chosen tokens",
        ask=Ask(_TEXT, {**_PROMPT, "logprobs": 0}),
        source=f"{_TEXTS}: always the logprob of the sampled token, so up to logprobs+1 elements",
        holds={"choices.0.logprobs.top_logprobs.*": lambda found: found and all(len(each) == 1 for each in found)},
    ),
    Row(
        name="an unlikely token is among its alternatives",
        ask=Ask(_TEXT, {**_PROMPT, "logprobs": 1, "temperature": 2, "seed": 3}),
        source=f"{_TEXTS}: always the logprob of the sampled token, so up to logprobs+1 elements",
        holds={
            "choices.0.logprobs": lambda found: all(
                found["token_logprobs"][index] == alternatives[token]
                for index, (token, alternatives) in enumerate(zip(found["tokens"], found["top_logprobs"], strict=True))
            )
        },
    ),
    *(
        Row(
            name=f"a named tool is called once, parallel_tool_calls {is_parallel}",
            ask=Ask(_CHAT, {**_CALLING, "tool_choice": _NAMED, "parallel_tool_calls": is_parallel}),
            source="guide, Function calling: forced function, call exactly one specific function",
            scripted=True,
            holds={"choices.0.message.tool_calls.0.function.name": "look", "choices.0.message.tool_calls.1": ABSENT},
        )
        for is_parallel in (None, True, False)
    ),
    *_faults(),
)
