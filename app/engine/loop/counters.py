"""Counters of an engine, with histograms in fixed buckets that are the same in every process, so that they add up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from app.engine.request import Timings, Usage

# Upper bounds, inclusive, a quarter octave each from 61 µs (or tok/s) to 65,536; larger values have their own bucket.
BOUNDS: tuple[float, ...] = tuple(2.0 ** (quarters / 4) for quarters in range(-14 * 4, 16 * 4 + 1))


@dataclass(slots=True)
class Histogram:
    """A distribution: `counts[i]` values were at most BOUNDS[i] and above the previous bound; `total` is their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def record(self, value: float) -> None:
        self.counts[bisect_left(BOUNDS, value)] += 1
        self.total += value

    @property
    def n_samples(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Return the quantile of `share` (0 to 1) of values spread evenly over their bucket, those above the last bound
        at that bound; None without values."""
        rank = share * self.n_samples
        for index, n_so_far in enumerate(accumulate(self.counts)):
            if self.counts[index] and n_so_far >= rank:
                low = BOUNDS[index - 1] if index else 0.0
                high = BOUNDS[min(index, len(BOUNDS) - 1)]
                return low + (1 - (n_so_far - rank) / self.counts[index]) * (high - low)
        return None

    def buckets(self) -> Sequence[tuple[float, int]]:
        """Return (upper bound, count) of the nonempty buckets, ascending; the last bound is infinity."""
        return [(bound, count) for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True) if count]

    def __add__(self, other: Histogram) -> Histogram:
        counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(counts, self.total + other.total)


@dataclass(slots=True)
class DraftCounts:
    n_drafts: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_verified: int = 0  # of the drafted tokens: those accepted, and the first one that was not

    def add(self, n_drafted: int, n_accepted: int) -> None:
        self.n_drafts += 1
        self.n_drafted += n_drafted
        self.n_accepted += n_accepted
        self.n_verified += min(n_accepted + 1, n_drafted)


@dataclass(slots=True)
class Counters:
    """Sums since the engine's start, and histograms of latencies.

    Each step counts in `n_slot_steps` once for each sequence that it computes. `depth_sum` is the sum of the positions
    of decoded tokens, `n_most_tokens` the greatest length of a sequence. `n_answer_steps` had no prompts; their
    `n_answer_step_tokens` count drafts, rejected ones too. A prompt is counted at its first output token:
    `n_prompt_tokens`, of which `n_cached_tokens` were cached, the others computed in `prefill_s` seconds.
    `n_read_ahead_tokens` were computed before a question was asked, `n_vain_tokens` of them for none.
    `first_token_s` is the time to first token, queue included; `inter_token_s` that between two outputs of an answer,
    where an accepted draft is one output. `drafts` is by source.
    """

    n_steps: int = 0
    n_slot_steps: int = 0
    busy_s: float = 0.0
    n_finished: int = 0
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_prefill_tokens: int = 0
    n_read_ahead_tokens: int = 0
    n_vain_tokens: int = 0
    prefill_s: float = 0.0
    n_decode_tokens: int = 0
    n_answer_steps: int = 0
    n_answer_step_tokens: int = 0
    depth_sum: int = 0
    n_most_tokens: int = 0
    drafts: dict[str, DraftCounts] = field(default_factory=dict)
    first_token_s: Histogram = field(default_factory=Histogram)
    inter_token_s: Histogram = field(default_factory=Histogram)

    def begin(self, usage: Usage, timings: Timings) -> None:
        self.n_prompt_tokens += usage.n_prompt_tokens
        self.n_cached_tokens += usage.n_cached_tokens
        self.prefill_s += timings.prefill_s
        self.first_token_s.record(timings.time_to_first_token_s)

    @property
    def n_drafts(self) -> int:
        return sum(tally.n_drafts for tally in self.drafts.values())

    @property
    def slots_per_step(self) -> float:
        return self.n_slot_steps / self.n_steps if self.n_steps else 0.0

    @property
    def n_drafted_tokens(self) -> int:
        return sum(tally.n_drafted for tally in self.drafts.values())

    @property
    def n_accepted_tokens(self) -> int:
        return sum(tally.n_accepted for tally in self.drafts.values())

    @property
    def cached_share(self) -> float:
        return self.n_cached_tokens / self.n_prompt_tokens if self.n_prompt_tokens else 0.0

    @property
    def prefill_rate(self) -> float:
        """Computed prompt tokens a second, each prompt timed by itself; concurrent prompts share the speed."""
        return (self.n_prompt_tokens - self.n_cached_tokens) / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens a second of an answer after its first."""
        decode_s = self.inter_token_s.total
        return (self.n_decode_tokens - self.first_token_s.n_samples) / decode_s if decode_s else 0.0
