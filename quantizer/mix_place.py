"""Where in which model a tensor stands: what llama.cpp's recipe asks before it chooses a type. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LARGE_GQA", "ModelShape", "Place"]

LARGE_GQA = 4
_MIXTRAL_EXPERTS = 8
# (architecture, layers) that llama.cpp takes for a 70B model; a llama must also share key-value heads
_SEVENTY_B = {("llama", 80), ("qwen2", 80), ("deci", 80), ("olmo", 80), ("jais2", 68)}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The few hyperparameters that the recipe looks at."""

    architecture: str
    n_layers: int
    n_heads: int = 0
    n_kv_heads: int = 0
    n_experts: int = 0

    @property
    def n_gqa(self) -> int:
        """Query heads for each key-value head."""
        return self.n_heads // self.n_kv_heads if self.n_kv_heads else 0

    @property
    def is_70b(self) -> bool:
        """The one model size that llama.cpp treats apart."""
        is_shared = self.architecture != "llama" or self.n_heads != self.n_kv_heads
        return is_shared and (self.architecture, self.n_layers) in _SEVENTY_B


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the model a tensor stands: the `ordinal`-th of `count` of its kind."""

    ordinal: int
    count: int
    shape: ModelShape
    has_imatrix: bool

    @property
    def is_early(self) -> bool:
        return self.ordinal < self.count // 8

    @property
    def wants_more_bits(self) -> bool:
        """The first and last eighth, and every third in between."""
        eighth = self.count // 8
        return self.is_early or self.ordinal >= 7 * self.count // 8 or (self.ordinal - eighth) % 3 == 2

    @property
    def is_large_gqa(self) -> bool:
        return self.shape.n_gqa >= LARGE_GQA

    @property
    def is_falcon(self) -> bool:
        return self.shape.architecture == "falcon"

    @property
    def is_mixtral(self) -> bool:
        return self.shape.n_experts == _MIXTRAL_EXPERTS
