"""From the logits of a computed step to what an answer says: samples, the part of the draft they confirm, the text.

A draft is a point mass wherever it comes from: keeping it just where it equals the sample leaves the distribution of
the output as it was. Owns where an answer ends. Knows nothing of the cache or of who is told.

Several tokens at a time for an answer that runs alone: each step is computed and sampled, the rest is done once.

What Python does between two steps has to come back into the processor's caches, which the weights have swept: 0.45 ms
beside a step of 1.3 ms (the guide on two cores), where the same takes 0.14 ms when it is warm. Owns how many steps are
run at once, and running them. Knows nothing of what is done with the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from typing import NamedTuple

from app.engine.backend import Backend, Chunk, DecodeStatus
from app.engine.loop.counters import Counters
from app.engine.loop.logprobs import score
from app.engine.loop.sequence import Sequence
from app.engine.request import FinishReason, TokenLogprob

__all__ = ["StepOutput", "Verifier", "generate_steps", "n_steps_at_once"]


class StepOutput(NamedTuple):
    """What is added to an answer: tokens that are computed too, text that may be shown, why it ends with that, if so.

    `n_steps` were run for it, the one before that gave the first logits included.
    """

    n_accepted: int
    text: str
    reason: FinishReason | None
    n_steps: int = 1


class Verifier:
    """Samples for sequences of one backend. `on_sample` hears of each token before it is known to the sequence."""

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
        """Sample from `row` and, while the draft is what is sampled, from the `n_draft` rows after it.

        Without a draft, `n_more_steps` may be computed and sampled right behind it. Raises EngineError when that fails,
        RequestError where a grammar allows no token.
        """
        if (reason := _limit_reason(sequence)) is not None:  # only its prompt was asked for
            return StepOutput(0, "", reason)
        token = sequence.sampler.sample(row)
        self._on_sample(sequence, token)
        if n_more_steps:
            sampled = generate_steps(self._backend, sequence, token, n_more_steps)
        else:
            sampled = [token, *self._confirmed(sequence, token, row, n_draft)]
        n_steps = len(sampled) if n_more_steps else 1
        text = ""
        for n_accepted, token in enumerate(sampled):
            offset = sequence.text.n_decoded
            reason, more = self._take(sequence, token)
            self._note_logprob(sequence, row + n_accepted, token, offset)
            text += more
            if reason is not None:
                break
        self._count_output(sequence, n_steps)
        return StepOutput(n_accepted, text, reason, n_steps)

    def _confirmed(self, sequence: Sequence, token: int, row: int, n_draft: int) -> Iterator[int]:
        """Go on sampling behind `token` while the draft is what is sampled."""
        for index in range(n_draft):
            if token != sequence.draft.tokens[index] or self._backend.is_eog(token):
                return
            token = sequence.sampler.sample(row + index + 1)
            yield token

    def _take(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, str]:
        """Append a sampled token; return why the answer ends with it, if so, and the text it makes safe to show."""
        if sequence.first_token_s is None:
            sequence.first_token_s = self._clock()
        if self._backend.is_eog(token):
            return FinishReason.STOP, sequence.text.finish()
        sequence.append(token)
        self._counters.n_decode_tokens += 1
        self._counters.depth_sum += len(sequence.tokens)
        text = sequence.text.push(self._piece(sequence, token))
        if sequence.text.is_stopped:
            return FinishReason.STOP, text
        is_past_time_limit = sequence.is_past_time_limit(text, self._clock())
        reason = FinishReason.LENGTH if is_past_time_limit else _limit_reason(sequence)
        return reason, text + sequence.text.finish() if reason else text

    def _piece(self, sequence: Sequence, token: int) -> bytes:
        return self._backend.piece(token) or sequence.visible_tags.get(token, b"")

    def _note_logprob(self, sequence: Sequence, row: int, token: int, offset: int) -> None:
        """Keep how likely `token` was where the request asks for it; its text begins at character `offset`.

        An end counts where the prompt is told too: who scores a text takes what follows it to be one token.
        """
        is_eog = self._backend.is_eog(token)
        if sequence.logprob_buffer is None or (is_eog and sequence.echo is None):
            return
        logprob, rivals = score(self._backend, row, token, sequence.n_logprobs)
        piece = self._backend.label(token) if is_eog else self._piece(sequence, token)
        entry = TokenLogprob(piece, logprob, rivals, offset)
        sequence.logprob_buffer.add(entry, sequence.text.end)

    def _count_output(self, sequence: Sequence, n_passes: int) -> None:
        now_s = self._clock()
        if sequence.last_output_s is None:
            self._counters.begin(sequence.usage(), sequence.timings(now_s))
        else:
            self._counters.inter_token_s.record(now_s - sequence.last_output_s)
        sequence.last_output_s = now_s
        sequence.n_passes += n_passes


def _limit_reason(sequence: Sequence) -> FinishReason | None:
    return FinishReason.LENGTH if sequence.is_full and not sequence.may_shift else None


_MOST_S = 0.006  # that nobody sees what was sampled, and that nobody else gets a turn
_MOST_STEPS = 8


def n_steps_at_once(running: Many[Sequence], step_s: float | None) -> int:
    """Return how many steps of `step_s` seconds to run before anything else is looked at; 1 but for a lone answer.

    The last token of a context is left to a step of its own.
    """
    if len(running) != 1 or not step_s:
        return 1
    (sequence,) = running
    if not sequence.is_decoding or sequence.draft.tokens or sequence.logprob_buffer is not None:
        return 1
    return max(1, min(_MOST_STEPS, int(_MOST_S / step_s), sequence.limit - len(sequence.tokens) - 1))


def generate_steps(backend: Backend, sequence: Sequence, token: int, n_steps: int) -> list[int]:
    """Return `token`, sampled for `sequence`, and at most `n_steps` that follow; all but the last are computed.

    Ends with an end token, and where the backend has no room. Raises EngineError, or RequestError of a grammar.
    """
    sampled = [token]
    place, position = sequence.slot_id, len(sequence.tokens)
    while len(sampled) <= n_steps and not backend.is_eog(token):
        if backend.decode([Chunk(place, position, [token], 1)]) is not DecodeStatus.DONE:
            break
        token = sequence.sampler.sample(0)
        sampled.append(token)
        position += 1
    return sampled
