"""What the KV cache stores its keys and values as, and how many bytes that takes. Pure.

Owns the names of the types, what llama.cpp demands of them, and the arithmetic. Knows nothing of free memory.
Source: `kv_cache_types` in common/arg.cpp and `llama_init_from_model` in src/llama-context.cpp, as vendored in
llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantizer.errors import UsageError
from quantizer.kv_shape import KvShape
from quantizer.tensor_types import TensorType, tensor_type_named

__all__ = ["KV_TYPES", "KvTypes", "bytes_per_cell", "can_have", "check_kv_types", "parse_kv_types"]

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")  # from most to fewest bits


@dataclass(frozen=True, slots=True)
class KvTypes:
    """The types of keys and of values, by their names in `KV_TYPES`."""

    k: str = "f16"
    v: str = "f16"

    def __str__(self) -> str:
        return self.k if self.k == self.v else f"{self.k},{self.v}"

    @property
    def needs_flash_attention(self) -> bool:
        """Whether only fused attention can read the values: llama.cpp stores them transposed without it."""
        return _type(self.v).is_quantized

    @property
    def ids(self) -> tuple[int, int]:
        """ggml's numbers of both types."""
        return _type(self.k).type_id, _type(self.v).type_id

    def n_bytes(self, k_elements: int, v_elements: int) -> int:
        """Bytes of keys and values of so many elements, which must be whole blocks."""
        return _type(self.k).row_bytes(k_elements) + _type(self.v).row_bytes(v_elements)


def parse_kv_types(text: str) -> KvTypes:
    """Return what `TYPE` or `K_TYPE,V_TYPE` means; an empty text is f16. Raises UsageError for any other name."""
    names = text.lower().split(",") if text else ["f16"]
    if len(names) > 2 or any(name not in KV_TYPES for name in names):
        remedy = f"Give TYPE or K_TYPE,V_TYPE out of {', '.join(KV_TYPES)}."
        raise UsageError(f"{text!r} is no type of KV cache.", remedy)
    return KvTypes(names[0], names[-1])


def check_kv_types(types: KvTypes, shape: KvShape) -> None:
    """Raise UsageError where llama.cpp could not keep a cache of this shape in these types."""
    for what, name, head in (("Keys", types.k, shape.k_head), ("Values", types.v, shape.v_head)):
        if not _type(name).fits(head):
            cause = f"{what} of this model cannot be kept as {name}: its heads have {head} elements"
            raise UsageError(f"{cause}, and {name} stores {_type(name).block_size} at once.", "Use f16 or bf16.")
    if types.k != types.v and shape.k_elements and not shape.v_elements:
        raise UsageError(
            f"This model keeps keys and values as one vector, so they cannot be {types.k} and {types.v}.",
            f"Give one type, such as {types.k}.",
        )


def can_have(types: KvTypes, shape: KvShape) -> bool:
    """Return whether llama.cpp could keep a cache of this shape in these types."""
    try:
        check_kv_types(types, shape)
    except UsageError:
        return False
    return True


def bytes_per_cell(types: KvTypes, shape: KvShape) -> int:
    """Return the bytes that one token takes in all layers. The types must have passed `check_kv_types`."""
    return types.n_bytes(shape.k_elements, shape.v_elements)


def _type(name: str) -> TensorType:
    return tensor_type_named(name.upper())
