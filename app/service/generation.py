"""One call on a model, whatever the dialect: the requests it makes of the engine, and their answers as they grow.

Owns which event belongs to which answer. Knows nothing of how requests were worded or how answers will be.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from app.engine.frames import Finished
from app.engine.request import Request
from app.service.answer import Answer, Delta
from app.service.reasoning import NO_THINKING, Thinking
from app.service.served_model import ServedModel
from app.service.tools.calling import Calling

__all__ = ["Generation", "Prepare"]


@dataclass(frozen=True, slots=True)
class Generation:
    """The engine's requests, one an answer, how the answers are to be read, and what is done with the only one."""

    requests: tuple[Request, ...]
    thinking: Thinking = NO_THINKING
    calling: Calling | None = None
    when_said: Callable[[Answer], None] | None = None

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
        if self.when_said and not others:  # of several it is not known which one the conversation goes on from
            self.when_said(only)

    async def answers(self, model: ServedModel) -> list[Answer]:
        """Run it on `model` to the end and return the answers in order. Raises as `parts` does."""
        ended: dict[int, Answer] = {}
        async with aclosing(self.parts(model)) as parts:
            async for answer, _ in parts:
                ended[answer.index] = answer
        return [ended[index] for index in sorted(ended)]


# Makes one: a template may have to be rendered or a text tokenized, which can fail and takes time.
Prepare: TypeAlias = Callable[[], Awaitable[Generation]]
