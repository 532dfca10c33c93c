"""The engine's loop: each step schedules a batch, computes it, and accepts what was sampled.

One thread makes all calls except `abort`. Independent of processes, pipes and llama.cpp; it works on any `Backend`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Many
from dataclasses import replace

from app.common.prompt_pace import PromptCost, PromptPace
from app.engine.backend import Backend, Chunk, DecodeStatus
from app.engine.cache.deterministic_cache import DeterministicCache
from app.engine.cache.kv_cache import KVCacheManager
from app.engine.cache.state_store import StateStore
from app.engine.loop.counters import Counters, DraftCounts
from app.engine.loop.read_ahead import ReadAheadCounter, is_in_the_way
from app.engine.loop.scheduler import BLOCK_TOKENS, AdapterScheduler, Batch, SlotManager, StepBudget, schedule
from app.engine.loop.sequence import NO_LAYOUTS, Admission, Sequence, plan_shift
from app.engine.loop.threads import ThreadControl
from app.engine.loop.verification import Verifier, n_steps_at_once
from app.engine.media.chunks import Embeddings, MediaEmbeddings, MediaLayout, PlacedChunk
from app.engine.messages import AnswerProgress, Failed, Finished, Output
from app.engine.request import FinishReason, Request
from app.engine.speculative.cost_model import StepCost
from app.engine.speculative.draft_source import DraftSource
from app.engine.speculative.drafter import FORCED, Drafter
from app.engine.speculative.project_lookup import TextCorpora
from app.protocol.chat import ThreadUse
from app.protocol.status import Occupancy
from offload.footprint.weights import SCORED_BYTES
from quantizer.system.errors import EngineError, ErrorInfo, UserError

_MIN_INTERRUPTED = 32  # tokens of a batch with states: fewer end soon, and holding a sequence first copies its states
_LEARNED_TOKENS = 512  # of a prompt, from which on it says what the next one will cost
_PROMPT_STEP_S = 1.0  # that a step of a slow prompt takes on processors
_FIRST_PROMPT_STEP = 128  # tokens
_LEAST_PROMPT_STEP = 64  # tokens, which weights are read once for
_WHOLE_PROMPT_SHARE = 1.5  # of a step, that what is left of a prompt may take where cutting it costs a pass
_READ_AHEAD_STEP_S = 0.25  # what is read ahead gives up at most so much when a request comes that has no use for it
_LEAST_GPU_STEP = 128  # tokens: partly offloaded weights are copied for each step

Event = Output | Finished | Failed


class Engine:
    """Loop over the requests of one backend. `emit` receives every event of every request, in order; each submitted
    request ends with exactly one Finished or Failed. `busy_clock` tells how long processors computed so far, None where
    they do not. `counters` are those of another engine, to which this one adds. Drafts are looked up in the `corpora`
    of projects that requests name. One that `is_deterministic`, over a backend for one answer at a time, computes every
    answer alone and in steps that depend on its prompt only: without drafts, in the order of arrival."""

    def __init__(
        self,
        backend: Backend,
        emit: Callable[[Event], None],
        store: StateStore | None = None,
        step_cost: StepCost | None = None,
        draft_sources: Many[DraftSource] = (),
        media: MediaEmbeddings | None = None,
        shifts_context: bool = False,
        threads: ThreadControl | None = None,
        prompt_cost: PromptCost | None = None,
        busy_clock: Callable[[], float | None] = lambda: None,
        counters: Counters | None = None,
        is_deterministic: bool = False,
        corpora: TextCorpora | None = None,
        clock: Callable[[], float] = time.perf_counter,  # time.monotonic has a resolution of 16 ms on Windows
    ) -> None:
        self._backend = backend
        self._emit = emit
        self._clock = clock
        self._busy_clock = busy_clock
        self._media = media
        self._facts = backend.facts
        n_scored = max(1, SCORED_BYTES // (4 * self._facts.n_vocab))
        # Beside running answers each prompt gets a quarter of a batch (128 of 512 tokens): such a step is the gap
        # between two of their tokens.
        self._budget = StepBudget(self._facts.n_batch, max(1, self._facts.n_batch // 4), n_scored)
        self._is_deterministic = is_deterministic
        self._cache = DeterministicCache(backend) if is_deterministic else KVCacheManager(backend, store)
        self._step_cost = step_cost or StepCost()
        self._threads = threads
        self._prompt_cost = prompt_cost or PromptCost()
        self._drafter = Drafter(self._step_cost, draft_sources, clock, self._facts.truncation, corpora)
        self._adapter_scheduler = AdapterScheduler(clock)
        self._slots = SlotManager(self._facts, self._cache, clock)
        self._admission = Admission(backend, self._drafter.new_acceptance, shifts_context, clock)
        self.counters = counters or Counters()
        for name in self._drafter.source_names:
            self.counters.drafts.setdefault(name, DraftCounts())
        self._verifier = Verifier(backend, self.counters, self._drafter.observe_sample, clock)
        self.is_stalled = False  # the last step computed nothing, since all that could run waits for embeddings
        self._at_checkpoints: list[int] = []  # sequences whose states are to be saved as they are now
        self._lock = threading.Lock()  # guards what follows, which other threads touch in `abort` and `announce`
        self._aborted: set[str] = set()
        self._in_flight: Batch = {}  # the batch that may be interrupted
        self._announced: dict[str, Request] = {}  # not submitted yet; guarded as well
        self._read_ahead = ReadAheadCounter(self.counters)

    @property
    def is_idle(self) -> bool:
        return not (self._slots.running or self._slots.n_waiting)

    @property
    def is_decoding(self) -> bool:
        """Whether every request has been scheduled and computed up to its newest token."""
        return not self._slots.n_waiting and all(sequence.is_decoding for sequence in self._slots.running)

    @property
    def draft_outcomes(self) -> Mapping[str, DraftCounts]:
        """What became of drafts by source, those included that were only compared with the next token."""
        return self._drafter.outcomes

    @property
    def occupancy(self) -> Occupancy:
        """Return what is running, waiting and cached; callable from any thread."""
        n_running, n_waiting = len(self._slots.running), self._slots.n_waiting
        return Occupancy(n_running, n_waiting, self._cache.n_cells_used, self._facts.n_cells, self._cache.saved_bytes)

    @property
    def running(self) -> tuple[AnswerProgress, ...]:
        """Return the running answers; callable from any thread, so that the figures of one may be a step apart."""
        now_s = self._clock()
        found = []
        for sequence in tuple(self._slots.running):
            pace = sequence.pace
            found.append(
                AnswerProgress(
                    request_id=sequence.request.request_id,
                    arrival=sequence.arrival,
                    n_prompt_tokens=sequence.n_prompt,
                    n_cached_tokens=sequence.n_cached,
                    n_computed_tokens=sequence.n_computed,
                    n_output_tokens=sequence.n_output,
                    has_new_line=sequence.output.has_new_line,
                    prompt_s=0.0 if pace is None else now_s - pace.begun_s,
                    prompt_left_s=None if pace is None else pace.left_s(now_s),
                )
            )
        return tuple(found)

    @property
    def thread_use(self) -> ThreadUse | None:
        """Return the threads that compute, None where their number is fixed; callable from any thread."""
        return self._threads.use if self._threads is not None else None

    def submit(self, request: Request, layouts: Mapping[str, MediaLayout] = NO_LAYOUTS) -> None:
        """Queue `request`, whose media have `layouts` by marker, or emit Failed when it cannot be served."""
        with self._lock:
            self._announced.pop(request.request_id, None)
        if self._is_deterministic:
            # One of a higher priority would preempt another, whose answer so far would be computed like a prompt.
            request = replace(request, priority=0, max_draft_tokens=0)
        try:
            sequence = self._admission.admit(request, layouts)
        except UserError as error:
            self._emit(Failed(request.request_id, ErrorInfo.of(error)))
        else:
            self._slots.add(sequence)
            self._drafter.prepare(sequence)

    def abort(self, request_id: str) -> None:
        """End a request, from any thread: at the next step, or in mid-batch if no other request is in the batch. What
        is read ahead computes its batch: the question for which it ends most often begins with it."""
        with self._lock:
            self._aborted.add(request_id)
            in_flight = [sequence.request for sequence in self._in_flight]
            if in_flight and all(each.request_id in self._aborted and not each.reads_ahead for each in in_flight):
                self._backend.interrupt()

    def announce(self, request: Request) -> None:
        """Note, from any thread, that `request` will be submitted: what computes for a lower priority makes way now,
        unless the request has a use for it."""
        with self._lock:
            self._announced[request.request_id] = request
            if self._in_flight and is_in_the_way(self._in_flight, request):
                self._backend.interrupt()

    def interrupt(self) -> None:
        """Let the batch that is being computed end early, from any thread. Its tokens are computed by a later step."""
        with self._lock:
            if self._in_flight:
                self._backend.interrupt()

    def end_thought(self, request_id: str) -> None:
        """End the reasoning of an answer, running or waiting, as `Thought.end` does; of none without a budget."""
        for sequence in self._slots:
            if sequence.request.request_id == request_id and (thought := sequence.chooser.thought) is not None:
                thought.end()

    def step(self) -> None:
        """Compute one batch and emit its events."""
        self.save_checkpoints()
        if self._threads is not None:
            self._threads.look()
        self.end_aborted_and_late()
        for sequence in self._slots.without_room():
            self._finish(sequence, FinishReason.ABORTED)
        self._slots.start_waiting()
        self._begin_paces()
        self._shift_full()
        runnable = self._adapter_scheduler.next(self._slots.foremost)  # a native batch has one set of adapters
        for sequence in runnable:
            sequence.n_computed = min(sequence.n_computed, self._cache.narrow(sequence.slot_id))
        # Embeddings are a native batch of their own, beside that of the tokens.
        with_text = [sequence for sequence in runnable if sequence.next_media is None]
        with_media = [sequence for sequence in runnable if sequence.next_media is not None]
        self._step_cost.use_copies(are_there=self._backend.has_copies)
        self._drafter.assign(with_text, self._budget)
        batch = schedule(with_text, self._budget_for(with_text))
        self._slots.free_cells_for(batch)
        if batch:
            self._backend.set_adapters(with_text[0].adapters)
            chunks = [sequence.chunk(n_tokens) for sequence, n_tokens in batch.items()]
            self._compute(batch, chunks, self._n_more_steps(batch))
        has_computed = self._step_media(with_media, is_alone=not with_text) or bool(with_text)
        self.is_stalled = not has_computed and any(sequence in self._slots.running for sequence in with_media)

    def follow_load(self) -> None:
        """Let other programs have threads if they compute, while something else than this engine does."""
        if self._threads is not None:
            self._threads.look(may_try=False)

    def save_checkpoints(self) -> None:
        """Save the states that the last step reached. `step` begins with it; the worker calls it earlier, once the last
        step's events are sent."""
        reached, self._at_checkpoints = self._at_checkpoints, []
        for sequence_id in reached:
            self._cache.checkpoint(sequence_id)

    def save_idle_sequence(self) -> bool:
        """Save one finished sequence that is not saved yet. Return False if there is none."""
        return self._cache.save_idle_sequence()

    def prepare_checkpoints(self) -> None:
        self._backend.prepare_checkpoints()

    def forget(self, conversations: Collection[str]) -> None:
        """Drop what is cached and saved of `conversations`, and the texts that drafts are looked up in."""
        self._cache.forget(conversations)
        self._drafter.forget_texts()

    def close(self) -> None:
        """End every request as aborted and free the samplers. The caller closes the backend."""
        for sequence in self._slots:
            self._finish(sequence, FinishReason.ABORTED)

    def check_integrity(self) -> None:
        """Assert that prefix tree, slots and sequences agree; for tests."""
        self._cache.check_integrity()

    # Requests in and out

    def end_aborted_and_late(self) -> None:
        """End the requests that were aborted, or whose time is over. `step` begins with it."""
        if self._aborted:
            with self._lock:
                aborted, self._aborted = self._aborted, set()
            for sequence in self._slots:
                if sequence.request.request_id in aborted:
                    self._finish(sequence, FinishReason.ABORTED)
        now_s = self._clock()
        for sequence in self._slots:
            if sequence.is_timed_out(now_s):
                if text := sequence.output.text.finish():
                    self._emit(Output(sequence.request.request_id, text, sequence.n_output))
                self._finish(sequence, FinishReason.LENGTH)

    def _begin_paces(self) -> None:
        """Time the prompts that begin, also those of preempted answers, which are computed again."""
        for sequence in self._slots.running:
            if sequence.pace is None and not sequence.is_decoding:
                if not sequence.request.reads_ahead:
                    self._read_ahead.ask(sequence.request.conversation, sequence.tokens)
                n_cells = self._cache.n_cells_used if self._facts.passes_over_cells else sequence.n_computed
                sequence.pace = PromptPace(
                    n_tokens=len(sequence.tokens),
                    n_read=sequence.n_computed,
                    at_s=self._clock(),
                    expected=self._prompt_cost,
                    n_beside=max(0, n_cells - sequence.n_computed),
                    busy_s=self._busy_clock(),
                )

    def _observe_pace(self, sequence: Sequence) -> None:
        pace = sequence.pace
        if pace is None:
            return
        pace.observe(sequence.n_computed, self._clock(), self._busy_clock())
        if sequence.n_pending == 0:
            sequence.pace = None
            if pace.n_observed >= _LEARNED_TOKENS and len(self._slots.running) == 1:
                self._prompt_cost = pace.cost

    def _budget_for(self, runnable: Many[Sequence]) -> StepBudget:
        """Return the budget of a step: fewer tokens where prompts are slow, so that their progress shows, an answer
        beside them has short gaps, and threads follow the machine. On processors that costs nothing (1,024 tokens of
        SmolLM2 135M take 7.7 s in steps of 512 and 7.5 s in steps of 128); a GPU gets its weights anew for each."""
        if self._is_deterministic:
            return self._budget
        reads_ahead = bool(runnable) and all(sequence.request.reads_ahead for sequence in runnable)
        if self._facts.uses_gpu and not reads_ahead:
            return self._budget
        paces = [sequence.pace for sequence in runnable if sequence.pace is not None]
        token_s = max((pace.next_token_s for pace in paces), default=0.0)
        n_tokens = self._budget.n_tokens
        most_s = _READ_AHEAD_STEP_S if reads_ahead else _PROMPT_STEP_S
        if token_s * n_tokens > most_s:
            n_least = _LEAST_GPU_STEP if self._facts.uses_gpu else _LEAST_PROMPT_STEP
            n_fewer = max(n_least, int(most_s / token_s) // BLOCK_TOKENS * BLOCK_TOKENS)
            n_tokens = min(n_tokens, n_fewer)
        if any(pace.n_observed == 0 and pace.n_tokens - pace.n_read > n_tokens for pace in paces):
            n_tokens = min(n_tokens, _FIRST_PROMPT_STEP)  # of a long prompt: how fast the machine is now
        if paces and self._threads is not None and (n_trial := self._threads.prompt_step_tokens) is not None:
            n_tokens = min(n_tokens, n_trial)
        if n_tokens == self._budget.n_tokens:
            return self._budget
        n_whole = min(self._budget.n_tokens, int(n_tokens * _WHOLE_PROMPT_SHARE))
        keeps_whole = self._facts.truncation.has_states and not reads_ahead
        return replace(self._budget, n_tokens=n_tokens, n_whole_tokens=n_whole if keeps_whole else 0)

    def _shift_full(self) -> None:
        n_ctx = self._facts.n_ctx
        for sequence in self._slots.running:
            if sequence.is_full and sequence.may_shift:
                n_keep = sequence.n_prompt if sequence.request.n_keep == -1 else sequence.request.n_keep
                n_head, n_discard = plan_shift(len(sequence.tokens), n_keep, n_ctx)
                sequence.n_computed = self._cache.shift(sequence.slot_id, n_head, n_discard)
                self._drafter.release(sequence)  # before the tokens go, of which sources have indexes
                sequence.apply_shift(n_head, n_discard, n_ctx)

    def _finish(self, sequence: Sequence, reason: FinishReason, error: UserError | None = None) -> None:
        sequence.finish_reason = reason
        self._slots.remove(sequence)
        self._drafter.release(sequence)
        sequence.chooser.sampler.close()
        self.counters.n_finished += 1
        request_id = sequence.request.request_id
        if error is not None:
            self._emit(Failed(request_id, ErrorInfo.of(error)))
        else:
            timings = sequence.timings(self._clock())
            self._emit(Finished(request_id, reason, sequence.usage(), timings, sequence.output.text.stopped_by))

    # One batch

    def _step_media(self, waiting: Many[Sequence], *, is_alone: bool) -> bool:
        """Compute a part of a picture or sound of the first of `waiting` whose embeddings are there; False without
        any."""
        for sequence in waiting:
            placed = sequence.next_media
            if placed is None or sequence not in self._slots.running:  # preempted for the batch before
                continue
            embeddings = self._embeddings_for(sequence, placed)
            if embeddings is None:
                continue
            n_tokens = placed.end - sequence.n_computed
            if placed.chunk.is_causal:  # else its tokens attend to later ones and are computed together
                n_tokens = min(n_tokens, self._budget.n_tokens if is_alone else self._budget.n_prefill_tokens)
            batch: Batch = {sequence: n_tokens}
            self._slots.free_cells_for(batch)
            if batch:
                self._backend.set_adapters(sequence.adapters)
                self._compute(batch, [sequence.media_chunk(placed, embeddings, n_tokens)], 0)
            return True
        return False

    def _embeddings_for(self, sequence: Sequence, placed: PlacedChunk) -> Embeddings | None:
        """Return the embeddings of the next chunk, and let those of the one after it be computed meanwhile; end the
        sequence if they cannot be computed."""
        assert self._media is not None, "layouts come from what encodes"
        try:
            embeddings = self._media.get(placed.chunk)
            following = next((other for other in sequence.media if other.begin >= placed.end), None)
            if embeddings is not None and following is not None:
                self._media.get(following.chunk)
        except UserError as error:
            self._finish(sequence, FinishReason.ERROR, error)
            return None
        return embeddings

    def _n_more_steps(self, batch: Batch) -> int:
        """Return how many steps may follow this one without scheduling: the cells for them must be free already."""
        if self._drafter.is_draft_worthwhile or self._slots.n_waiting:
            return 0
        # To return to a state it is held, for which llama.cpp builds its graph anew: no faster than single steps.
        # Without a stop string or a limit at line ends nothing has to go after a run.
        can_reject = self._facts.truncation.is_unlimited
        if not can_reject and any(sequence.may_end_midway for sequence in self._slots.running):
            return 0
        n_free = self._facts.n_cells - self._cache.n_cells_used - sum(batch.values())
        return max(0, min(n_steps_at_once(self._slots.foremost, self._step_cost.single_s) - 1, n_free))

    def _compute(self, batch: Batch, chunks: Many[Chunk], n_more_steps: int) -> None:
        with self._lock:
            if all(sequence.request.request_id in self._aborted for sequence in batch):
                return  # since this step began nobody wants it
            if any(is_in_the_way(batch, request) for request in self._announced.values()):
                return
            self._in_flight = batch if self._may_interrupt(batch) else {}
        if self._threads is not None:
            self._threads.prepare(sum(batch.values()))
        started_s = self._clock()
        try:
            self._hold(batch)
            status = self._backend.decode(chunks)
        except EngineError as error:
            self._fail_batch(batch, error)
            return
        finally:
            with self._lock:
                self._in_flight = {}
        if status is DecodeStatus.DONE:
            are_answers = all(sequence.is_decoding for sequence in batch)
            n_steps = self._accept(batch, n_more_steps)
            self._count_steps(batch, n_steps, self._clock() - started_s, are_answers=are_answers)
        elif status is DecodeStatus.INTERRUPTED:
            for sequence in batch:
                sequence.n_computed = self._cache.truncate(sequence.slot_id, sequence.n_computed)
        elif not (self._cache.evict_one() or self._slots.preempt_without_cells()):
            self._fail_batch(batch, EngineError("The KV cache has no free cells for a batch.", "Use a smaller --ctx."))

    def _may_interrupt(self, batch: Batch) -> bool:
        """Return whether a batch may end midway. What that leaves of states is unknown: they go back to its begin."""
        return self._facts.supports_truncation or (len(batch) == 1 and sum(batch.values()) >= _MIN_INTERRUPTED)

    def _hold(self, batch: Batch) -> None:
        """Hold the sequences that may lose more of this batch than their states allow, or all of it."""
        if self._facts.supports_truncation:
            return
        n_free = self._facts.truncation.n_rejected_freely([*batch.values()])
        for sequence, n_tokens in batch.items():
            may_lose_all = sequence.n_computed > 0 and self._may_interrupt(batch)
            if may_lose_all or n_tokens - sequence.n_pending > n_free:
                self._cache.hold(sequence.slot_id)

    def _fail_batch(self, batch: Batch, error: EngineError) -> None:
        for sequence in batch:
            self._cache.truncate(sequence.slot_id, sequence.n_computed)  # parts of the batch may be in it
            self._finish(sequence, FinishReason.ERROR, error)

    def _count_steps(self, batch: Batch, n_steps: int, duration_s: float, *, are_answers: bool) -> None:
        self.counters.n_steps += n_steps
        self.counters.n_slot_steps += n_steps * len(batch)
        self.counters.busy_s += duration_s
        n_tokens = sum(batch.values())
        if self._threads is not None:
            self._threads.observe(n_tokens, duration_s / n_steps)
        if not are_answers:
            return
        self.counters.n_answer_steps += n_steps
        self.counters.n_answer_step_tokens += n_steps * n_tokens
        # Where sequences have states, llama.cpp computes a batch of unequal shares in parts: no step of that size.
        if self._facts.supports_truncation or len(set(batch.values())) == 1:
            self._step_cost.observe(n_tokens, duration_s / n_steps, len(batch))

    def _accept(self, batch: Batch, n_more_steps: int) -> int:
        """Process the computed batch; return how many steps were run in all."""
        row, n_steps = 0, 1
        for sequence, n_tokens in batch.items():
            begin = sequence.n_computed
            n_known = min(n_tokens, sequence.n_pending)
            if not sequence.is_decoding:
                self.counters.n_prefill_tokens += n_known
            if sequence.request.reads_ahead:
                computed = range(begin, begin + n_known)
                self._read_ahead.read(sequence.request.conversation, sequence.tokens, computed)
            sequence.n_computed += n_known
            sequence.n_repeated = max(0, sequence.n_repeated - n_known)
            self._cache.record_computed(sequence.slot_id, sequence.tokens[begin : begin + n_known])
            self._observe_pace(sequence)
            if (echo := sequence.output.echo) is not None:
                text, logprobs = echo.advance(self._backend, row, begin, n_known)
                if not sequence.n_output:
                    sequence.output.text.begin_at(echo.n_characters)
                if text or logprobs:
                    self._emit(Output(sequence.request.request_id, text, sequence.n_output, logprobs))
            if sequence.n_computed in sequence.checkpoints and n_known == n_tokens:
                self._at_checkpoints.append(sequence.slot_id)
            if sequence.n_pending == 0:
                try:
                    n_steps = self._sample_and_emit(sequence, row + n_known - 1, n_tokens - n_known, n_more_steps)
                except UserError as error:  # a grammar that allows no token ends its own request only
                    # Draft tokens of it may be in the cache beyond what is recorded.
                    self._cache.truncate(sequence.slot_id, sequence.n_computed)
                    self._finish(sequence, FinishReason.ERROR, error)
            row += n_tokens
        return n_steps

    def _sample_and_emit(self, sequence: Sequence, row: int, n_draft: int, n_more_steps: int) -> int:
        """Sample from `row` and the `n_draft` rows after it, drop rejected drafts from the cache, and emit what that
        adds to the answer; return the number of steps run."""
        step = self._verifier.verify(sequence, row, n_draft, n_more_steps)
        if n_draft or n_more_steps:
            # The accepted tokens are computed, the rejected ones go; a state may have to go back further than these.
            begin, end = sequence.n_computed, sequence.n_computed + step.n_accepted
            n_left = self._cache.truncate(sequence.slot_id, end)
            sequence.n_computed, sequence.n_repeated = n_left, end - n_left if n_left else 0
            if n_left == end:
                self._cache.record_computed(sequence.slot_id, sequence.tokens[begin:end])
        if n_draft:
            if sequence.draft.source != FORCED:
                self.counters.drafts[sequence.draft.source].add(n_draft, step.n_accepted)
            self._drafter.record_outcome(sequence, n_draft, step.n_accepted)
        output = sequence.output
        logprobs = () if output.logprobs is None else output.logprobs.release(output.text.n_shown)
        output.has_new_line = output.has_new_line or "\n" in step.text
        tokens: tuple[int, ...] = ()
        if output.unreported:
            tokens = tuple(output.unreported)
            output.unreported.clear()
        if step.text or logprobs or tokens:
            usage = None if output.has_begun else sequence.usage()
            output.has_begun = True
            self._emit(Output(sequence.request.request_id, step.text, sequence.n_output, logprobs, tokens, usage))
        if step.reason is not None:
            self._finish(sequence, step.reason)
        return step.n_steps
