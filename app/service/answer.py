"""One answer as it comes: its thought, text and calls so far, the token probabilities, and how it ended.

Owns what is told to a client when. Knows nothing of dialects or of HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.frames import Finished, Output
from app.engine.request import TokenLogprob
from app.service.reasoning import Spoken, Thinking, ThoughtSplitter
from app.service.tools.call_parts import CallPart, Told, merged
from app.service.tools.calling import Calling

__all__ = ["Answer", "Delta"]


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new in answer `index`, which has `n_tokens` by now."""

    index: int
    spoken: Spoken
    logprobs: tuple[TokenLogprob, ...]
    n_tokens: int
    calls: tuple[CallPart, ...] = ()


class Answer:
    """Answer `index` to a request: thoughts are told apart as `thinking` says, then calls of tools by `calling`."""

    def __init__(self, index: int, thinking: Thinking, calling: Calling | None = None) -> None:
        self.index = index
        self.thought = ""
        self.text = ""
        self.calls: tuple[CallPart, ...] = ()
        self.logprobs: list[TokenLogprob] = []
        self._thoughts = ThoughtSplitter(thinking)
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

    def _tell(self, spoken: Spoken) -> Delta | None:
        """Probabilities wait while text does: they would give it away."""
        told = self._calls.push(spoken.answer, is_final=self.is_finished) if self._calls else Told(spoken.answer)
        spoken = Spoken(spoken.thought, told.text)
        logprobs: tuple[TokenLogprob, ...] = ()
        if not (self._thoughts.is_holding or (self._calls and self._calls.is_holding)):
            logprobs, self._untold = self._untold, ()
        self.thought += spoken.thought
        self.text += spoken.answer
        self.logprobs += logprobs
        self.calls = merged((*self.calls, *told.calls))
        is_news = logprobs or told.calls or spoken != Spoken()
        return Delta(self.index, spoken, logprobs, self._n_tokens, told.calls) if is_news else None
