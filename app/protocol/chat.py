"""The values of a chat: messages, generation options, streamed text and calls, and an answer's end with its cost.

Owns these values, and reading the last one from OpenAI's `usage` and llama.cpp's `timings`. Independent of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from app.protocol.tools import ToolCall, ToolCallDelta, ToolDefinition


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A picture or sound of a message: the MIME type of its file (image/png, audio/wav), and the file in Base64."""

    mime_type: str
    base64: str

    @property
    def is_sound(self) -> bool:
        return self.mime_type.startswith("audio/")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; its pictures and sounds come before its text.

    An answer may have `calls`, and the `reasoning` that led to them. A turn of role "tool" is the result of the call
    `call_id` of the tool `name`.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    media: tuple[MediaPart, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """The options of an answer; None uses the default of the service and the model.

    With `continue_final_message` (vLLM's name) the answer continues the last message, if that is an answer.
    `prompt_cache_key` names the conversation that what is cached belongs to; with the `prompt_cache_retention`
    "in_memory" none of it reaches the disk (OpenAI's names). `json_schema` is the form of the answer. `samplers` are
    more options of `app.protocol.sampling`, by their names over HTTP. `think` says how much to think before the answer:
    "off", an effort, or the most tokens of a thought. The answer may call `tools`.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    json_schema: Mapping[str, Any] | None = None
    think: str | None = None
    samplers: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory"] | None = None
    tools: tuple[ToolDefinition, ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of the running answer, as the model wrote it: not yet safe for a terminal.

    `n_tokens` counts the answer's tokens so far, with its reasoning; a verified draft adds many at once. `reasoning`
    precedes the text. `response_id` names the answer where it came from.
    """

    text: str
    n_tokens: int
    reasoning: str = ""
    response_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The end of an answer and its cost. Rates are tokens a second.

    `tokens_per_pass` is above 1 where draft tokens were accepted; `saved_s` estimates the time that they saved.
    Reasoning that its budget or the user ended had `n_cut_reasoning_tokens` by then, 0 if it ended by itself.
    """

    finish_reason: str
    n_prompt_tokens: int
    n_cached_tokens: int
    n_output_tokens: int
    time_to_first_token_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    n_drafted_tokens: int = 0
    n_accepted_tokens: int = 0
    tokens_per_pass: float = 1.0
    saved_s: float = 0.0
    n_cut_reasoning_tokens: int = 0


AnswerEvent: TypeAlias = TextDelta | ToolCallDelta | Completed
"""What an answer is made of while it streams; `Completed` is the last."""


def completed_of(reason: str, usage: dict[str, Any], timings: dict[str, Any]) -> Completed:
    """Return the end of an answer from the last of OpenAI's `usage` and llama.cpp's `timings`."""
    details = usage.get("prompt_tokens_details") or {}
    return Completed(
        finish_reason=reason,
        n_prompt_tokens=usage.get("prompt_tokens", 0),
        n_cached_tokens=details.get("cached_tokens", 0),
        n_output_tokens=usage.get("completion_tokens", 0),
        time_to_first_token_s=timings.get("time_to_first_token_ms", 0.0) / 1000,
        prefill_tokens_per_s=timings.get("prompt_per_second", 0.0),
        decode_tokens_per_s=timings.get("predicted_per_second", 0.0),
        n_drafted_tokens=timings.get("draft_n", 0),
        n_accepted_tokens=timings.get("draft_n_accepted", 0),
        tokens_per_pass=timings.get("tokens_per_pass", 1.0),
        saved_s=timings.get("draft_saved_ms", 0.0) / 1000,
        n_cut_reasoning_tokens=timings.get("reasoning_cut_n", 0),
    )
