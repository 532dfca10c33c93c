"""How often something that failed is tried again, and after how long. Pure but for chance."""

from __future__ import annotations

import random
from dataclasses import dataclass

from app.library.download.replies import FaultError

__all__ = ["Retries", "RetryPolicy"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Waits grow from `first_wait_s` by doubling to `longest_wait_s`; after `n_attempts` in vain it is given up.

    A server that asks for more time gets it, up to `most_patience_s`. A connection that says nothing for `stall_s` is
    taken for dead.
    """

    n_attempts: int = 9
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    most_patience_s: float = 300.0
    stall_s: float = 30.0


class Retries:
    """The attempts at one thing. `n_faults` counts those in vain since there was progress."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.n_faults = 0
        self._policy = policy

    def progressed(self) -> None:
        """Begin to count anew: something came."""
        self.n_faults = 0

    def wait_s(self, fault: FaultError) -> float:
        """Return how long to wait after `fault`. Raises `fault` when it was the last attempt."""
        self.n_faults += 1
        if self.n_faults >= self._policy.n_attempts or fault.wait_s > self._policy.most_patience_s:
            raise fault
        grown = min(self._policy.first_wait_s * 2.0 ** (self.n_faults - 1), self._policy.longest_wait_s)
        return max(fault.wait_s, grown * random.uniform(0.5, 1.0))  # so that connections do not come back at once
