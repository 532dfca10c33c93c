"""OpenAI's request bodies -> requests to the engine.

Owns field names, defaults and what is refused because ignoring it would give a wrong answer. Knows nothing of
responses.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, Any, Literal, TypeAlias
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from app.engine.request import Request, SamplingParams
from app.service.api.openai_formats import ResponseFormat
from app.service.api.openai_tools import CallBody, ChoiceBody, ToolBody, offer_of
from app.service.prompt import Prompt
from app.service.reasoning import NO_THINKING, Thinking
from app.service.tools.offer import Offer
from quantizer.errors import RequestError

__all__ = ["ChatBody", "CompletionBody", "GenerationBody"]

_SAMPLING_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "seed",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "grammar",
)

MAX_ANSWERS = 8

Text: TypeAlias = Annotated[str, Field(strict=True)]
TokenIds: TypeAlias = list[StrictInt]
Bias: TypeAlias = StrictBool | float  # false bans the token


class _Body(BaseModel):
    """Unknown fields are ignored: clients send many that mean nothing here."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class StreamOptions(_Body):
    include_usage: bool | None = None


class AdapterScale(_Body):
    """How strongly an adapter acts, which is named or numbered in the order of `--lora` (llama-server's way)."""

    id: StrictInt | None = None
    name: Text | None = None
    scale: float

    def pair(self) -> tuple[int | str, float]:
        """Return it as requests have it. Raises RequestError unless it has either an id or a name."""
        name = self.id if self.name is None else self.name
        if name is None or (self.id is not None and self.name is not None):
            raise RequestError("An entry of lora needs an id or a name.", 'Use {"id": 0, "scale": 0.5}.')
        return name, self.scale


class ContentPart(_Body):
    type: str
    text: Text = ""


class ChatMessage(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[ContentPart] | None = None
    name: Text | None = None
    tool_calls: list[CallBody] | None = None
    tool_call_id: Text | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates know it. Raises RequestError for content that is not text."""
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self._text()}
        if self.role == "assistant" and self.tool_calls:
            calls = [call.for_template() for call in self.tool_calls]
            return {**message, "content": message["content"] or None, "tool_calls": calls}
        if self.role == "tool":
            told = {"name": self.name, "tool_call_id": self.tool_call_id}
            return {**message, **{name: value for name, value in told.items() if value is not None}}
        return message

    def _text(self) -> str:
        if isinstance(self.content, list):
            return "".join(_text_of(part) for part in self.content)
        return self.content or ""


class GenerationBody(_Body):
    """What chat and text completions have in common. None means: not given."""

    model: Text | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timings_per_token: bool | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: Text | list[Text] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    seed: int | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[Text] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    logit_bias: dict[str, Bias] | list[tuple[StrictInt, Bias]] | None = None
    grammar: Text | None = None
    ignore_eos: bool | None = None
    lora: list[AdapterScale] | None = None
    context_shift: bool | None = None
    n_keep: int | None = None
    max_time: float | None = None
    t_max_predict_ms: int | None = None
    response_format: ResponseFormat | None = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def requests(self, prompt: str | tuple[int, ...], *, add_special: bool) -> tuple[Request, ...]:
        """Return the engine's requests for `prompt`, one for each wanted answer.

        Raises RequestError for values out of range or not served.
        """
        return self._request(prompt, add_special=add_special).variants(self._n_answers())

    def _request(self, prompt: str | tuple[int, ...], *, add_special: bool) -> Request:
        return Request(
            request_id=uuid4().hex,
            prompt=prompt,
            sampling=self._sampling(),
            max_tokens=self._limit(),
            stop=self._stop_strings(),
            ignore_eos=bool(self.ignore_eos),
            add_special=add_special,
            n_logprobs=self._n_logprobs(),
            lora=None if self.lora is None else tuple(item.pair() for item in self.lora),
            context_shift=self.context_shift,
            n_keep=self.n_keep or 0,
            max_time_s=self.max_time,
            max_predict_s=self._max_predict_s(),
        )

    def _n_answers(self) -> int:
        n_answers = 1 if self.n is None else self.n
        if not 1 <= n_answers <= MAX_ANSWERS:
            raise RequestError(f"n is {n_answers}.", f"Ask for 1 to {MAX_ANSWERS} answers.")
        return n_answers

    @abstractmethod
    def _n_logprobs(self) -> int | None:
        """Return how many alternatives a token to tell; the two routes ask for them differently."""

    def _sampling(self) -> SamplingParams:
        given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(self, name)) is not None}
        # llama.cpp's ways to say "all of them" and "draw one"
        if given.get("top_k", 0) < 0:
            given["top_k"] = 0
        if given.get("seed") == -1:
            del given["seed"]
        if self.repeat_last_n is not None:
            given["penalty_last_n"] = self.repeat_last_n
        if self.dry_sequence_breakers is not None:
            given["dry_sequence_breakers"] = tuple(self.dry_sequence_breakers)
        if format_grammar := self.response_format.grammar() if self.response_format else "":
            if self.grammar:
                raise RequestError("Both grammar and response_format are given.", "Give one of them.")
            given["grammar"] = format_grammar
        return SamplingParams(**given, logit_bias=self._biases())

    def _biases(self) -> tuple[tuple[int, float], ...]:
        """Return the biases by token id: keys of an object are text in JSON, and llama-server takes pairs too."""
        given = self.logit_bias or {}
        pairs = given.items() if isinstance(given, dict) else given
        return tuple((_token_id(token), _bias(bias)) for token, bias in pairs)

    def _limit(self) -> int | None:
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return None if limit == -1 else limit

    def _max_predict_s(self) -> float | None:
        """Return llama-server's limit of time, to which 0 and -1 mean none."""
        return None if self.t_max_predict_ms in (None, 0, -1) else self.t_max_predict_ms / 1000

    def _stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatBody(GenerationBody):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]

    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_format: Literal["none", "auto", "deepseek"] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: ChoiceBody | Text | None = None
    parallel_tool_calls: bool | None = None

    def template_messages(self) -> list[dict[str, Any]]:
        return [message.for_template() for message in self.messages]

    def offer(self) -> Offer:
        """Return the tools that may be called. Raises RequestError where another grammar would forbid calls."""
        offer = offer_of(self.tools or (), self.tool_choice, self.parallel_tool_calls)
        if offer.tools and (self.grammar or (self.response_format and self.response_format.type != "text")):
            raise RequestError(
                "Both tools and a form of the answer are given.", "Set tool_choice to none, or leave one."
            )
        return offer

    def chat_requests(self, prompt: Prompt) -> tuple[Request, ...]:
        request = replace(self._request(prompt.text, add_special=prompt.add_special), visible_tags=prompt.visible_tags)
        if prompt.calling and (grammar := prompt.calling.grammar(prompt.thinking)):
            request = replace(request, sampling=replace(request.sampling, grammar=grammar))
        return request.variants(self._n_answers())

    def thinking(self, prompt: Prompt) -> Thinking:
        """Return how to tell thoughts from the answer; reasoning_format "none" leaves them in it."""
        return NO_THINKING if self.reasoning_format == "none" else prompt.thinking

    def _n_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs is given without logprobs.", "Set logprobs to true.")
        return self.top_logprobs or 0 if self.logprobs else None


class CompletionBody(GenerationBody):
    """The body of /v1/completions. The prompt is text or token ids, or a list of one of them."""

    prompt: Text | list[Text] | TokenIds | list[TokenIds]
    suffix: Text | None = None
    logprobs: StrictBool | int | None = None

    def completion_requests(self) -> tuple[Request, ...]:
        """Raises RequestError for several prompts, and for a suffix: the answer would not know of it."""
        if self.suffix:
            raise RequestError("A suffix is not served by /v1/completions.", "Leave it out.")
        return self.requests(self._prompt(), add_special=True)

    def _n_logprobs(self) -> int | None:
        return None if self.logprobs is None or self.logprobs is False else int(self.logprobs)

    def _prompt(self) -> str | tuple[int, ...]:
        prompt: Any = self.prompt
        if isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int)):
            _require_one(prompt)
            prompt = prompt[0]
        return prompt if isinstance(prompt, str) else tuple(prompt)


def _token_id(text: str | int) -> int:
    if isinstance(text, int):
        return text
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise RequestError(f"logit_bias names {text[:40]!r}, which is no token id.", "Use ids from /tokenize.")
    return int(text)


def _bias(value: bool | float) -> float:
    if value is True:
        raise RequestError("logit_bias of a token is true.", "Give a number, or false to ban the token.")
    return -inf if value is False else value


def _require_one(prompts: Sequence[object]) -> None:
    if len(prompts) != 1:
        raise RequestError(f"{len(prompts)} prompts were given.", "Give one prompt a request.")


def _text_of(part: ContentPart) -> str:
    if part.type not in ("text", "input_text"):
        cause = f"A message has content of type {part.type[:40]!r}, which no model here takes."
        raise RequestError(cause, "Send text.")
    return part.text
