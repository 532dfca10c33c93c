"""OpenAI's request bodies, and the chat turns and engine requests made of them.

Fields are refused where ignoring them would give a wrong answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictStr

from app.engine.grammar.answer_format import AnswerFormat
from app.engine.grammar.json_grammar import ANY_OBJECT, JsonFormat
from app.engine.request import Request
from app.protocol.errors import RequestError
from app.service.api.fields import Body, TtlBody
from app.service.api.messages import (
    ChatMessage,
    ChatThinkingBody,
    FunctionToolBody,
    ToolChoiceBody,
    refuse_unreadable_question,
    tool_options_of,
    with_verbosity,
)
from app.service.api.text_request import MAX_ANSWERS, GenerationBody, PromptField
from app.service.generation.chat import ChatTurn
from app.service.generation.media import NO_MEDIA, PromptMedia
from app.service.infill_request import FimRequest


class _SchemaBody(Body):
    schema_: Any = Field(None, alias="schema")


class ResponseFormat(_SchemaBody):
    """The form of the answer: text, any JSON object (llama-server: or one with a `schema`), or JSON of a schema."""

    type: str = "text"
    json_schema: _SchemaBody | None = None

    def json_format(self) -> JsonFormat | None:
        """Return the form, None for text. Raises RequestError for an unsupported type or schema."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return ANY_OBJECT if self.schema_ is None else JsonFormat(self.schema_)
        if self.type != "json_schema":
            cause = f"response_format {self.type[:40]!r} is not supported."
            raise RequestError(cause, "Use json_object or json_schema, or describe the output in `grammar` (GBNF).")
        if self.json_schema is None or self.json_schema.schema_ is None:
            raise RequestError("response_format has no json_schema.schema.", "Give the schema of the answer.")
        return JsonFormat(self.json_schema.schema_)


class StreamOptions(Body):
    include_usage: bool | None = None


class OpenAiBody(GenerationBody, TtlBody):
    """The fields that chat and text completions share; None means not given."""

    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    response_format: ResponseFormat | None = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def n_answers(self) -> int:
        n_answers = 1 if self.n is None else self.n
        if not 1 <= n_answers <= MAX_ANSWERS:
            raise RequestError(f"n is {n_answers}.", f"Ask for 1 to {MAX_ANSWERS} answers.")
        return n_answers

    def _limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def answer_format(self) -> AnswerFormat | None:
        return self.demanded_format(self.response_format.json_format() if self.response_format else None)

    def _text_format(self) -> AnswerFormat | None:
        return self.answer_format()


class ChatCompletionBody(OpenAiBody, ChatThinkingBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]

    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_format: Literal["none", "auto", "deepseek"] | None = None
    tools: list[FunctionToolBody] | None = None
    tool_choice: ToolChoiceBody | StrictStr | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None
    verbosity: StrictStr | None = None
    add_generation_prompt: StrictBool | None = None  # llama-server's and vLLM's

    def turn(self, media: PromptMedia = NO_MEDIA) -> ChatTurn:
        """Return the chat turn, with its pictures and sounds in `media`. Raises RequestError for unsupported fields,
        for those that exclude each other, and for a question with what the model cannot be given."""
        if self.continue_final_message and self.add_generation_prompt:
            cause = "continue_final_message and add_generation_prompt exclude each other."
            raise RequestError(cause, "Send only one of them as true.")
        refuse_unreadable_question([(message.role, message.faults(media)) for message in self.messages])
        return ChatTurn(
            messages=with_verbosity([message.message(media) for message in self.messages], self.verbosity),
            request=self.request(),
            media=media,
            tools=tool_options_of(
                (tool.tool() for tool in self.tools or ()), self.tool_choice, self.parallel_tool_calls
            ),
            answer_format=self.answer_format(),
            n_answers=self.n_answers(),
            thinking=self.how_to_think(),
            separates_reasoning=self.reasoning_format != "none",
            continues=bool(self.continue_final_message),
            opens_answer=self.add_generation_prompt is not False,
        )

    def _n_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs.", "Set logprobs to true.")
        return self.top_logprobs or 0 if self.logprobs else None

    def _text_format(self) -> None:
        """Return None: before the JSON of a chat's answer reasoning is possible, and calls in its place."""


class CompletionBody(OpenAiBody, PromptField):
    """The body of /v1/completions; with a `suffix` the answer is the text between the two."""

    suffix: StrictStr | None = None
    logprobs: StrictBool | int | None = None
    echo: bool | None = None

    def completion_requests(self) -> tuple[Request, ...]:
        """Return the engine's requests to continue each prompt. Raises RequestError for none and for too many."""
        return self.requests_for(self.prompts(), self.n_answers(), echo=self._engine_echoes)

    @property
    def fim_request(self) -> FimRequest | None:
        """The text to fill in, None where the prompt is only continued. Raises RequestError for token ids."""
        return FimRequest(prefix=self.text_prompt(), suffix=self.suffix) if self.suffix else None

    def echoed(self) -> tuple[str, ...]:
        """Return the prompt before each answer, if it is echoed and not by the engine."""
        if not self.echo or self._engine_echoes:
            return ()
        if self._n_logprobs() is not None:  # with a suffix the model reads another prompt
            raise RequestError("echo with logprobs and a suffix is not supported.", "Leave one of the three out.")
        return tuple(self.text_prompt() for _ in range(self.n_answers()))

    @property
    def _engine_echoes(self) -> bool:
        return bool(self.echo) and not self.suffix

    def _n_logprobs(self) -> int | None:
        return None if self.logprobs is None or self.logprobs is False else int(self.logprobs)


class FimBody(OpenAiBody):
    """The body of /v1/fim/completions, which is Mistral's."""

    prompt: StrictStr
    suffix: StrictStr | None = None

    @property
    def fim_request(self) -> FimRequest:
        return FimRequest(prefix=self.prompt, suffix=self.suffix or "")

    def _n_logprobs(self) -> int | None:
        return None
