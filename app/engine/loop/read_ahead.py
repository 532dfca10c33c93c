"""What is read before a question is asked: how much of it the questions used, and which question has a use for a batch.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from app.common.common_prefix import n_common_prefix
from app.engine.loop.counters import Counters
from app.engine.loop.sequence import Sequence
from app.engine.request import IN_MEMORY, Request

_MAX_CONVERSATIONS = 32  # whose last reading is remembered


def is_in_the_way(batch: Mapping[Sequence, int], request: Request) -> bool:
    """Return whether `request` should not wait for a batch: all of it has a lower priority, and nothing of it is the
    beginning of the request's own prompt. Whether it is, the share of equal characters tells: a prompt is tokenized
    later, by the thread that computes now. A wrong guess costs one step."""
    if any(sequence.request.priority >= request.priority for sequence in batch):
        return False
    return not any(_is_shared(sequence, n_tokens, request) for sequence, n_tokens in batch.items())


def _is_shared(sequence: Sequence, n_tokens: int, request: Request) -> bool:
    ours, theirs = request.prompt, sequence.request.prompt
    other = sequence.request
    if type(ours) is not type(theirs) or (request.lora, request.owner) != (other.lora, other.owner):
        return False
    n_shared = n_common_prefix(theirs, ours) / len(theirs) * sequence.n_prompt
    return sequence.n_computed + n_tokens <= n_shared


@dataclass(slots=True)
class _Reading:
    """The tokens that were read last in a conversation; those at the places in `computed` were computed for it."""

    tokens: list[int]
    computed: list[range]

    @property
    def n_computed(self) -> int:
        return sum(map(len, self.computed))

    def cut(self, n_tokens: int) -> int:
        """Keep the first `n_tokens`; return how many computed ones go."""
        n_before = self.n_computed
        kept = (range(each.start, min(each.stop, n_tokens)) for each in self.computed)
        self.tokens, self.computed = self.tokens[:n_tokens], [each for each in kept if each]
        return n_before - self.n_computed


class ReadAheadCounter:
    """Counts in `counters`, which engines share, the tokens that were read ahead, and those of them that no question
    began with: they were read in vain. Of a conversation nobody has asked in yet this is not known. Requests without a
    conversation are not counted: who sends what is not known of them."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._readings: dict[str, _Reading] = {}  # by conversation, the one read last at the end

    def read(self, conversation: str, tokens: Many[int], computed: range) -> None:
        """Note that `computed` places of a prompt were read ahead."""
        if not conversation:
            return
        reading = self._readings.pop(conversation, None) or _Reading([], [])
        self._counters.n_vain_tokens += reading.cut(n_common_prefix(reading.tokens, list(tokens[: computed.start])))
        reading.tokens = list(tokens[: computed.stop])
        reading.computed.append(computed)
        self._counters.n_read_ahead_tokens += len(computed)
        self._readings[conversation] = reading
        if len(self._readings) > _MAX_CONVERSATIONS:
            self._counters.n_vain_tokens += self._readings.pop(next(iter(self._readings))).n_computed

    def ask(self, conversation: str, tokens: Many[int]) -> None:
        """Note the prompt of a question. The first one of a chat was read before the chat had a name."""
        for name in dict.fromkeys((conversation, IN_MEMORY)) if conversation else ():
            reading = self._readings.get(name)
            if reading is None:
                continue
            n_shared = n_common_prefix(reading.tokens, list(tokens[: len(reading.tokens)]))
            if name == conversation or any(each.start < n_shared for each in reading.computed):
                self._counters.n_vain_tokens += reading.cut(n_shared)
                del self._readings[name]
                return
