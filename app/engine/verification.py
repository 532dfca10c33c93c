"""From the logits of a computed step to what an answer says: samples, the part of the draft they confirm, the text.

A draft is a point mass wherever it comes from: keeping it just where it equals the sample leaves the distribution of
the output as it was. Owns where an answer ends. Knows nothing of the cache or of who is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from app.engine.backend import Backend
from app.engine.counters import Counters
from app.engine.logprobs import score
from app.engine.multi_step import say
from app.engine.request import FinishReason, TokenLogprob
from app.engine.sequence import Sequence

__all__ = ["Said", "Verifier"]


class Said(NamedTuple):
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

    def verify(self, sequence: Sequence, row: int, n_draft: int, n_more_steps: int = 0) -> Said:
        """Sample from `row` and, while the draft is what is sampled, from the `n_draft` rows after it.

        Without a draft, `n_more_steps` may be computed and sampled right behind it. Raises EngineError when that fails,
        RequestError where a grammar allows no token.
        """
        if (reason := _limit_reason(sequence)) is not None:  # only its prompt was asked for
            return Said(0, "", reason)
        token = sequence.sampler.sample(row)
        self._on_sample(sequence, token)
        if n_more_steps:
            said = say(self._backend, sequence, token, n_more_steps)
        else:
            said = [token, *self._confirmed(sequence, token, row, n_draft)]
        n_steps = len(said) if n_more_steps else 1
        text = ""
        for n_accepted, token in enumerate(said):
            offset = sequence.text.n_decoded
            reason, more = self._take(sequence, token)
            self._note_logprob(sequence, row + n_accepted, token, offset)
            text += more
            if reason is not None:
                break
        self._count_output(sequence, n_steps)
        return Said(n_accepted, text, reason, n_steps)

    def _confirmed(self, sequence: Sequence, token: int, row: int, n_draft: int) -> Iterator[int]:
        """Go on sampling behind `token` while the draft is what is sampled."""
        for index in range(n_draft):
            if token != sequence.draft.tokens[index] or self._backend.is_end(token):
                return
            token = sequence.sampler.sample(row + index + 1)
            yield token

    def _take(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, str]:
        """Append a sampled token; return why the answer ends with it, if so, and the text it makes safe to show."""
        if sequence.first_token_s is None:
            sequence.first_token_s = self._clock()
        if self._backend.is_end(token):
            return FinishReason.STOP, sequence.text.finish()
        sequence.append(token)
        self._counters.n_decode_tokens += 1
        self._counters.depth_sum += len(sequence.tokens)
        text = sequence.text.push(self._piece(sequence, token))
        if sequence.text.is_stopped:
            return FinishReason.STOP, text
        is_last_line = sequence.is_last_line(text, self._clock())
        reason = FinishReason.LENGTH if is_last_line else _limit_reason(sequence)
        return reason, text + sequence.text.finish() if reason else text

    def _piece(self, sequence: Sequence, token: int) -> bytes:
        return self._backend.piece(token) or sequence.tags.get(token, b"")

    def _note_logprob(self, sequence: Sequence, row: int, token: int, offset: int) -> None:
        """Keep how likely `token` was where the request asks for it; its text begins at character `offset`.

        An end counts where the prompt is told too: who scores a text takes what follows it to be one token.
        """
        is_end = self._backend.is_end(token)
        if sequence.ledger is None or (is_end and sequence.echo is None):
            return
        logprob, rivals = score(self._backend, row, token, sequence.n_logprobs)
        piece = self._backend.label(token) if is_end else self._piece(sequence, token)
        entry = TokenLogprob(piece, logprob, rivals, offset)
        sequence.ledger.add(entry, sequence.text.end)

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
