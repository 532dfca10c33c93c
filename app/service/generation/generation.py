"""One answer as it comes: its thought, text and calls so far, the token probabilities, and how it ended.

Owns what is told to a client when. Knows nothing of dialects or of HTTP.

One call on a model, whatever the dialect: the requests it makes of the engine, and their answers as they grow.

Owns which event belongs to which answer. Knows nothing of how requests were worded or how answers will be.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from app.engine.protocol.messages import Finished, Output
from app.engine.request import Request, TokenLogprob
from app.service.generation.reasoning import NO_REASONING, ReasoningParser, ReasoningTags, TextParts
from app.service.models.served_model import ServedModel
from app.service.tools.parser import ToolCalling
from app.service.tools.tool import ParsedText, ToolCallDelta, merge_deltas

__all__ = ["Answer", "Delta", "Generation", "Prepare"]


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new in answer `index`, which has `n_tokens` by now."""

    index: int
    spoken: TextParts
    logprobs: tuple[TokenLogprob, ...]
    n_tokens: int
    calls: tuple[ToolCallDelta, ...] = ()


class Answer:
    """Answer `index` to a request: thoughts are told apart as `thinking` says, then calls of tools by `calling`."""

    def __init__(self, index: int, thinking: ReasoningTags, calling: ToolCalling | None = None) -> None:
        self.index = index
        self.thought = ""
        self.text = ""
        self.calls: tuple[ToolCallDelta, ...] = ()
        self.logprobs: list[TokenLogprob] = []
        self._thoughts = ReasoningParser(thinking)
        self._calls = calling.new_splitter() if calling else None
        self._untold: tuple[TokenLogprob, ...] = ()
        self._n_tokens = 0
        self._finished: Finished | None = None

    @property
    def is_finished(self) -> bool:
        return self._finished is not None

    @property
    def end(self) -> Finished:
        assert self._finished is not None, "an answer ends with Finished or with an error"
        return self._finished

    def add(self, part: Output | Finished) -> Delta | None:
        """Take the engine's next event; return what can be told now, None when that is nothing."""
        if isinstance(part, Finished):
            self._finished = part
            return self._tell(self._thoughts.finish())
        self._n_tokens = part.n_tokens
        self._untold += part.logprobs
        return self._tell(self._thoughts.push(part.text))

    def _tell(self, spoken: TextParts) -> Delta | None:
        """Probabilities wait while text does: they would give it away."""
        told = self._calls.push(spoken.answer, is_final=self.is_finished) if self._calls else ParsedText(spoken.answer)
        spoken = TextParts(spoken.thought, told.text)
        logprobs: tuple[TokenLogprob, ...] = ()
        if not (self._thoughts.is_holding or (self._calls and self._calls.is_holding)):
            logprobs, self._untold = self._untold, ()
        self.thought += spoken.thought
        self.text += spoken.answer
        self.logprobs += logprobs
        self.calls = merge_deltas((*self.calls, *told.calls))
        is_news = logprobs or told.calls or spoken != TextParts()
        return Delta(self.index, spoken, logprobs, self._n_tokens, told.calls) if is_news else None


@dataclass(frozen=True, slots=True)
class Generation:
    """The engine's requests, one an answer, how the answers are to be read, and what is done with the only one."""

    requests: tuple[Request, ...]
    thinking: ReasoningTags = NO_REASONING
    calling: ToolCalling | None = None
    on_finished: Callable[[Answer], None] | None = None

    async def parts(self, model: ServedModel) -> AsyncGenerator[tuple[Answer, Delta | None], None]:
        """Run it on `model`. Yield an answer whenever it has grown or ended, with what can be told of that.

        Closing this early ends the work. Raises what made one of the answers fail.
        """
        answers = {
            request.request_id: Answer(index, self.thinking, self.calling)
            for index, request in enumerate(self.requests)
        }
        async with model.answer(*self.requests) as events:
            async for part in events:
                answer = answers[part.request_id]
                delta = answer.add(part)
                if isinstance(part, Finished):
                    model.record.add(part.usage.n_prompt_tokens, part.usage.n_output_tokens)
                yield answer, delta
        only, *others = answers.values()
        if self.on_finished and not others:  # of several it is not known which one the conversation goes on from
            self.on_finished(only)

    async def answers(self, model: ServedModel) -> list[Answer]:
        """Run it on `model` to the end and return the answers in order. Raises as `parts` does."""
        ended: dict[int, Answer] = {}
        async with aclosing(self.parts(model)) as parts:
            async for answer, _ in parts:
                ended[answer.index] = answer
        return [ended[index] for index in sorted(ended)]


# Makes one: a template may have to be rendered or a text tokenized, which can fail and takes time.
Prepare: TypeAlias = Callable[[], Awaitable[Generation]]
