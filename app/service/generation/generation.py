"""One call on a model in any dialect: the engine's requests, and their answers as they stream and are parsed."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from app.common.answer_text import NO_REASONING, ReasoningParser, ReasoningTags
from app.engine.messages import Finished, Output
from app.engine.request import Request, TokenLogprob, Usage
from app.protocol.chat import AnswerDelta, PromptProgress, ToolCall, ToolCallDelta, with_deltas
from app.service.generation.harmony import HarmonyParser
from app.service.models.served_model import ServedModel
from app.service.tools.parser import NO_TOOLS, ToolCalling, ToolCallParser

_MAX_OPENINGS = 32  # of calls, which are looked at in reasoning


class AnswerParser(Protocol):
    """Splits one answer as it streams. What it returns does not depend on how the answer is cut."""

    @property
    def is_holding(self) -> bool:
        """Whether text was read that no part was returned of."""

    def push(self, text: str, *, is_final: bool = False) -> AnswerDelta:
        """Return the parts that are certain after `text`; with `is_final`, all that was held back."""


def answer_parser(
    tags: ReasoningTags,
    tool_calling: ToolCalling | None,
    *,
    separates_reasoning: bool = True,
    is_verbatim: bool = False,
) -> AnswerParser:
    """Return a parser of one answer of a model that writes `tags`. Unless it `separates_reasoning`, that is text.

    Text that `is_verbatim` has a grammar of its own: once it has begun, tags in it are quoted, as in a string of JSON.
    """
    if tags.has_channels:
        return HarmonyParser(
            tool_calling.options if tool_calling else NO_TOOLS,
            begins_in_text=tags.is_past,
            separates_reasoning=separates_reasoning,
            is_verbatim=is_verbatim,
        )
    if not separates_reasoning:
        return TaggedParser(tags.as_text(), tool_calling)  # text begins with reasoning, and calls may follow
    return TaggedParser(tags.before_verbatim() if is_verbatim else tags, tool_calling, is_verbatim=is_verbatim)


class TaggedParser:
    """Reasoning between tags at the beginning of the answer, then text with calls between tags.

    A call that reasoning ends with, where nothing follows it, is made too: models forget to end their reasoning, and an
    agent would wait. Calls within reasoning are thoughts.
    """

    def __init__(self, tags: ReasoningTags, tool_calling: ToolCalling | None, *, is_verbatim: bool = False) -> None:
        self._reasoning = ReasoningParser(tags, may_call=tool_calling is not None)
        self._calling = tool_calling
        self._calls = (
            ToolCallParser(tool_calling.tool_format, tool_calling.options, is_verbatim=is_verbatim)
            if tool_calling
            else None
        )
        self._thoughts: list[str] = []
        self._has_answered = False

    @property
    def is_holding(self) -> bool:
        return self._reasoning.is_holding or (self._calls is not None and self._calls.is_holding)

    def push(self, text: str, *, is_final: bool = False) -> AnswerDelta:
        parsed = self._reasoning.push(text)
        said, reasoning = parsed.text, parsed.reasoning
        if is_final:
            rest = self._reasoning.finish()
            said, reasoning = said + rest.text, reasoning + rest.reasoning
        if self._calls is None or self._calling is None:
            return AnswerDelta(said, reasoning=reasoning)
        separated = self._calls.push(said, is_final=is_final)
        self._thoughts.append(reasoning)
        self._has_answered |= bool(separated.text.strip() or separated.calls)
        calls = separated.calls
        if is_final and not self._has_answered:
            calls = _calls_at_end("".join(self._thoughts), self._calling)
        return AnswerDelta(separated.text, reasoning=reasoning, calls=calls)


def _calls_at_end(text: str, calling: ToolCalling) -> tuple[ToolCallDelta, ...]:
    openings = [found.start() for tag in calling.tool_format.openings for found in re.finditer(re.escape(tag), text)]
    for begin in sorted(openings)[-_MAX_OPENINGS:]:
        parsed = ToolCallParser(calling.tool_format, calling.options).push(text[begin:], is_final=True)
        if parsed.calls and not parsed.text.strip():
            is_whole = all(call.arguments_object() is not None for call in with_deltas((), parsed.calls))
            return parsed.calls if is_whole else ()
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta(AnswerDelta):
    """What is new in answer `index`, with its tokens."""

    index: int
    logprobs: tuple[TokenLogprob, ...] = ()
    tokens: tuple[int, ...] = ()


class Answer:
    """Answer `index` of a generation, whose text `parser` reads."""

    def __init__(self, index: int, parser: AnswerParser) -> None:
        self.index = index
        self.reasoning = ""
        self.text = ""
        self.calls: tuple[ToolCall, ...] = ()
        self.logprobs: list[TokenLogprob] = []
        self.tokens: list[int] = []
        self._parser = parser
        self._held_logprobs: tuple[TokenLogprob, ...] = ()
        self._held_tokens: tuple[int, ...] = ()
        self.n_reasoning_tokens = 0
        self._n_tokens = self._n_counted = 0
        self._prompt_usage: Usage | None = None
        self._finished: Finished | None = None

    @property
    def is_finished(self) -> bool:
        return self._finished is not None

    @property
    def read_prompt(self) -> PromptProgress | None:
        """The prompt, which is read where anything of the answer is there; None before."""
        usage = self._prompt_usage
        if usage is None:
            return None
        n_tokens = usage.n_prompt_tokens
        return PromptProgress(n_tokens=n_tokens, n_cached=usage.n_cached_tokens, n_read=n_tokens)

    @property
    def end(self) -> Finished:
        assert self._finished is not None, "an answer ends with Finished or with an error"
        return self._finished

    def add(self, event: Output | Finished) -> Delta | None:
        """Take the engine's next event; return what is new, None if that is nothing."""
        self._prompt_usage = self._prompt_usage or event.usage
        if isinstance(event, Finished):
            self._finished = event
        else:
            self._n_tokens = event.n_tokens
            self._held_logprobs += event.logprobs
            self._held_tokens += event.tokens
        parsed = self._parser.push("" if isinstance(event, Finished) else event.text, is_final=self.is_finished)
        text, calls = parsed.text, parsed.calls
        logprobs: tuple[TokenLogprob, ...] = ()
        tokens: tuple[int, ...] = ()
        if not self._parser.is_holding:  # tokens and probabilities would reveal the text that is held back
            logprobs, self._held_logprobs = self._held_logprobs, ()
            tokens, self._held_tokens = self._held_tokens, ()
        self.reasoning += parsed.reasoning
        self.text += text
        self.logprobs += logprobs
        self.tokens += tokens
        if calls:
            self.calls = with_deltas(self.calls, calls)
        if not (text or parsed.reasoning or calls or logprobs or tokens):
            return None
        n_new, self._n_counted = self._n_tokens - self._n_counted, self._n_tokens
        if n_thought := len(parsed.reasoning):  # which may end within the piece: its share by length
            n_said = len(text) + sum(len(call.name) + len(call.arguments) for call in calls)
            self.n_reasoning_tokens += round(n_new * n_thought / (n_thought + n_said))
        return Delta(
            index=self.index,
            text=text,
            n_tokens=self._n_tokens,
            reasoning=parsed.reasoning,
            calls=calls,
            logprobs=logprobs,
            tokens=tokens,
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """The engine's requests, one an answer, how `answer_parser` parses their text, and what to do when the only answer
    has ended."""

    requests: tuple[Request, ...]
    tags: ReasoningTags = NO_REASONING
    tool_calling: ToolCalling | None = None
    on_finished: Callable[[Answer], None] | None = None
    separates_reasoning: bool = True
    is_verbatim: bool = False

    @property
    def prompt(self) -> str:
        prompt = self.requests[0].prompt
        assert isinstance(prompt, str), "the prompt of a chat is a text"
        return prompt

    async def parts(self, model: ServedModel) -> AsyncGenerator[tuple[Answer, Delta | None], None]:
        """Run it on `model`; yield an answer whenever it has grown or ended, with what is new in it. Closing the
        generator early aborts the requests. Raises the error of the first answer that fails."""
        how = {"separates_reasoning": self.separates_reasoning, "is_verbatim": self.is_verbatim}
        answers = {
            request.request_id: Answer(index, answer_parser(self.tags, self.tool_calling, **how))
            for index, request in enumerate(self.requests)
        }
        model.record.notices += dict.fromkeys(notice for request in self.requests for notice in request.notices)
        async with model.answer(*self.requests) as events:
            async for event in events:
                answer = answers[event.request_id]
                delta = answer.add(event)
                if isinstance(event, Finished):
                    model.record.add_answer(event, has_tools=self.tool_calling is not None)
                    model.answers.add(model.ref.id, event.usage, event.timings, time.time())
                yield answer, delta
        only, *others = answers.values()
        if self.on_finished and not others:  # of several it is unknown which one the conversation goes on from
            self.on_finished(only)

    async def answers(self, model: ServedModel) -> list[Answer]:
        """Run it on `model` to the end and return the answers in order. Raises as `parts` does."""
        async with aclosing(self.parts(model)) as parts:
            ended = {answer.index: answer async for answer, _ in parts}
        return [ended[index] for index in sorted(ended)]


# Makes one. Rendering a template or tokenizing a text takes time and may fail.
Prepare: TypeAlias = Callable[[], Awaitable[Generation]]
