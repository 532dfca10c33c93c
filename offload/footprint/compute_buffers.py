"""The bytes of a model's compute buffers: activations, scores and logits of one micro-batch, from its header. Pure.

Owns a formula that was fitted to llama.cpp's own figures (tests/bench/plans/compare_footprint.py compares them): the
largest of three moments of a pass. For a local file the engine's dry run is more exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from offload.footprint.weights import EMBEDDING
from quantizer.gguf.gguf_reader import ArrayRef
from quantizer.gguf.header import Header
from quantizer.gguf.hyperparameters import hyperparameter, layer_values
from quantizer.gguf.layer_caches import layer_caches_of

_FLOAT_BYTES = 4
_MOST_SCORE_BYTES = 512 << 20  # of 32 heads, 8,192 cells and 512 tokens
_LEAST_UBATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShape:
    """Widths of one token on its way through a model, in elements.

    `feed_forward_width` counts gate, up and their product where there is a gate. `n_masks` is how many attention masks
    there are: layers with a window have one of their own. `n_logits` is 0 for models that make no tokens,
    `has_attention` False where states take its place.
    """

    n_embd: int
    n_logits: int
    n_heads: int
    query_width: int
    key_value_width: int
    feed_forward_width: int
    n_masks: int
    has_attention: bool


def graph_shape_of(header: Header) -> GraphShape:
    """Return the widths that `header` describes."""
    caches = layer_caches_of(header)
    n_all = len(caches.layers)
    n_heads = max(layer_values(header, "attention.head_count", n_all), default=0)
    n_embd = hyperparameter(header, "embedding_length")
    key = hyperparameter(header, "attention.key_length_mla") or hyperparameter(header, "attention.key_length")
    widest = max(caches.layers, key=lambda layer: layer.k_elements + layer.v_elements, default=None)
    has_cache = any(layer.k_elements or layer.state_elements for layer in caches.layers)
    embedding = next((tensor for tensor in header.tensors if tensor.name == EMBEDDING), None)
    tokens = header.metadata.get("tokenizer.ggml.tokens")  # a draft head borrows the embedding of its model
    n_tokens = embedding.shape[-1] if embedding else tokens.count if isinstance(tokens, ArrayRef) else 0
    return GraphShape(
        n_embd=n_embd,
        n_logits=n_tokens if has_cache else 0,
        n_heads=n_heads,
        query_width=n_heads * key or n_embd,
        key_value_width=widest.k_elements + widest.v_elements if widest else 0,
        feed_forward_width=_feed_forward_width(header, n_all),
        n_masks=1 + any(layer.is_windowed for layer in caches.layers),
        has_attention=not has_cache or any(layer.k_elements for layer in caches.layers),
    )


def _feed_forward_width(header: Header, n_layers: int) -> int:
    dense = max(layer_values(header, "feed_forward_length", n_layers), default=0)
    n_used = max(layer_values(header, "expert_used_count", n_layers), default=0)
    expert = max(layer_values(header, "expert_feed_forward_length", n_layers), default=0) or dense
    is_gated = any(".ffn_gate" in tensor.name for tensor in header.tensors)
    return (n_used * expert if n_used else dense) * (3 if is_gated else 1)


def compute_bytes(
    shape: GraphShape,
    n_cells: int,
    *,
    n_ubatch: int = 512,
    is_fused: bool = True,
    has_output: bool = True,
    has_attention: bool = True,
) -> int:
    """Return the bytes that a pass of `n_ubatch` tokens over a cache of `n_cells` takes, within 15 %.

    A device that has layers and not the output makes no logits; one whose cache is the processor's does not attend.
    """
    n_cells = n_cells if shape.n_logits else n_ubatch
    mask = shape.n_masks * n_cells * (0.5 if is_fused else 1.0) if shape.has_attention else 0.0
    logits = shape.n_logits + 2 * shape.n_embd if has_output else 0
    feed_forward = mask + shape.feed_forward_width + 3.5 * shape.n_embd
    attention = mask + 3 * shape.n_embd + 2 * shape.query_width + shape.key_value_width
    if shape.has_attention and not is_fused:
        attention += shape.n_heads * n_cells
    return int(max(logits, feed_forward, attention * has_attention) * n_ubatch * _FLOAT_BYTES)


def bounded_ubatch(shape: GraphShape, n_cells: int, n_ubatch: int, *, is_fused: bool) -> int:
    """Return the micro-batch of at most `n_ubatch` tokens, halved until its attention scores take at most 512 MiB.

    It stays at 64 tokens or more, below which prompts become slow. Fused attention stores no scores.
    """
    score_bytes = shape.n_heads * n_cells * _FLOAT_BYTES if shape.has_attention and not is_fused else 0
    while n_ubatch // 2 >= _LEAST_UBATCH and score_bytes * n_ubatch > _MOST_SCORE_BYTES:
        n_ubatch //= 2
    return n_ubatch


def output_bytes(shape: GraphShape, n_sequences: int) -> int:
    """Return the bytes of the logits that are kept for sampling, on the host wherever the output layer is."""
    return (shape.n_logits or shape.n_embd) * n_sequences * _FLOAT_BYTES
