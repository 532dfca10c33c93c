"""A random workload played on an engine over a real model, as a worker drives it.

Owns the answers, in tokens and in text. Independent of what they should be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk, DecodeStatus, Sampler
from app.engine.cache.state_store import StateStore
from app.engine.llama import LlamaBackend, LlamaModel, LoadedHead
from app.engine.load.auxiliary_loading import make_head_source
from app.engine.loop.core import Engine, Event
from app.engine.messages import EngineConfig, Failed, Finished, Output
from app.engine.request import Request, TokenLogprob
from app.engine.speculative.cost_model import MAX_DRAFT_TOKENS, StepCost
from app.engine.tuning.tune_results import RuntimeSettings
from tests.bench.alone import GREEDY
from tests.bench.random_workload import Arrival, Workload

__all__ = ["FreeDrafts", "PlayedAnswer", "Player"]

_N_SEQUENCES = 4


@dataclass(slots=True)
class PlayedAnswer:
    """The answer to a request. `tokens` were sampled in this order, with an end token if the model ended it."""

    arrival: Arrival
    prompt: tuple[int, ...]
    is_echoed: bool = False
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end: Finished | Failed | None = None

    @property
    def is_due_to_stop(self) -> bool:
        stop_after = self.arrival.stop_after
        return stop_after is not None and len(self.tokens) >= stop_after and self.end is None


class FreeDrafts(StepCost):
    """Step costs with which every draft pays."""

    def observe(self, n_tokens: int, duration_s: float, n_answers: int = 1) -> None:
        """Ignore the step."""

    def ratios_from(self, n_step: int, n_answers: int = 1, *, is_lasting: bool = False) -> Iterator[float]:
        return repeat(1.0, MAX_DRAFT_TOKENS + 1)

    def ratio(self, n_tokens: int, n_answers: int = 1) -> float:
        """Return what a part of a split batch costs."""
        return 0.0


class Player:
    """A player of `workload` over `model`, with its store in `folder`.

    A `head` drafts beside all else. With `with_scores` every answer comes with its probabilities, and every second
    prompt too.
    """

    def __init__(
        self,
        model: LlamaModel,
        setting: RuntimeSettings,
        workload: Workload,
        n_ctx: int,
        folder: Path,
        *,
        with_scores: bool = False,
        head: LoadedHead | None = None,
    ) -> None:
        self._head = head
        self._model = model
        self._setting = setting
        self._workload = workload
        self._n_ctx = n_ctx
        self._folder = folder
        self._with_scores = with_scores
        self.answers: list[PlayedAnswer] = []
        self._start()

    def play(self) -> list[PlayedAnswer]:
        """Return the answer to every arrival, in order."""
        for arrival in self._workload.arrivals:
            if arrival.restarts:
                self._end()
                self._start()
            for _ in range(arrival.delay_steps):
                self._step()
            self._submit(arrival)
        while not self._engine.is_idle:
            self._step()
        self._end()
        return self.answers

    def _start(self) -> None:
        workload = self._workload
        config = EngineConfig(
            n_ctx=self._n_ctx, n_cells=workload.n_cells, n_batch=workload.n_batch, n_sequences=_N_SEQUENCES
        )
        self._native = self._model.context(config, self._setting, head=self._head)
        self._store = StateStore(self._folder)
        backend: Any = _RecordingBackend(self._native, self)
        cost = FreeDrafts() if workload.has_free_drafts else StepCost()
        source = make_head_source(self._native, cost)
        self._engine = Engine(backend, self._on_event, self._store, cost, [] if source is None else [source])

    def _end(self) -> None:
        self._engine.close()
        while self._engine.save_idle_sequence():
            pass
        self._store.close()
        self._native.close()

    def _step(self) -> None:
        self._engine.step()
        self._engine.check_integrity()

    def _submit(self, arrival: Arrival) -> None:
        is_echoed = self._with_scores and len(self.answers) % 2 == 0
        self.answers.append(PlayedAnswer(arrival, self._prompt(arrival), is_echoed))
        request = Request(
            request_id=str(len(self.answers) - 1),
            prompt=self.answers[-1].prompt,
            sampling=GREEDY,
            max_tokens=arrival.n_tokens,
            ignore_eos=arrival.ignore_eos,
            priority=arrival.priority,
            n_logprobs=0 if self._with_scores else None,
            echo=is_echoed,
            branches=(2 * len(self.answers[-1].prompt) // 3,),
        )
        self._engine.submit(request)

    def _prompt(self, arrival: Arrival) -> tuple[int, ...]:
        if arrival.parent is None:
            return arrival.fresh
        parent = self.answers[arrival.parent]
        if arrival.is_again:
            return parent.prompt
        history = (*parent.prompt, *parent.tokens)
        prefix = history[: int(arrival.kept_share * len(history))]
        return (*prefix, *arrival.fresh)[: self._n_ctx - arrival.n_tokens]

    def _on_event(self, event: Event) -> None:
        answer = self.answers[int(event.request_id)]
        assert answer.end is None, "nothing follows the end of an answer"
        if isinstance(event, Output):
            answer.text += event.text
            answer.logprobs += event.logprobs
        else:
            answer.end = event

    def stop_due_answers(self) -> None:
        for index, answer in enumerate(self.answers):
            if answer.is_due_to_stop:
                self._engine.abort(str(index))


class _RecordingBackend:
    """A backend that records sampled tokens and stops answers in mid-batch."""

    def __init__(self, backend: LlamaBackend, player: Player) -> None:
        self._backend = backend
        self._player = player

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        self._player.stop_due_answers()
        return self._backend.decode(chunks)

    def new_sampler(self, *arguments: Any, **options: Any) -> Sampler:
        return _RecordingSampler(self._backend.new_sampler(*arguments, **options), self._player.answers[-1].tokens)


class _RecordingSampler:
    """A sampler that records its tokens."""

    def __init__(self, sampler: Sampler, tokens: list[int]) -> None:
        self._sampler = sampler
        self._tokens = tokens
        self.close = sampler.close

    def sample(self, row: int) -> int:
        self._tokens.append(self._sampler.sample(row))
        return self._tokens[-1]

    def foresee(self, logits: NDArray[np.float32], n_ahead: int) -> tuple[int, float] | None:
        return self._sampler.foresee(logits, n_ahead)

    def accept(self, token: int) -> None:
        self._sampler.accept(token)
        self._tokens.append(token)
