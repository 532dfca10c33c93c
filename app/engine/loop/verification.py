"""Sampling and draft verification: a computed step's logits become accepted tokens, text and perhaps an end.

A draft is a point mass whatever its source: accepting it only where it equals the sample leaves the output's
distribution unchanged. Independent of the cache and of receivers.

An answer that runs alone gets as many steps at once as pass until its text is sent, with sampling but no bookkeeping in
between: beside steps of 30 ms, which leave the processor's caches cold, the bookkeeping of one takes 0.35 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from math import ceil
from typing import NamedTuple

from app.engine.backend import Backend, Chunk, DecodeStatus
from app.engine.loop.counters import Counters
from app.engine.loop.output import score
from app.engine.loop.sequence import Sequence
from app.engine.request import FinishReason, TokenLogprob

OUTPUT_INTERVAL_S = 0.04  # of each running answer, as in films: 25 messages a second take 1 % of a processor
_MAX_STEPS = 8


class StepOutput(NamedTuple):
    """Output of a step: accepted tokens that are computed too, text to show, and the finish reason, if any.

    `n_steps` were run for it, including the one that gave the first logits.
    """

    n_accepted: int
    text: str
    reason: FinishReason | None
    n_steps: int = 1


class Verifier:
    """Sampling for sequences of one backend. `on_sample` gets each token before it is appended to the sequence."""

    def __init__(
        self,
        backend: Backend,
        counters: Counters,
        on_sample: Callable[[Sequence, int], None],
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._counters = counters
        self._on_sample = on_sample
        self._clock = clock

    def verify(self, sequence: Sequence, row: int, n_draft: int, n_more_steps: int = 0) -> StepOutput:
        """Sample from `row` and, while samples equal the draft, from the `n_draft` rows after it.

        Without a draft, up to `n_more_steps` are computed and sampled as well. Raises EngineError if that fails,
        RequestError if a grammar allows no token.
        """
        if (reason := _limit_reason(sequence)) is not None:  # max_tokens is 0
            return StepOutput(0, "", reason)
        token = sample_next(self._backend, sequence, row)
        self._on_sample(sequence, token)
        if n_more_steps:
            sampled = generate_steps(self._backend, sequence, token, n_more_steps)
        else:
            sampled = [token, *self._confirmed(sequence, token, row, n_draft)]
        n_steps = len(sampled) if n_more_steps else 1
        text = ""
        for n_accepted, token in enumerate(sampled):
            offset = sequence.text.n_decoded
            if sequence.request.returns_tokens:
                sequence.unreported.append(token)
            reason, more = self._take(sequence, token)
            self._note_logprob(sequence, row + n_accepted, token, offset)
            text += more
            if reason is not None:
                break
        self._count_output(sequence, n_steps)
        return StepOutput(n_accepted, text, reason, n_steps)

    def _confirmed(self, sequence: Sequence, token: int, row: int, n_draft: int) -> Iterator[int]:
        """Sample on after `token` while samples equal the draft."""
        for index in range(n_draft):
            if token != sequence.draft.tokens[index] or self._backend.is_eog(token):
                return
            token = sample_next(self._backend, sequence, row + index + 1)
            yield token

    def _take(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, str]:
        """Append a sampled token; return the finish reason, if any, and the text to show."""
        if sequence.first_token_s is None:
            sequence.first_token_s = self._clock()
        if self._backend.is_eog(token):
            return FinishReason.STOP, sequence.text.finish()
        sequence.append(token)
        self._counters.n_decode_tokens += 1
        self._counters.depth_sum += len(sequence.tokens)
        text = sequence.text.push(_piece(self._backend, sequence, token))
        if sequence.text.is_stopped:
            return FinishReason.STOP, text
        is_past_time_limit = sequence.is_past_time_limit(text, self._clock())
        reason = FinishReason.LENGTH if is_past_time_limit else _limit_reason(sequence)
        return reason, text + sequence.text.finish() if reason else text

    def _note_logprob(self, sequence: Sequence, row: int, token: int, offset: int) -> None:
        """Record the log probability of `token` if requested; its text begins at character `offset`.

        An end token is recorded only with `echo`: clients that score a text expect one token after it.
        """
        is_eog = self._backend.is_eog(token)
        if sequence.logprob_buffer is None or (is_eog and sequence.echo is None):
            return
        logprob, alternatives = score(self._backend, row, token, sequence.n_logprobs)
        piece = self._backend.label(token) if is_eog else _piece(self._backend, sequence, token)
        entry = TokenLogprob(piece, logprob, alternatives, offset, token)
        sequence.logprob_buffer.add(entry, sequence.text.end)

    def _count_output(self, sequence: Sequence, n_passes: int) -> None:
        now_s = self._clock()
        if sequence.last_output_s is None:
            self._counters.begin(sequence.usage(), sequence.timings(now_s))
        else:
            self._counters.inter_token_s.record(now_s - sequence.last_output_s)
        sequence.last_output_s = now_s
        sequence.n_passes += n_passes


def sample_next(backend: Backend, sequence: Sequence, row: int) -> int:
    """Return the token after `row`: the next one that is forced, else a sample. Raises as `Sampler` does."""
    thought, calls = sequence.thought, sequence.calls
    was_thought = thought is not None and thought.is_running
    if thought is not None and thought.forced:
        token = thought.forced.popleft()
        sequence.sampler.accept(token)
    elif calls is not None and calls.forced:
        token = calls.forced.popleft()
        sequence.sampler.accept(token)
    else:
        token = sequence.sampler.sample(row) if calls is None else calls.sample(row, is_thought=was_thought)
        if thought is not None:
            thought.observe(_piece(backend, sequence, token))
    if calls is not None:
        calls.follow(token, was_thought=was_thought, is_thought=thought is not None and thought.is_running)
    return token


def _piece(backend: Backend, sequence: Sequence, token: int) -> bytes:
    return backend.piece(token) or sequence.visible_tags.get(token, b"")


def _limit_reason(sequence: Sequence) -> FinishReason | None:
    return FinishReason.LENGTH if sequence.is_full and not sequence.may_shift else None


def n_steps_at_once(running: Many[Sequence], step_s: float | None) -> int:
    """Return how many steps of `step_s` seconds to run without scheduling: more than 1 only for a lone answer.

    So many as pass until its text is sent. The last token of a context gets a step of its own.
    """
    if len(running) != 1 or not step_s:
        return 1
    (sequence,) = running
    if not sequence.is_decoding or sequence.draft.tokens or sequence.logprob_buffer is not None:
        return 1
    return max(1, min(_MAX_STEPS, ceil(OUTPUT_INTERVAL_S / step_s), sequence.limit - len(sequence.tokens) - 1))


def generate_steps(backend: Backend, sequence: Sequence, token: int, n_steps: int) -> list[int]:
    """Return `token`, sampled for `sequence`, and up to `n_steps` that follow; all but the last are computed.

    Stops at an end token, where a thought is ended, and without free cells. Raises EngineError, and RequestError if a
    grammar allows no token.
    """
    sampled = [token]
    position = len(sequence.tokens)
    while len(sampled) <= n_steps and not sequence.forced and not backend.is_eog(token):
        if backend.decode([Chunk(sequence.slot_id, position, [token], 1)]) is not DecodeStatus.DONE:
            break
        token = sample_next(backend, sequence, 0)
        sampled.append(token)
        position += 1
    return sampled
