"""Types that the user sets by hand for some tensors, against llama.cpp's type rules.

Owns parsing `REGEX=TYPE` and deciding which setting applies to a tensor; whether the type fits is decided in
`quantizer.mix.type_rules`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from quantizer.gguf.tensor_types import WEIGHT_TYPES, TensorType
from quantizer.system.errors import UsageError

_MAX_PATTERN_CHARS = 1000
_EMBEDDING, _LAYER_EMBEDDING, _OUTPUT = "token_embd.weight", "per_layer_token_embd.weight", "output.weight"


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """Tensors whose name matches `pattern` become `kind`."""

    pattern: str
    kind: TensorType

    def matches(self, name: str) -> bool:
        return re.search(self.pattern, name) is not None


@dataclass(frozen=True, slots=True)
class Overrides:
    """All types set by hand: of several matching patterns, the first counts.

    `by_name` is a whole mix, which was found with the other settings in mind and has priority.
    """

    tensors: tuple[TensorOverride, ...] = ()
    output: TensorType | None = None
    embedding: TensorType | None = None
    by_name: Mapping[str, TensorType] = field(default_factory=dict)

    def type_of(self, name: str, is_tied: bool) -> TensorType | None:
        """Return the type set for the tensor called `name`; `is_tied` when the embedding is the output as well.

        A setting for one tensor has priority over a pattern, as in llama.cpp (src/llama-quant.cpp,
        llama_tensor_get_type).
        """
        named = self.by_name.get(name) or {_EMBEDDING: self.embedding, _OUTPUT: self.output}.get(name)
        if named is not None:
            return named
        matching = next((override.kind for override in self.tensors if override.matches(name)), None)
        if matching is not None:
            return matching
        return {_EMBEDDING: self.output if is_tied else None, _LAYER_EMBEDDING: self.embedding}.get(name)

    def unused(self, names: Sequence[str]) -> Iterator[str]:
        """Yield each setting that applies to none of the tensors called `names`."""
        for override in self.tensors:
            if not any(override.matches(name) for name in names):
                yield f"--tensor {override.pattern}={override.kind.name}"
        if self.output is not None and _OUTPUT not in names and _EMBEDDING not in names:
            yield f"--output-type {self.output.name}"
        if self.embedding is not None and _EMBEDDING not in names:
            yield f"--embedding-type {self.embedding.name}"


def parse_override(text: str) -> TensorOverride:
    """Parse `REGEX=TYPE`. Raises UsageError when either half is invalid."""
    pattern, equals, name = text.rpartition("=")
    if not equals or not pattern:
        raise UsageError(f"{text!r} is not of the form REGEX=TYPE.", "Write it like 'ffn_down=Q6_K'.")
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise UsageError(f"A pattern of {len(pattern)} characters is too long.", "Split it.")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        cause = f"{pattern!r} is no regular expression: {error}."
        raise UsageError(cause, "Put a backslash before ( [ * +.") from error
    return TensorOverride(pattern, weight_type_named(name))


def weight_type_named(name: str) -> TensorType:
    """Return the storage type of weights called `name`, in any case. Raises UsageError listing all."""
    kind = WEIGHT_TYPES.get(name.upper())
    if kind is None:
        raise UsageError(f"There is no tensor type {name!r}.", f"Choose one of {', '.join(WEIGHT_TYPES)}.")
    return kind
