"""The engine's loop: plan, decode, accept, apply aborts.

Owns the sequences and their places in the cache. One thread calls everything but `abort`. Knows nothing of processes,
frames on pipes or llama.cpp; it works on any `Backend`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from app.engine.backend import Backend, Chunk, DecodeStatus
from app.engine.frames import Failed, Finished, Output
from app.engine.request import FinishReason, Request
from app.engine.scheduler import StepBudget, plan
from app.engine.sequence import Sequence
from quantizer.errors import ContextOverflowError, EngineError, RequestError, UserError

__all__ = ["Engine", "failure"]

Event = Output | Finished | Failed


def failure(request_id: str, error: UserError) -> Failed:
    """Return the frame that reports `error`."""
    details = {}
    if isinstance(error, ContextOverflowError):
        details = {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
    return Failed(request_id, type(error).__name__, error.cause, error.remedy, details)


class Engine:
    """Answers requests over one backend. Every event of every request goes to `emit`, in order.

    Each submitted request ends with exactly one Finished or Failed.
    """

    def __init__(
        self, backend: Backend, emit: Callable[[Event], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backend = backend
        self._emit = emit
        self._clock = clock
        self._facts = backend.facts
        self._budget = StepBudget(self._facts.n_batch, max(1, self._facts.n_batch // 4))
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._free_ids = list(range(self._facts.n_sequences))
        self._n_arrived = 0
        self._lock = threading.Lock()  # guards the two sets below, which `abort` touches from other threads
        self._aborted: set[str] = set()
        self._in_flight: set[str] = set()

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._running)

    @property
    def n_cells_used(self) -> int:
        return sum(sequence.n_computed for sequence in self._running)

    def submit(self, request: Request) -> None:
        """Queue `request`, or emit Failed when it cannot be served."""
        try:
            self._waiting.append(self._sequence(request))
        except UserError as error:
            self._emit(failure(request.request_id, error))

    def abort(self, request_id: str) -> None:
        """End a request soon, from any thread: at the next step, or in mid-batch when the batch is for nobody else."""
        with self._lock:
            self._aborted.add(request_id)
            if self._in_flight and self._in_flight <= self._aborted:
                self._backend.interrupt()

    def step(self) -> None:
        """Move every request that can move by one batch."""
        self._apply_aborts()
        self._admit()
        demands = [sequence.demand for sequence in self._running]
        shares = plan(demands, self._budget)
        self._make_room(shares)
        if shares:
            self._compute([(sequence, shares[sequence.arrival]) for sequence in self._in_batch_order(shares)])

    def close(self) -> None:
        """End every request as aborted and free the samplers. The backend stays with its owner."""
        for sequence in [*self._running, *self._waiting]:
            self._finish(sequence, FinishReason.ABORTED)

    # Requests in and out

    def _sequence(self, request: Request) -> Sequence:
        prompt = request.prompt
        if isinstance(prompt, str):
            tokens = self._backend.tokenize(prompt, request.add_special, request.parse_special)
        else:
            tokens = list(prompt)
            if any(not 0 <= token < self._facts.n_vocab for token in tokens):
                raise RequestError("A token id of the prompt is not in the vocabulary.", "Tokenize with this model.")
        if not tokens:
            raise RequestError("The prompt is empty.", "Give at least one token of text.")
        if len(tokens) >= self._facts.n_ctx:
            raise ContextOverflowError(len(tokens), self._facts.n_ctx)
        room = self._facts.n_ctx - len(tokens)
        limit = len(tokens) + (room if request.max_tokens is None else min(room, request.max_tokens))
        self._n_arrived += 1
        sampler = self._backend.new_sampler(request.sampling, request.ignore_eos)
        return Sequence(request, self._n_arrived, tokens, len(tokens), limit, sampler, self._clock())

    def _apply_aborts(self) -> None:
        with self._lock:
            aborted, self._aborted = self._aborted, set()
        for sequence in [*self._running, *self._waiting]:
            if sequence.request.request_id in aborted:
                self._finish(sequence, FinishReason.ABORTED)

    def _finish(self, sequence: Sequence, reason: FinishReason, error: UserError | None = None) -> None:
        sequence.finish_reason = reason
        self._release(sequence)
        (self._running if sequence in self._running else self._waiting).remove(sequence)
        sequence.sampler.close()
        request_id = sequence.request.request_id
        if error is not None:
            self._emit(failure(request_id, error))
        else:
            self._emit(Finished(request_id, reason, sequence.usage(), sequence.timings(self._clock())))

    # Places in the cache

    def _admit(self) -> None:
        """Let waiting sequences in, best rank first, while a place and cells for all their tokens are free."""
        for sequence in sorted(self._waiting, key=lambda waiting: waiting.demand.rank):
            promised = sum(max(len(running.tokens), running.n_computed) for running in self._running)
            if not self._free_ids or promised + len(sequence.tokens) + 1 > self._facts.n_cells:
                return
            self._waiting.remove(sequence)
            self._running.append(sequence)
            sequence.sequence_id = self._free_ids.pop()
            if sequence.admitted_s is None:
                sequence.admitted_s = self._clock()

    def _release(self, sequence: Sequence) -> None:
        if sequence.sequence_id is not None:
            self._backend.truncate(sequence.sequence_id, 0)
            self._free_ids.append(sequence.sequence_id)
            sequence.sequence_id = None
            sequence.n_computed = 0

    def _make_room(self, shares: dict[int, int]) -> None:
        """Put back the last-ranked sequences until the cells suffice; they compute their tokens again later."""
        while self.n_cells_used + sum(shares.values()) > self._facts.n_cells:
            if not self._put_back_last(shares):
                return

    def _put_back_last(self, shares: dict[int, int]) -> bool:
        if len(self._running) < 2:
            return False
        last = max(self._running, key=lambda running: running.demand.rank)
        shares.pop(last.arrival, None)
        self._release(last)
        self._running.remove(last)
        self._waiting.append(last)
        return True

    # One batch

    def _in_batch_order(self, shares: dict[int, int]) -> list[Sequence]:
        by_key = {sequence.arrival: sequence for sequence in self._running}
        return [by_key[key] for key in shares]

    def _compute(self, batch: list[tuple[Sequence, int]]) -> None:
        with self._lock:
            self._in_flight = {sequence.request.request_id for sequence, _ in batch}
        try:
            status = self._backend.decode([_chunk(sequence, n_tokens) for sequence, n_tokens in batch])
        except EngineError as error:
            self._fail_batch(batch, error)
            return
        finally:
            with self._lock:
                self._in_flight = set()
        if status is DecodeStatus.DONE:
            self._accept(batch)
        elif status is DecodeStatus.INTERRUPTED:
            for sequence, _ in batch:
                sequence.n_computed = self._backend.truncate(_place(sequence), sequence.n_computed)
        elif not self._put_back_last({}):
            self._fail_batch(batch, EngineError("The KV cache has no room for the next batch.", "Use a smaller --ctx."))

    def _fail_batch(self, batch: list[tuple[Sequence, int]], error: EngineError) -> None:
        for sequence, _ in batch:
            self._finish(sequence, FinishReason.ERROR, error)

    def _accept(self, batch: list[tuple[Sequence, int]]) -> None:
        row = -1
        for sequence, n_tokens in batch:
            row += n_tokens
            sequence.n_computed += n_tokens
            if sequence.n_pending == 0:
                try:
                    self._advance(sequence, row)
                except UserError as error:  # a grammar that allows no token ends its own request only
                    self._finish(sequence, FinishReason.ERROR, error)

    def _advance(self, sequence: Sequence, row: int) -> None:
        """Sample the next token of `sequence` from `row` and say what it adds to the text."""
        if len(sequence.tokens) >= sequence.limit:  # only for a request of no tokens at all
            self._end(sequence, FinishReason.LENGTH, "")
            return
        token = sequence.sampler.sample(row)
        if sequence.first_token_s is None:
            sequence.first_token_s = self._clock()
        if self._backend.is_end(token):
            self._end(sequence, FinishReason.STOP, sequence.text.finish())
            return
        sequence.tokens.append(token)
        text = sequence.text.push(self._backend.piece(token))
        if sequence.text.is_stopped:
            self._end(sequence, FinishReason.STOP, text)
        elif len(sequence.tokens) >= sequence.limit:
            self._end(sequence, FinishReason.LENGTH, text + sequence.text.finish())
        elif text:
            self._emit(Output(sequence.request.request_id, text, sequence.n_output))

    def _end(self, sequence: Sequence, reason: FinishReason, text: str) -> None:
        if text:
            self._emit(Output(sequence.request.request_id, text, sequence.n_output))
        self._finish(sequence, reason)


def _place(sequence: Sequence) -> int:
    assert sequence.sequence_id is not None, "a running sequence has a place"
    return sequence.sequence_id


def _chunk(sequence: Sequence, n_tokens: int) -> Chunk:
    begin = sequence.n_computed
    tokens = sequence.tokens[begin : begin + n_tokens]
    n_logits = 1 if begin + n_tokens == len(sequence.tokens) else 0
    return Chunk(_place(sequence), begin, tokens, n_logits)
