"""The options of a plan: what `localllm quantize` takes beside source, type and output. Plain values, for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.mix.type_rules import Overrides, parse_override, weight_type_named


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options beside the type; files of at most `max_shard_bytes`, 0 for one file.

    `imatrix` is the path of an importance matrix of the same model, `base` that of the model that an adapter or a draft
    head is for; empty for none. `removed_layers` are left out; `overrides` then match the new numbers of the others.
    `projector` is one of PROJECTOR_TYPES, NO_PROJECTOR, or empty: the usual type where the source has one. `mix` has
    types by the name of the tensor and overrides the other types. `metadata` are further rows of it, all texts.
    """

    tensor_types: tuple[str, ...] = ()
    output_type: str = ""
    embedding_type: str = ""
    mix: Mapping[str, str] = field(default_factory=dict)
    max_shard_bytes: int = 0
    keep_split: bool = False
    imatrix: str = ""
    base: str = ""
    removed_layers: tuple[int, ...] = ()
    projector: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def overrides(self) -> Overrides:
        """Return the types that are set. Raises UsageError for wrong ones."""
        return Overrides(
            tuple(parse_override(text) for text in self.tensor_types),
            weight_type_named(self.output_type) if self.output_type else None,
            weight_type_named(self.embedding_type) if self.embedding_type else None,
            {name: tensor_type_named(kind) for name, kind in self.mix.items()},
        )
