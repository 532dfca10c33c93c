"""The engine's loop: plan, decode, accept, apply aborts.

Owns the sequences that are being answered or wait for it. One thread calls everything but `abort`. Knows nothing of
processes, frames on pipes or llama.cpp; it works on any `Backend`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from app.engine.adapters import adapter_set
from app.engine.backend import Backend, DecodeStatus
from app.engine.cache import PrefixCache
from app.engine.counters import Counters, DraftTally, Occupancy
from app.engine.draft_model import DraftModel
from app.engine.drafter import Drafter
from app.engine.frames import Failed, Finished, Output
from app.engine.logprobs import log_softmax, most_likely
from app.engine.request import FinishReason, Request, TokenLogprob
from app.engine.scheduler import StepBudget, plan
from app.engine.seating import Seating
from app.engine.sequence import Sequence
from app.engine.speculation import StepCost
from app.engine.store import SequenceStore
from app.engine.turns import Turns
from quantizer.errors import ContextOverflowError, EngineError, RequestError, UserError

__all__ = ["Engine", "failure"]

Event = Output | Finished | Failed
Batch = list[tuple[Sequence, int]]


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
        self,
        backend: Backend,
        emit: Callable[[Event], None],
        store: SequenceStore | None = None,
        step_cost: StepCost | None = None,
        draft_model: DraftModel | None = None,
        shifts_context: bool = False,
        clock: Callable[[], float] = time.perf_counter,  # monotonic counts in 16 ms on Windows
    ) -> None:
        self._backend = backend
        self._emit = emit
        self._clock = clock
        self._facts = backend.facts
        self._budget = StepBudget(self._facts.n_batch, max(1, self._facts.n_batch // 4))
        self._cache = PrefixCache(backend, store)
        self._drafter = Drafter(step_cost or StepCost(), [draft_model] if draft_model else [], clock)
        self._turns = Turns(clock)
        self._seating = Seating(self._facts, self._cache, clock)
        self._shifts_context = shifts_context
        self._n_arrived = 0
        self.counters = Counters(drafts={name: DraftTally() for name in self._drafter.source_names})
        self._lock = threading.Lock()  # guards the two sets below, which `abort` touches from other threads
        self._aborted: set[str] = set()
        self._in_flight: set[str] = set()

    @property
    def is_idle(self) -> bool:
        return not (self._seating.running or self._seating.n_waiting)

    @property
    def occupancy(self) -> Occupancy:
        """What is running, waiting and in the cache; any thread may ask."""
        n_running, n_waiting = len(self._seating.running), self._seating.n_waiting
        return Occupancy(n_running, n_waiting, self._cache.n_cells_used, self._facts.n_cells)

    def submit(self, request: Request) -> None:
        """Queue `request`, or emit Failed when it cannot be served."""
        try:
            self._seating.add(self._sequence(self._with_shift(request)))
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
        self._end_late()
        self._seating.seat_waiting()
        self._shift_full()
        turn = self._turns.next(self._seating.running)
        if self._facts.can_cut:  # a refused draft must be cut off
            self._drafter.assign(turn, self._budget)
        shares = plan([sequence.demand for sequence in turn], self._budget)
        self._hold_back_last_tokens(shares)
        self._seating.make_room(shares)
        if shares:
            self._backend.use_adapters(turn[0].adapters)
            by_key = {sequence.arrival: sequence for sequence in turn}
            self._compute([(by_key[key], n_tokens) for key, n_tokens in shares.items()])

    def save_one(self) -> bool:
        """Save one finished sequence that is not saved yet, in an idle moment. Return False when there is none."""
        return self._cache.save_one()

    def close(self) -> None:
        """End every request as aborted and free the samplers. The backend stays with its owner."""
        for sequence in self._seating:
            self._finish(sequence, FinishReason.ABORTED)

    def check_integrity(self) -> None:
        """Assert that tree, places and sequences agree; for tests and idle moments."""
        self._cache.check_integrity()

    # Requests in and out

    def _sequence(self, request: Request) -> Sequence:
        if not self._facts.can_generate:
            raise RequestError("This model only embeds or ranks texts; it cannot chat.", "Load a chat model.")
        adapters = adapter_set(self._facts.adapters, request.lora)
        tokens = self._prompt_tokens(request)
        if len(tokens) >= self._facts.n_ctx:
            raise ContextOverflowError(len(tokens), self._facts.n_ctx)
        room = self._facts.n_ctx - len(tokens)
        limit = len(tokens) + (room if request.max_tokens is None else min(room, request.max_tokens))
        self._n_arrived += 1
        sampler = self._backend.new_sampler(request.sampling, request.ignore_eos, tokens)
        acceptance = self._drafter.new_acceptance()
        tags = self._visible_tags(request)
        return Sequence(
            request,
            self._n_arrived,
            tokens,
            len(tokens),
            limit,
            sampler,
            acceptance,
            self._clock(),
            tags,
            adapters,
        )

    def _visible_tags(self, request: Request) -> dict[int, bytes]:
        """Return the tokens, one each, that are written like the request's visible tags."""
        spelled = ((tag, self._backend.tokenize(tag, False, True)) for tag in request.visible_tags)
        return {tokens[0]: tag.encode() for tag, tokens in spelled if len(tokens) == 1}

    def _prompt_tokens(self, request: Request) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, str):
            tokens = self._backend.tokenize(prompt, request.add_special, request.parse_special)
        else:
            tokens = list(prompt)
            if any(not 0 <= token < self._facts.n_vocab for token in tokens):
                raise RequestError("A token id of the prompt is not in the vocabulary.", "Tokenize with this model.")
        if not tokens:
            raise RequestError("The prompt is empty.", "Give at least one token of text.")
        return tokens

    def _with_shift(self, request: Request) -> Request:
        """Return `request` with its say on context shifts, the engine's where it has none."""
        wants_shift = self._shifts_context if request.context_shift is None else request.context_shift
        if wants_shift and not self._facts.can_shift:
            raise RequestError("The context of this model cannot be shifted.", "Leave context_shift out.")
        return replace(request, context_shift=wants_shift)

    def _shift_full(self) -> None:
        """Make room in the context of each answer that fills it and is to go on."""
        for sequence in self._seating.running:
            if sequence.is_full and sequence.may_shift:
                shift = sequence.plan_shift(self._facts.n_ctx)
                sequence.n_computed = self._cache.shift(sequence.place, shift)
                self._drafter.release(sequence)
                sequence.drop(shift, self._facts.n_ctx)

    def _end_late(self) -> None:
        now_s = self._clock()
        for sequence in self._seating:
            if sequence.is_late(now_s):
                if text := sequence.text.finish():
                    self._emit(Output(sequence.request.request_id, text, sequence.n_output))
                self._finish(sequence, FinishReason.LENGTH)

    def _apply_aborts(self) -> None:
        with self._lock:
            aborted, self._aborted = self._aborted, set()
        for sequence in self._seating:
            if sequence.request.request_id in aborted:
                self._finish(sequence, FinishReason.ABORTED)

    def _finish(self, sequence: Sequence, reason: FinishReason, error: UserError | None = None) -> None:
        sequence.finish_reason = reason
        self._seating.remove(sequence)
        self._drafter.release(sequence)
        sequence.sampler.close()
        self.counters.n_finished += 1
        request_id = sequence.request.request_id
        if error is not None:
            self._emit(failure(request_id, error))
        else:
            self._emit(Finished(request_id, reason, sequence.usage(), sequence.timings(self._clock())))

    # One batch

    def _hold_back_last_tokens(self, shares: dict[int, int]) -> None:
        """Leave the last prompt token to a step of its own where that is the only place for a checkpoint."""
        if self._facts.can_cut:
            return
        for sequence in self._seating.running:
            if sequence.n_pending > 1 and shares.get(sequence.arrival) == sequence.n_pending:
                shares[sequence.arrival] -= 1

    def _compute(self, batch: Batch) -> None:
        begun_s = self._clock()
        with self._lock:
            self._in_flight = {sequence.request.request_id for sequence, _ in batch}
        try:
            status = self._backend.decode([sequence.chunk(n_tokens) for sequence, n_tokens in batch])
        except EngineError as error:
            self._fail_batch(batch, error)
            return
        finally:
            with self._lock:
                self._in_flight = set()
        if status is DecodeStatus.DONE:
            are_answers = all(sequence.is_answering for sequence, _ in batch)
            self._accept(batch)
            duration_s = self._clock() - begun_s
            self.counters.n_steps += 1
            self.counters.busy_s += duration_s
            if are_answers:
                self._drafter.observe_step(sum(n_tokens for _, n_tokens in batch), duration_s)
        elif status is DecodeStatus.INTERRUPTED:
            for sequence, _ in batch:
                sequence.n_computed = self._cache.cut(sequence.place, sequence.n_computed)
        elif not (self._cache.evict_coldest() or self._seating.put_back_last()):
            self._fail_batch(batch, EngineError("The KV cache has no room for the next batch.", "Use a smaller --ctx."))

    def _fail_batch(self, batch: Batch, error: EngineError) -> None:
        for sequence, _ in batch:
            self._cache.cut(sequence.place, sequence.n_computed)  # parts of the batch may be in it
            self._finish(sequence, FinishReason.ERROR, error)

    def _accept(self, batch: Batch) -> None:
        row = 0
        for sequence, n_tokens in batch:
            n_known = min(n_tokens, sequence.n_pending)
            begin = sequence.n_computed
            if not sequence.is_answering:
                self.counters.n_prefill_tokens += n_known
            sequence.n_computed += n_known
            self._cache.computed(sequence.place, sequence.tokens[begin : begin + n_known])
            if sequence.n_pending == 1 and not sequence.n_output and not self._facts.can_cut:
                self._cache.checkpoint(sequence.place)
            elif sequence.n_pending == 0:
                try:
                    self._advance(sequence, row + n_known - 1, n_tokens - n_known)
                except UserError as error:  # a grammar that allows no token ends its own request only
                    self._cache.cut(sequence.place, sequence.n_computed)
                    self._finish(sequence, FinishReason.ERROR, error)
            row += n_tokens

    def _advance(self, sequence: Sequence, row: int, n_draft: int) -> None:
        """Sample from `row` and, while the draft is what is sampled, from the rows after it; say what that adds.

        A draft is a point mass wherever it comes from: keeping it just where it equals the sample leaves the
        distribution of the output as it was.
        """
        text = ""
        n_accepted = 0
        while (reason := self._limit_reason(sequence)) is None:
            token = sequence.sampler.sample(row + n_accepted)
            self._drafter.compare(sequence, token)
            offset = sequence.text.n_decoded
            reason, more = self._take(sequence, token)
            self._note_logprob(sequence, row + n_accepted, token, offset)
            text += more
            if reason is not None or n_accepted == n_draft or token != sequence.draft.tokens[n_accepted]:
                break
            n_accepted += 1
        self._count_output(sequence)
        if n_draft:
            self._settle_draft(sequence, n_draft, n_accepted)
        logprobs = () if sequence.ledger is None else sequence.ledger.release(sequence.text.n_shown)
        if text or logprobs:
            self._emit(Output(sequence.request.request_id, text, sequence.n_output, logprobs))
        if reason is not None:
            self._finish(sequence, reason)

    def _count_output(self, sequence: Sequence) -> None:
        now_s = self._clock()
        if sequence.last_output_s is None:
            self.counters.begin(sequence.usage(), sequence.timings(now_s))
        else:
            self.counters.inter_token_s.record(now_s - sequence.last_output_s)
        sequence.last_output_s = now_s
        sequence.n_passes += 1

    def _limit_reason(self, sequence: Sequence) -> FinishReason | None:
        return FinishReason.LENGTH if sequence.is_full and not sequence.may_shift else None

    def _take(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, str]:
        """Append a sampled token; return why the answer ends with it, if so, and the text it makes safe to show."""
        if sequence.first_token_s is None:
            sequence.first_token_s = self._clock()
        if self._backend.is_end(token):
            return FinishReason.STOP, sequence.text.finish()
        sequence.append(token)
        self.counters.n_decode_tokens += 1
        self.counters.depth_sum += len(sequence.tokens)
        text = sequence.text.push(self._piece(sequence, token))
        if sequence.text.is_stopped:
            return FinishReason.STOP, text
        is_last_line = sequence.is_last_line(text, self._clock())
        reason = FinishReason.LENGTH if is_last_line else self._limit_reason(sequence)
        return reason, text + sequence.text.finish() if reason else text

    def _piece(self, sequence: Sequence, token: int) -> bytes:
        return self._backend.piece(token) or sequence.tags.get(token, b"")

    def _note_logprob(self, sequence: Sequence, row: int, token: int, offset: int) -> None:
        """Keep how likely `token` was where the request asks for it; its text begins at character `offset`."""
        if sequence.ledger is None or self._backend.is_end(token):
            return
        logprobs = log_softmax(self._backend.logits(row))
        top = most_likely(logprobs, sequence.n_logprobs)
        rivals = tuple((self._backend.label(other), float(logprobs[other])) for other in top)
        entry = TokenLogprob(self._piece(sequence, token), float(logprobs[token]), rivals, offset)
        sequence.ledger.add(entry, sequence.text.end)

    def _settle_draft(self, sequence: Sequence, n_draft: int, n_accepted: int) -> None:
        """Keep the accepted tokens in the cache, cut the others, and learn from both."""
        accepted = sequence.draft.tokens[:n_accepted]
        sequence.n_computed += n_accepted
        self._cache.cut(sequence.place, sequence.n_computed)
        self._cache.computed(sequence.place, accepted)
        self.counters.drafts[sequence.draft.source].add(n_draft, n_accepted)
        self._drafter.settle(sequence, n_draft, n_accepted)
