"""Sampling and draft verification: a computed step's logits become accepted tokens, text and perhaps an end.

A drafted token is accepted only where it equals the sample, whatever its source: that leaves the output's distribution
unchanged. Independent of the cache and of receivers.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from math import ceil
from typing import NamedTuple

from app.engine.backend import Backend, Choice, Chunk, DecodeStatus
from app.engine.loop.counters import Counters
from app.engine.loop.output import score, score_choice
from app.engine.loop.sequence import Sequence
from app.engine.request import FinishReason, TokenLogprob

OUTPUT_INTERVAL_S = 0.04  # of each running answer, as in films: 25 messages a second take 1 % of a processor
_MAX_STEPS = 8


class StepOutput(NamedTuple):
    """Output of a step: accepted tokens that are computed too, text to show, and the finish reason, if any. `n_steps`
    were run for it, including the one that gave the first logits."""

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
        """Sample from `row` and, while samples equal the draft, from the `n_draft` rows after it. Without a draft, up
        to `n_more_steps` are computed and sampled as well. Raises EngineError if that fails, RequestError if a grammar
        allows no token."""
        if (reason := _limit_reason(sequence)) is not None:  # max_tokens is 0
            return StepOutput(0, "", reason)
        choices: list[Choice] = []  # where probabilities after the samplers are wanted
        token = self._next(sequence, row, choices)
        self._on_sample(sequence, token)
        if n_more_steps:
            sampled = self._generate(sequence, token, n_more_steps)
        else:
            sampled = [token]
            for drafted in sequence.draft.tokens[:n_draft]:
                if token != drafted or self._backend.is_eog(token):
                    break
                token = self._next(sequence, row + len(sampled), choices)
                sampled.append(token)
        text = ""
        for n_accepted, token in enumerate(sampled):
            offset = sequence.output.text.n_decoded
            reason, more = self._append(sequence, token)
            if sequence.output.logprobs is not None:
                choice = choices[n_accepted] if choices else None
                self._note_logprob(sequence, row + n_accepted, token, offset, choice)
            text += more
            if reason is not None:
                break
        n_steps = len(sampled) if n_more_steps else 1
        now_s, times = self._clock(), sequence.times
        if times.last_output_s is None:
            self._counters.begin(sequence.usage(), sequence.timings(now_s))
        else:
            self._counters.inter_token_s.record(now_s - times.last_output_s)
        times.last_output_s = now_s
        sequence.n_passes += n_steps
        return StepOutput(n_accepted, text, reason, n_steps)

    def _next(self, sequence: Sequence, row: int, choices: list[Choice]) -> int:
        """Return the next token of `sequence`; add what it was chosen from to `choices` where that is wanted."""
        if sequence.output.logprobs is not None and sequence.request.logprobs_after_samplers:
            choices.append(sequence.chooser.choice(row))
        return sequence.chooser.next(row)

    def _generate(self, sequence: Sequence, token: int, n_steps: int) -> list[int]:
        """Return `token`, sampled for `sequence`, and up to `n_steps` that follow; all but the last are computed. Stops
        at an end token, where a thought is ended, and without free cells."""
        backend, chooser = self._backend, sequence.chooser
        sampled = [token]
        position = len(sequence.tokens)
        while len(sampled) <= n_steps and not chooser.forced and not backend.is_eog(token):
            if backend.decode([Chunk(sequence.slot_id, position, [token], 1)]) is not DecodeStatus.DONE:
                break
            token = chooser.next(0)
            sampled.append(token)
            position += 1
        return sampled

    def _append(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, str]:
        """Append a sampled token; return the finish reason, if any, and the text to show."""
        text_out = sequence.output.text
        if sequence.request.returns_tokens:
            sequence.output.unreported.append(token)
        if sequence.times.first_token_s is None:
            sequence.times.first_token_s = self._clock()
        if self._backend.is_eog(token):
            return FinishReason.STOP, text_out.finish()
        sequence.append(token)
        self._counters.n_decode_tokens += 1
        self._counters.depth_sum += len(sequence.tokens)
        self._counters.n_most_tokens = max(self._counters.n_most_tokens, len(sequence.tokens))
        text = text_out.push(sequence.chooser.piece(token))
        if text_out.is_stopped:
            return FinishReason.STOP, text
        is_late = sequence.request.max_predict_s is not None and sequence.is_past_time_limit(text, self._clock())
        reason = FinishReason.LENGTH if is_late else _limit_reason(sequence)
        return reason, text + text_out.finish() if reason else text

    def _note_logprob(self, sequence: Sequence, row: int, token: int, offset: int, choice: Choice | None) -> None:
        """Record the log probability of `token`, whose text begins at character `offset`. An end token is recorded only
        where it is the whole answer, as in llama-server's, and with `echo`: who scores a text expects one after it."""
        output, is_eog = sequence.output, self._backend.is_eog(token)
        if output.logprobs is None or (is_eog and output.echo is None and sequence.n_output):
            return
        n_top = sequence.request.n_logprobs or 0
        if choice is None:
            logprob, alternatives = score(self._backend, row, token, n_top)
        else:
            logprob, alternatives = score_choice(self._backend, choice, token, n_top)
        piece = self._backend.label(token) if is_eog else sequence.chooser.piece(token)
        output.logprobs.add(TokenLogprob(piece, logprob, alternatives, offset, token), output.text.end)


def _limit_reason(sequence: Sequence) -> FinishReason | None:
    return FinishReason.LENGTH if sequence.is_full and not sequence.may_shift else None


def n_steps_at_once(running: Many[Sequence], step_s: float | None) -> int:
    """Return how many steps of `step_s` seconds to run without scheduling: more than 1 only for a lone answer. As many
    as pass until its text is sent: beside steps of 30 ms, which leave the processor's caches cold, the bookkeeping
    between two takes 0.35 ms. The last token of a context gets a step of its own."""
    if len(running) != 1 or not step_s:
        return 1
    (sequence,) = running
    if not sequence.is_decoding or sequence.draft.tokens or sequence.output.logprobs is not None:
        return 1
    return max(1, min(_MAX_STEPS, ceil(OUTPUT_INTERVAL_S / step_s), sequence.limit - len(sequence.tokens) - 1))
