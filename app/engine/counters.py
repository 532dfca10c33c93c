"""What an engine has done so far, in plain sums: the service makes rates and shares of them.

Owns the list of what is counted. Knows nothing of who asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.tuning import Work

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Tokens, steps and seconds since the engine began. `depth_sum` adds up how deep each decoded token lay."""

    n_steps: int = 0
    busy_s: float = 0.0
    n_prefill_tokens: int = 0
    n_cached_tokens: int = 0
    n_decode_tokens: int = 0
    n_drafted_tokens: int = 0
    n_accepted_tokens: int = 0
    depth_sum: int = 0

    def work(self) -> Work | None:
        """Return what the engine was used for, None before it has answered anything."""
        if not self.n_decode_tokens:
            return None
        return Work(self.n_prefill_tokens, self.n_decode_tokens, self.depth_sum // self.n_decode_tokens)
