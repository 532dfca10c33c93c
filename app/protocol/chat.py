"""The values of a chat from a client to a template and back: messages, tools and their calls, options, the answer.

Declared once and used by clients, the service and the chat; each dialect of the API converts its own bodies to and from
these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal, TypeAlias

# A request with this header and value yields to every other one: nobody waits for its answer.
PRIORITY_HEADER, BATCH = "x-localllm-priority", "batch"

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function as a model sees it; empty `parameters` (a JSON schema) allow any object of arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in an answer; `arguments` is the JSON text as the model wrote it, not yet safe for a terminal."""

    call_id: str
    name: str
    arguments: str = ""

    def arguments_object(self) -> dict[str, Any] | None:
        """Return the arguments, None for those that were cut off or are no object."""
        try:
            value = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The new part of call `index`: the first has its id and name, the later ones only pieces of its JSON."""

    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


def joined_deltas(deltas: Iterable[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """Return `deltas` with those of one call as one, in the order in which the calls began."""
    joined: dict[int, ToolCallDelta] = {}
    for delta in deltas:
        begun = joined.get(delta.index)
        joined[delta.index] = replace(begun, arguments=begun.arguments + delta.arguments) if begun else delta
    return tuple(joined.values())


def with_deltas(calls: tuple[ToolCall, ...], deltas: Iterable[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """Return the calls of a running answer with their new parts. Raises IndexError for a part that leaves a gap."""
    for delta in deltas:
        if delta.index == len(calls):
            calls = (*calls, ToolCall(delta.call_id, delta.name, delta.arguments))
        else:
            call = calls[delta.index]
            changed = replace(call, arguments=call.arguments + delta.arguments)
            calls = (*calls[: delta.index], changed, *calls[delta.index + 1 :])
    return calls


@dataclass(frozen=True, slots=True)
class Source:
    """A passage that a model was given: `text`, of the person's documents the characters from `begin` to `end` of what
    was read of the file at `path`, the page that it begins on (None without pages), and the headings above it. Of the
    web `path` is an address, and `heading` a title. Not yet safe for a terminal."""

    path: str
    text: str
    begin: int = 0
    end: int = 0
    page: int | None = None
    heading: str = ""

    @property
    def is_web(self) -> bool:
        return self.path.startswith(("http://", "https://"))

    @property
    def place(self) -> str:
        """Where it is from: "/home/me/soup.pdf, page 3 (Methods > Broth)"."""
        page = "" if self.page is None else f", page {self.page}"
        return f"{self.path}{page}{f' ({self.heading})' if self.heading else ''}"

    @property
    def label(self) -> str:
        """The same with the name of the file alone; an address stays whole."""
        return self.place if self.is_web else replace(self, path=PurePath(self.path).name).place


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
    """One turn of a conversation: its text `content`, and before it the parts that are pictures and sounds. An answer
    may have `calls`, and the `reasoning` that led to them. A turn of role "tool" is the result of the call `call_id` of
    the tool `name`. In the service pictures and sounds stand in the text, as markers of the turn's media.

    A question may have parts, such as documents before what is asked about them. Other chats may begin with the same
    parts, up to any of `part_ends`, in characters of the content; the last part has no end there."""

    role: Role
    content: str = ""
    media: tuple[MediaPart, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    call_id: str = ""
    name: str = ""
    part_ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """The options of an answer; None uses the default of the service and the model.

    With `continue_final_message` (vLLM's name) the answer continues the last message, if that is an answer.
    `prompt_cache_key` names the conversation that what is cached belongs to; with the `prompt_cache_retention`
    "in_memory" none of it reaches the disk (OpenAI's names). Drafts are looked up in the texts of `draft_corpus` that
    the service keeps (localllm's own). `json_schema` is the form of the answer. `samplers` are more options of
    `app.protocol.sampling`, by their names over HTTP. A `deterministic` answer to the same request is the same each
    time. `think` says how much to think before the answer: "off", an effort, or the most tokens of a thought. The
    answer may call `tools`."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    deterministic: bool | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    json_schema: Mapping[str, Any] | None = None
    think: str | None = None
    samplers: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory"] | None = None
    draft_corpus: str | None = None
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """What is new in a running answer, as the model wrote it: not yet safe for a terminal. `n_tokens` counts the
    answer's tokens so far, with its reasoning; a verified draft adds many at once. `reasoning` precedes the text.
    `response_id` names the answer where it came from."""

    text: str = ""
    n_tokens: int = 0
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    response_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The end of an answer and its cost. Rates are tokens a second. `tokens_per_pass` is above 1 where draft tokens
    were accepted; `saved_s` estimates the time that they saved. Reasoning that its budget or the user ended had
    `n_cut_reasoning_tokens` by then, 0 if it ended by itself."""

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


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """The threads that compute now, of at most `n_most`, and the share of the `n_processors` that others took at the
    last look, None before it."""

    n_threads: int
    n_most: int
    others_share: float | None = None
    n_processors: int = 0

    @property
    def is_machine_busy(self) -> bool:
        """Whether other programs leave this engine fewer processors than it could use."""
        return self.n_threads < self.n_most

    @property
    def words(self) -> str:
        """Why answers are slower than on a quiet machine, empty where they are not."""
        if not self.is_machine_busy:
            return ""
        others = "" if self.others_share is None else f", which take {self.others_share:.0%} of the processors"
        return f"{self.n_threads} of {self.n_most} threads beside other programs{others}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptProgress:
    """How much of the prompt is read before an answer begins: `n_read` of `n_tokens`, of which `n_cached` were there
    before. That took `elapsed_s`, and takes about `left_s` more, None where nobody knows. A prompt without tokens has
    not begun: it waits for `n_ahead` other answers. `machine` is set where other programs make it slower."""

    n_tokens: int = 0
    n_cached: int = 0
    n_read: int = 0
    elapsed_s: float = 0.0
    left_s: float | None = None
    n_ahead: int = 0
    machine: ThreadUse | None = None


AnswerEvent: TypeAlias = AnswerDelta | PromptProgress | Completed
"""What an answer is made of while it streams; `PromptProgress` comes before deltas, `Completed` is the last."""
