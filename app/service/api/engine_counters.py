"""The engine's counters -> the `counters` of a model in /api/localllm/status.

Owns these fields. Knows nothing of how they were counted.
"""

from __future__ import annotations

import math

from app.engine import counters as engine
from app.engine.histogram import Histogram
from app.service.api.localllm_objects import Counters, Spread

__all__ = ["counters_of"]


def counters_of(counters: engine.Counters) -> Counters:
    """Return sums since the engine started, shares and rates of them, and how waits were spread.

    `cached_share` is of prompt tokens; rates are tokens a second as each answer got them. All begin at 0 again with a
    new worker.
    """
    return {
        "n_steps": counters.n_steps,
        "busy_s": counters.busy_s,
        "n_finished": counters.n_finished,
        "n_prompt_tokens": counters.n_prompt_tokens,
        "n_cached_tokens": counters.n_cached_tokens,
        "cached_share": counters.cached_share,
        "prefill_tokens_per_s": counters.prefill_rate,
        "n_output_tokens": counters.n_decode_tokens,
        "decode_tokens_per_s": counters.decode_rate,
        "n_drafted_tokens": counters.n_drafted_tokens,
        "n_accepted_tokens": counters.n_accepted_tokens,
        "first_token_s": _spread(counters.first_token_s),
        "inter_token_s": _spread(counters.inter_token_s),
    }


def _spread(histogram: Histogram) -> Spread:
    """Return count, sum, median, 95th percentile (null before the first) and the buckets in use.

    A bucket is (upper bound, count); the bound of the last one is null where there is none.
    """
    return {
        "count": histogram.n_samples,
        "sum": histogram.total,
        "p50": histogram.quantile(0.5),
        "p95": histogram.quantile(0.95),
        "buckets": [(None if math.isinf(bound) else bound, count) for bound, count in histogram.buckets()],
    }
