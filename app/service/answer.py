"""One answer as it comes: its thought and text so far, the token probabilities, and how it ended.

Owns what is told to a client when. Knows nothing of dialects or of HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.frames import Finished, Output
from app.engine.request import TokenLogprob
from app.service.reasoning import Spoken, Thinking, ThoughtSplitter

__all__ = ["Answer", "Delta"]


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new in answer `index`, which has `n_tokens` by now."""

    index: int
    spoken: Spoken
    logprobs: tuple[TokenLogprob, ...]
    n_tokens: int


class Answer:
    """Answer `index` to a call, whose thoughts are told apart as `thinking` says."""

    def __init__(self, index: int, thinking: Thinking) -> None:
        self.index = index
        self.thought = ""
        self.text = ""
        self.logprobs: list[TokenLogprob] = []
        self._splitter = ThoughtSplitter(thinking)
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
            return self._tell(self._splitter.finish())
        self._n_tokens = part.n_tokens
        self._untold += part.logprobs
        return self._tell(self._splitter.push(part.text))

    def _tell(self, spoken: Spoken) -> Delta | None:
        """Probabilities wait while text does: they would give it away."""
        told: tuple[TokenLogprob, ...] = ()
        if not self._splitter.is_holding:
            told, self._untold = self._untold, ()
        self.thought += spoken.thought
        self.text += spoken.answer
        self.logprobs += told
        is_news = told or spoken != Spoken()
        return Delta(self.index, spoken, told, self._n_tokens) if is_news else None
