"""Plays a random workload on an engine over a real model, as a worker drives it.

Owns what was said to each request, in tokens and in text. Knows nothing of what it should have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.engine.backend import Chunk, DecodeStatus, Sampler
from app.engine.cache.state_store import StateStore
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.loop.core import Engine, Event
from app.engine.protocol.messages import EngineConfig, Failed, Finished, Output
from app.engine.request import Request, SamplingParams, TokenLogprob
from app.engine.speculative.step_cost import StepCost
from app.engine.tuning.tune_results import RuntimeSettings
from tests.bench.alone import GREEDY
from tests.bench.random_workload import Arrival, Workload

__all__ = ["FreeDrafts", "Player", "Said"]

_N_SEQUENCES = 4


@dataclass(slots=True)
class Said:
    """What a request was answered. `tokens` were sampled in this order, an end token last where the model ended it."""

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
    """Whatever can be drafted pays, whatever it takes."""

    def observe(self, n_tokens: int, duration_s: float) -> None:
        """Learn nothing."""

    def ratio(self, n_tokens: int) -> float:
        return 1.0


class Player:
    """Plays `workload` over `model`, the store in `folder`.

    With `asks_scores` every answer is told with its probabilities, and every second prompt too.
    """

    def __init__(
        self,
        model: LlamaModel,
        setting: RuntimeSettings,
        workload: Workload,
        n_ctx: int,
        folder: Path,
        *,
        asks_scores: bool = False,
    ) -> None:
        self._model = model
        self._setting = setting
        self._workload = workload
        self._n_ctx = n_ctx
        self._folder = folder
        self._asks_scores = asks_scores
        self.said: list[Said] = []
        self._start()

    def play(self) -> list[Said]:
        """Return what was said to every arrival, in order."""
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
        return self.said

    def _start(self) -> None:
        workload = self._workload
        config = EngineConfig(
            n_ctx=self._n_ctx, n_cells=workload.n_cells, n_batch=workload.n_batch, n_sequences=_N_SEQUENCES
        )
        self._native = self._model.context(config, self._setting)
        self._store = StateStore(self._folder)
        backend: Any = _Watched(self._native, self)
        cost = FreeDrafts() if workload.has_free_drafts else StepCost()
        self._engine = Engine(backend, self._hear, self._store, cost)

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
        is_echoed = self._asks_scores and len(self.said) % 2 == 0
        self.said.append(Said(arrival, self._prompt(arrival), is_echoed))
        request = Request(
            request_id=str(len(self.said) - 1),
            prompt=self.said[-1].prompt,
            sampling=GREEDY,
            max_tokens=arrival.n_tokens,
            ignore_eos=arrival.ignore_eos,
            priority=arrival.priority,
            n_logprobs=0 if self._asks_scores else None,
            echo=is_echoed,
        )
        self._engine.submit(request)

    def _prompt(self, arrival: Arrival) -> tuple[int, ...]:
        if arrival.parent is None:
            return arrival.fresh
        parent = self.said[arrival.parent]
        if arrival.is_again:
            return parent.prompt
        had = (*parent.prompt, *parent.tokens)
        kept = had[: int(arrival.kept * len(had))]
        return (*kept, *arrival.fresh)[: self._n_ctx - arrival.n_tokens]

    def _hear(self, event: Event) -> None:
        said = self.said[int(event.request_id)]
        assert said.end is None, "nothing follows the end of an answer"
        if isinstance(event, Output):
            said.text += event.text
            said.logprobs += event.logprobs
        else:
            said.end = event

    def stop_those_due(self) -> None:
        for index, said in enumerate(self.said):
            if said.is_due_to_stop:
                self._engine.abort(str(index))


class _Watched:
    """A backend that a player watches: it notes what is sampled and stops answers in mid-batch."""

    def __init__(self, backend: LlamaBackend, player: Player) -> None:
        self._backend = backend
        self._player = player

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        self._player.stop_those_due()
        return self._backend.decode(chunks)

    def new_sampler(self, params: SamplingParams, ignore_eos: bool, history: Sequence[int] = ()) -> Sampler:
        return _Noting(self._backend.new_sampler(params, ignore_eos, history), self._player.said[-1].tokens)


class _Noting:
    """A sampler that notes what it samples."""

    def __init__(self, sampler: Sampler, tokens: list[int]) -> None:
        self._sampler = sampler
        self._tokens = tokens
        self.close = sampler.close

    def sample(self, row: int) -> int:
        self._tokens.append(self._sampler.sample(row))
        return self._tokens[-1]
