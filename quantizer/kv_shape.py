"""What a token leaves in a model's cache: how many key and value elements in each layer, read from the header.

Owns the shapes of attention that decide it. Knows nothing of how many bytes an element takes or how many tokens there
are. Windows are left out on purpose: the engine keeps all cells of sliding layers, so that they can be cut and copied.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantizer.header import Header
from quantizer.hyperparameters import per_layer

__all__ = ["KvShape", "kv_shape_of"]


@dataclass(frozen=True, slots=True)
class KvShape:
    """Elements that one token takes, keys and values apart: in all layers together, and in one head.

    At most so many: a layer that keeps a state instead of tokens counts where the header does not tell them apart.
    """

    k_elements: int
    v_elements: int
    k_head: int
    v_head: int


def kv_shape_of(header: Header) -> KvShape:
    """Return the shape that `header` describes, zeros where it describes no attention.

    Multi-head latent attention keeps one compressed vector and its rotated part, as keys alone.
    """
    prefix = header.architecture
    n_layers = (header.integer(f"{prefix}.block_count") or 0) - (
        header.integer(f"{prefix}.attention.shared_kv_layers") or 0
    )
    rank = header.integer(f"{prefix}.attention.kv_lora_rank")
    if rank:
        k_head = rank + (header.integer(f"{prefix}.rope.dimension_count") or 0)
        return KvShape(n_layers * k_head, 0, k_head, 0)
    n_heads = int(max(per_layer(header, f"{prefix}.attention.head_count"), default=0))
    if not n_heads:
        return KvShape(0, 0, 0, 0)
    head = (header.integer(f"{prefix}.embedding_length") or 0) // n_heads
    k_head = header.integer(f"{prefix}.attention.key_length") or head
    v_head = header.integer(f"{prefix}.attention.value_length") or head
    kv_heads = per_layer(header, f"{prefix}.attention.head_count_kv") or [n_heads]
    n_kv_heads = int(sum(kv_heads) if len(kv_heads) > 1 else kv_heads[0] * n_layers)
    return KvShape(n_kv_heads * k_head, n_kv_heads * v_head, k_head, v_head)
