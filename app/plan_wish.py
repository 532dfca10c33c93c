"""What a plan is asked for: a model, how it is wanted, and where.

Owns the value, as the service and its client share it. Knows nothing of how a plan is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["PlanWish"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWish:
    """`model` is a name or a path, empty for the service's default. 0, "" and None are what the service's settings say,
    or for a model that is loaded again, what it is loaded with. `context_shift` changes no plan.

    `gpu_layers` are layers by names of GPUs, the output counted as one; None leaves them to the planner. `vram`
    (NAME=SIZE[@SPEED] each) and `ram` (SIZE[@SPEED]) describe another machine than the service's. With `is_full`
    llama.cpp is asked what it would compute in and ways out are planned too, which takes seconds and not milliseconds;
    with `is_fresh` memory is looked at anew.
    """

    model: str = ""
    n_ctx: int = 0
    kv_type: str = ""
    n_sequences: int = 0
    n_threads: int = 0
    context_shift: bool | None = None
    gpu_layers: Mapping[str, int] | None = None
    vram: tuple[str, ...] = ()
    ram: str = ""
    is_full: bool = False
    is_fresh: bool = False

    @property
    def is_here(self) -> bool:
        """Whether it is asked for the machine of the service."""
        return not self.vram and not self.ram

    def as_json(self) -> dict[str, Any]:
        """Return the wish as JSON takes it."""
        return asdict(self)
