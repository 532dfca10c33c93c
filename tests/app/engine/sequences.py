"""Sequences as an admission would make them, for tests of what schedules, drafts and looks up."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many

from app.engine.fake import FakeBackend
from app.engine.loop.sequence import AnswerTimes, Drafting, Sequence, TokenChooser
from app.engine.request import NO_ADAPTERS, AdapterSet, Request, SamplingParams
from app.engine.speculative.cost_model import Acceptance

GREEDY = SamplingParams(temperature=0.0)
_BACKEND = FakeBackend(n_sequences=1)


def new_sequence(
    prompt: Many[int] = (1,),
    answer: Many[int] = (),
    acceptance: Mapping[str, Acceptance] | None = None,
    *,
    arrival: int = 1,
    limit: int = 4096,
    adapters: AdapterSet = NO_ADAPTERS,
    place: int | None = None,
    **request: object,
) -> Sequence:
    """Return a greedy request with an answer so far; in the cache at `place`, all but its last token are computed."""
    chooser = TokenChooser(_BACKEND.new_sampler(GREEDY, ignore_eos=True), _BACKEND.piece)
    sequence = Sequence(
        request=Request(request_id=str(arrival), prompt=tuple(prompt), sampling=GREEDY, **request),  # type: ignore[arg-type]
        arrival=arrival,
        tokens=[*prompt, *answer],
        n_prompt=len(prompt),
        limit=limit,
        chooser=chooser,
        drafting=Drafting(dict(acceptance or {})),
        times=AnswerTimes(0.0),
        adapters=adapters,
    )
    if place is not None:
        sequence.sequence_id, sequence.n_computed = place, len(sequence.tokens) - 1
    return sequence
