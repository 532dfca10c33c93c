"""What a token leaves in a model's cache: how many key and value elements in all layers together, from the header.

Owns the sum. Knows nothing of how many bytes an element takes or how many tokens there are. Windows are left out on
purpose: the engine keeps all cells of sliding layers, so that they can be cut and copied.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantizer.header import Header
from quantizer.hyperparameters import hyperparameter, per_layer
from quantizer.layer_caches import layer_caches_of

__all__ = ["KvShape", "kv_shape_of"]


@dataclass(frozen=True, slots=True)
class KvShape:
    """Elements that one token takes, keys and values apart: in all layers together, and in one head.

    Prediction layers count: they have a cache of their own wherever they draft.
    """

    k_elements: int
    v_elements: int
    k_head: int
    v_head: int


def kv_shape_of(header: Header) -> KvShape:
    """Return the shape that `header` describes, zeros where it keeps nothing of a token."""
    layers = layer_caches_of(header).layers
    k_elements, v_elements = (sum(layer.k_elements for layer in layers), sum(layer.v_elements for layer in layers))
    if not k_elements:
        return KvShape(0, 0, 0, 0)
    n_heads = int(max(per_layer(header, f"{header.architecture}.attention.head_count"), default=1)) or 1
    even = hyperparameter(header, "embedding_length") // n_heads
    k_head, v_head = (hyperparameter(header, f"attention.{what}_length") or even for what in ("key", "value"))
    return KvShape(k_elements, v_elements, k_head, v_head if v_elements else 0)
