"""The engine's answers as Ollama's objects. Durations are in nanoseconds.

Owns the fields and their order. Knows nothing of HTTP.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Literal, NotRequired, TypeAlias, TypeVar

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.engine.messages import Embedded
from app.engine.request import FinishReason
from app.protocol.chat import ToolCall
from app.service.api.fields import WithWarnings
from app.service.api.openai.usage import ChatTokenLogprob, chat_logprobs
from app.service.generation.generation import Answer, Delta
from app.service.http.access_log import RequestRecord

_NS = 1_000_000_000

DoneReason: TypeAlias = Literal["stop", "length", "load", "unload"]


class CalledFunction(TypedDict):
    """A function with its arguments; `index` is that of the call."""

    index: NonNegativeInt
    name: str
    arguments: dict[str, Any]


class CalledTool(TypedDict):
    """A tool call; the `id` came with Ollama 0.12.10, and clients older than that may refuse it."""

    id: NotRequired[str]
    function: CalledFunction


class ResponseMessage(TypedDict):
    """A message of a model."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[CalledTool]]


class Durations(TypedDict, total=False):
    """The time of a request, and the part of it in which its model was loaded."""

    total_duration: NonNegativeInt
    load_duration: NonNegativeInt


class EmbeddingUsage(Durations):
    """The cost of vectors."""

    prompt_eval_count: NotRequired[NonNegativeInt]


class Usage(Durations, total=False):
    """The cost of an answer."""

    prompt_eval_count: NonNegativeInt
    prompt_eval_duration: NonNegativeInt
    eval_count: NonNegativeInt
    eval_duration: NonNegativeInt


class _Response(WithWarnings, Usage):
    """The fields of a whole answer and of a line of a stream; the cost and the reason only when it is `done`."""

    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[DoneReason]
    logprobs: NotRequired[list[ChatTokenLogprob]]


class ChatResponse(_Response):
    """The next message of a conversation, or the new part of it."""

    message: ResponseMessage


class GenerateResponse(_Response):
    """The answer to a prompt, or the new part of it."""

    response: str
    thinking: NotRequired[str]


Object = TypeVar("Object", ChatResponse, GenerateResponse)


@dataclass(frozen=True, slots=True)
class OllamaFormatter(ABC, Generic[Object]):
    """The objects made of one answer of the model `model_id`, with the durations of its `record`."""

    model_id: str
    record: RequestRecord
    has_call_ids: bool = True

    def line(self, delta: Delta) -> Object | None:
        """Return the object of new text, None where there are only parts of calls: calls are reported whole."""
        if not (delta.text or delta.reasoning or delta.logprobs):
            return None
        line = self.new(delta.text, delta.reasoning)
        if delta.logprobs:
            line["logprobs"] = chat_logprobs(delta.logprobs)
        return line

    def calls_line(self, answer: Answer) -> Object | None:
        """Return the object of a finished answer's calls, None where it has none."""
        return self.new(calls=answer.calls) if self._tool_calls(answer.calls) else None

    def last_line(self, answer: Answer, warnings: WithWarnings) -> Object:
        """Return the last object: the reason why `answer` ended and its cost."""
        return self._finish(self.new(), answer, warnings)

    def whole(self, answer: Answer, warnings: WithWarnings) -> Object:
        """Return the answer in one object."""
        whole = self._finish(self.new(answer.text, answer.reasoning, answer.calls), answer, warnings)
        if answer.logprobs:
            whole["logprobs"] = chat_logprobs(answer.logprobs)
        return whole

    def without_text(self, reason: DoneReason, warnings: WithWarnings) -> Object:
        """Return the answer to a request that only loads or unloads the model."""
        return {**self.new(), "done": True, "done_reason": reason, **warnings}

    @abstractmethod
    def new(self, text: str = "", reasoning: str = "", calls: Sequence[ToolCall] = ()) -> Object:
        """Return an object that is not done."""

    def _finish(self, line: Object, answer: Answer, warnings: WithWarnings) -> Object:
        reason: DoneReason = "length" if answer.end.reason is FinishReason.LENGTH else "stop"
        return {**line, "done": True, "done_reason": reason, **_usage(answer, self.record), **warnings}

    def _tool_calls(self, calls: Sequence[ToolCall]) -> list[CalledTool]:
        """Return calls with their arguments as objects, without a call that the token limit has cut short."""
        whole = [(call, arguments) for call in calls if (arguments := call.arguments_object()) is not None]
        called: list[CalledTool] = []
        for index, (call, arguments) in enumerate(whole):
            function: CalledFunction = {"index": index, "name": call.name, "arguments": arguments}
            called.append({"id": call.call_id, "function": function} if self.has_call_ids else {"function": function})
        return called


class ChatFormatter(OllamaFormatter[ChatResponse]):
    """The objects of /api/chat."""

    __slots__ = ()

    def new(self, text: str = "", reasoning: str = "", calls: Sequence[ToolCall] = ()) -> ChatResponse:
        message: ResponseMessage = {"role": "assistant", "content": text}
        if reasoning:
            message["thinking"] = reasoning
        if tool_calls := self._tool_calls(calls):
            message["tool_calls"] = tool_calls
        return {"model": self.model_id, "created_at": _now(), "message": message, "done": False}


class GenerateFormatter(OllamaFormatter[GenerateResponse]):
    """The objects of /api/generate."""

    __slots__ = ()

    def new(self, text: str = "", reasoning: str = "", calls: Sequence[ToolCall] = ()) -> GenerateResponse:  # noqa: ARG002
        line: GenerateResponse = {
            "model": self.model_id,
            "created_at": _now(),
            "response": text,
            "done": False,
        }
        if reasoning:
            line["thinking"] = reasoning
        return line


def rfc3339_time(seconds: float) -> str:
    """Return a time since 1970 as Ollama writes times."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _now() -> str:
    return rfc3339_time(datetime.now(UTC).timestamp())


def embedding_usage(embedded: Embedded, record: RequestRecord) -> EmbeddingUsage:
    """Return the cost of vectors."""
    return {**_durations(record), "prompt_eval_count": embedded.n_tokens}


def _usage(answer: Answer, record: RequestRecord) -> Usage:
    usage, timings = answer.end.usage, answer.end.timings
    return {
        **_durations(record),
        "prompt_eval_count": usage.n_prompt_tokens,
        "prompt_eval_duration": int(timings.prefill_s * _NS),
        "eval_count": usage.n_output_tokens,
        "eval_duration": int(timings.decode_s * _NS),
    }


def _durations(record: RequestRecord) -> Durations:
    return {"total_duration": int(record.took_s * _NS), "load_duration": int(record.load_s * _NS)}
