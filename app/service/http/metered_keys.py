"""Temporary API keys that may only ask models, and what was asked with each.

Owns the keys, which end with the program that got them, and the sums. Independent of routes and of how answers come.
"""

from __future__ import annotations

import hashlib
import secrets
import statistics
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from app.engine.request import Timings, Usage
from app.protocol.errors import RequestError
from app.protocol.metering import MeteredKey, MeteredUsage

_PREFIX = "llm-run-"
_N_SECRET_BYTES, _N_ID_BYTES = 32, 8
_MOST_OPEN = 256
_MOST_TIMES = 10_000  # of the last answers, for the median


@dataclass(slots=True, eq=False)
class UsageMeter:
    """What the requests with one key used."""

    _sums: MeteredUsage = field(default_factory=MeteredUsage)
    _first_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_TIMES))
    _has_tools: bool = False

    def add_answer(self, usage: Usage, timings: Timings, *, has_tools: bool) -> None:
        """Add an answer that has ended."""
        sums = self._sums
        is_first = not sums.n_answers or (has_tools and not self._has_tools)
        self._has_tools |= has_tools
        self._first_token_s.append(timings.time_to_first_token_s)
        self._sums = replace(
            sums,
            n_answers=sums.n_answers + 1,
            n_prompt_tokens=sums.n_prompt_tokens + usage.n_prompt_tokens,
            n_cached_tokens=sums.n_cached_tokens + usage.n_cached_tokens,
            n_output_tokens=sums.n_output_tokens + usage.n_output_tokens,
            prefill_s=sums.prefill_s + timings.prefill_s,
            decode_s=sums.decode_s + timings.decode_s,
            n_first_prompt_tokens=usage.n_prompt_tokens if is_first else sums.n_first_prompt_tokens,
            n_first_cached_tokens=usage.n_cached_tokens if is_first else sums.n_first_cached_tokens,
        )

    def add_failure(self) -> None:
        """Count a request that got an error."""
        self._sums = replace(self._sums, n_failed=self._sums.n_failed + 1)

    @property
    def usage(self) -> MeteredUsage:
        """The sums so far."""
        times = self._first_token_s
        return replace(self._sums, first_token_s=statistics.median(times) if times else None)


class MeteredKeys:
    """The open keys. A secret is kept as its hash, so that looking one up tells nothing by its time."""

    def __init__(self) -> None:
        self._by_hash: dict[bytes, UsageMeter] = {}
        self._by_id: dict[str, UsageMeter] = {}

    @contextmanager
    def open(self) -> Iterator[MeteredKey]:
        """Give a new key that is valid inside the context. Raises RequestError where there are too many."""
        if len(self._by_id) >= _MOST_OPEN:
            raise RequestError(f"There are {_MOST_OPEN} temporary keys already.", "End a program that has one.")
        key = MeteredKey(secrets.token_hex(_N_ID_BYTES), _PREFIX + secrets.token_urlsafe(_N_SECRET_BYTES))
        self._by_id[key.id] = self._by_hash[_hash(key.secret)] = UsageMeter()
        try:
            yield key
        finally:
            del self._by_id[key.id], self._by_hash[_hash(key.secret)]

    def of_secret(self, secret: str) -> UsageMeter | None:
        """Return the meter of the key that a request came with, None for any other key."""
        return self._by_hash.get(_hash(secret)) if secret.startswith(_PREFIX) else None

    def of_id(self, key_id: str) -> UsageMeter | None:
        """Return the meter of the key that routes call `key_id`, None where it has ended."""
        return self._by_id.get(key_id)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
