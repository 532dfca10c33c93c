"""Weights by input, layers and output, as llama.cpp groups them, in bytes stored and read for a token; and the compute
buffers of one micro-batch. Pure.

Compute buffers are a formula that was fitted to llama.cpp's own figures (tests/bench/plans/compare_footprint.py
compares them): the largest of three moments of a pass. For a local file the engine's dry run is more exact. Source:
`load_tensors` in src/llama-model.cpp and the table of src/llama-arch.cpp, as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from offload.speed.cost_model import unpacking_bytes
from offload.speed.type_costs import NO_WORK, TypeWork, Weights, summed, weights_by_kind
from quantizer.gguf.gguf_reader import ArrayRef
from quantizer.gguf.header import Header, TensorInfo
from quantizer.gguf.hyperparameters import hyperparameter, layer_values
from quantizer.gguf.layer_caches import layer_caches_of

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
_OPERATIONS_PER_WEIGHT = 2
_EXPERTS = "_exps."  # tensors that hold all experts of a layer, one behind the other


def weight_bytes_per_token(header: Header, tensors: Sequence[TensorInfo]) -> int:
    """Return the bytes that decoding one token reads of `tensors`, those of all files of the model.
    Of the embedding that is one row, unless it is the output too; of experts it is the share that is used."""
    has_output = any(tensor.name == OUTPUT for tensor in tensors)
    return sum(
        tensor.n_bytes if tensor.name == EMBEDDING and not has_output else _bytes_read(tensor, header)
        for tensor in tensors
    )


def _bytes_read(tensor: TensorInfo, header: Header) -> int:
    """Return the bytes that one token reads of `tensor`; of the input embedding that is one row."""
    if tensor.name == EMBEDDING:
        return tensor.n_bytes // tensor.shape[-1]
    if _EXPERTS in tensor.name:
        n_experts = header.integer(f"{header.architecture}.expert_count") or 1
        n_used = header.integer(f"{header.architecture}.expert_used_count") or n_experts
        return tensor.n_bytes * n_used // n_experts
    return tensor.n_bytes


_ALIGNMENT = 32  # of tensors in a buffer of the CPU; a file's own alignment comes to the same
_LAYER = re.compile(r"blk\.(\d+)\.")
_FEED_FORWARD = re.compile(r"\.ffn_(gate|up|down|gate_up)\.weight$")
# The tensors that are created with TENSOR_READ_LAZY: `load_arch_tensors` in src/models/gemma4.cpp and qwen4exp.cpp, as
# vendored in llama-cpp-python 0.3.36.
_LAZY_TABLE, _WITH_LAZY_TABLES = "per_layer_token_embd.weight", {"gemma4", "qwen4exp"}
_INPUTS = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer, a part of one, the inputs, or the output behind the last layer: bytes stored, and the work of a token.
    `movable_bytes` of the weights, and what a token reads of them, can stay with the processor when the rest goes to a
    GPU: experts, or a dense feed-forward. `read_bytes` are weights, `cache_read_bytes` what attention reads behind so
    many tokens. `unpacking_bytes` and `attention_bytes` are what a processor could read meanwhile. `weights` are what a
    token is multiplied with, by kind, and `movable_weights` those of them that can stay. `largest_bytes` is its largest
    tensor, a copy of which a GPU holds while it computes with weights of the processor's memory."""

    weight_bytes: int = 0
    read_bytes: int = 0
    movable_bytes: int = 0
    movable_read_bytes: int = 0
    cache_bytes: int = 0
    cache_read_bytes: int = 0
    operations: float = 0
    unpacking_bytes: float = 0.0
    movable_unpacking_bytes: float = 0.0
    attention_bytes: float = 0.0
    attention: TypeWork = NO_WORK
    weights: Weights = field(default_factory=dict)
    movable_weights: Weights = field(default_factory=dict)
    largest_bytes: int = 0

    @property
    def work_bytes(self) -> float:
        """The time that its weights keep a processor busy for one token, in bytes read."""
        return self.read_bytes + self.unpacking_bytes

    @property
    def movable_work_bytes(self) -> float:
        return self.movable_read_bytes + self.movable_unpacking_bytes


@dataclass(frozen=True, slots=True)
class WeightTable:
    """All weights of a model. The input stays with the CPU wherever the layers go. Where `is_tied` the output matrix is
    the embedding: `output` counts it as read, and `tied_bytes` is what a device that has the output holds once more.
    The weights of `layers` are those of a token of a prompt: only the last one has an output. `lazy_bytes` of the input
    may stay in the file: llama.cpp reads a row of such a table when a token needs it."""

    input: Layer
    layers: tuple[Layer, ...]
    output: Layer
    tied_bytes: int
    has_experts: bool
    lazy_bytes: int = 0


def weights_of(header: Header, tensors: Sequence[TensorInfo], *, has_mtp_layer: bool = False) -> WeightTable:
    """Group `tensors`, those of all files of the model, of which `header` is the first. Layers that only predict are
    empty unless it `has_mtp_layer`: llama.cpp counts them, and loads them to draft with them."""
    n_all = hyperparameter(header, "block_count")
    n_loaded = n_all if has_mtp_layer else n_all - hyperparameter(header, "nextn_predict_layers")
    inputs: list[TensorInfo] = []
    outputs: list[TensorInfo] = []
    layers: list[list[TensorInfo]] = [[] for _ in range(n_all)]
    for tensor in tensors:
        match = _LAYER.match(tensor.name)
        if match is None:
            (inputs if tensor.name.startswith(_INPUTS) else outputs).append(tensor)
        elif int(match[1]) < n_loaded:
            layers[int(match[1])].append(tensor)
    has_experts = any(_EXPERTS in tensor.name for tensor in tensors)
    output = _group(outputs, header, has_experts)
    tied_bytes = 0
    if not any(tensor.name == OUTPUT for tensor in outputs):
        embeddings = [tensor for tensor in inputs if tensor.name == EMBEDDING]
        tied_bytes = sum(_padded(tensor.n_bytes) for tensor in embeddings)
        output = replace(
            output,
            read_bytes=output.read_bytes + tied_bytes,
            operations=output.operations + _OPERATIONS_PER_WEIGHT * sum(tensor.n_elements for tensor in embeddings),
            unpacking_bytes=output.unpacking_bytes + sum(unpacking_bytes(tensor) for tensor in embeddings),
            weights=summed(output.weights, weights_by_kind((tensor, 1.0) for tensor in embeddings)),
            largest_bytes=max([output.largest_bytes, *(_padded(tensor.n_bytes) for tensor in embeddings)]),
        )
    groups = tuple(_alike(layers, header, has_experts))
    is_lazy = header.architecture in _WITH_LAZY_TABLES
    lazy_bytes = sum(_padded(tensor.n_bytes) for tensor in inputs if is_lazy and tensor.name == _LAZY_TABLE)
    return WeightTable(_group(inputs, header, has_experts), groups, output, tied_bytes, has_experts, lazy_bytes)


def _alike(layers: Iterable[Sequence[TensorInfo]], header: Header, has_experts: bool) -> Iterator[Layer]:
    """Yield the group of each of `layers`, made once for those alike: most are, of hundreds in a recommendation."""
    made: dict[tuple[object, ...], Layer] = {}
    for tensors in layers:
        key = tuple((_LAYER.sub("", each.name, 1), each.shape, each.type_id, each.n_bytes) for each in tensors)
        if key not in made:
            made[key] = _group(tensors, header, has_experts)
        yield made[key]


def _n_active(tensor: TensorInfo, n_read: int) -> int:
    return tensor.n_elements * n_read // tensor.n_bytes


def _group(tensors: Iterable[TensorInfo], header: Header, has_experts: bool) -> Layer:
    weight_bytes = read = movable = movable_read = n_active = largest = 0
    unpacking = movable_unpacking = 0.0
    shares: list[tuple[TensorInfo, float]] = []
    movable_shares: list[tuple[TensorInfo, float]] = []
    for tensor in tensors:
        size, n_read = _padded(tensor.n_bytes), _bytes_read(tensor, header)
        weight_bytes, read, largest = weight_bytes + size, read + n_read, max(largest, size)
        n_active += _n_active(tensor, n_read)
        unpacked = unpacking_bytes(tensor, n_read / tensor.n_bytes)
        unpacking += unpacked
        shares.append((tensor, n_read / tensor.n_bytes))
        if _EXPERTS in tensor.name if has_experts else _FEED_FORWARD.search(tensor.name):
            movable, movable_read = movable + size, movable_read + n_read
            movable_unpacking += unpacked
            movable_shares.append(shares[-1])
    return Layer(
        weight_bytes=weight_bytes,
        read_bytes=read,
        movable_bytes=movable,
        movable_read_bytes=movable_read,
        operations=_OPERATIONS_PER_WEIGHT * n_active,
        unpacking_bytes=unpacking,
        movable_unpacking_bytes=movable_unpacking,
        weights=weights_by_kind(shares),
        movable_weights=weights_by_kind(movable_shares),
        largest_bytes=largest,
    )


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


_FLOAT_BYTES = 4
_MOST_SCORE_BYTES = 512 << 20  # of 32 heads, 8,192 cells and 512 tokens
_LEAST_UBATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Widths, in elements of one token, of latent attention (MLA) with absorbed queries. `queries_width` is what is
    held while queries are made, of which `absorbed_width` is free for scores afterwards. With an indexer each of
    `n_layers` attends to the `n_chosen` cells with the highest scores, and `index_width` are the indexer's queries;
    else both are 0."""

    n_layers: int
    queries_width: int
    absorbed_width: int
    n_chosen: int = 0
    index_width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShape:
    """Widths of one token on its way through a model, in elements. `feed_forward_width` counts gate, up and their
    product where there is a gate. `n_masks` is how many attention masks there are: layers with a window have one of
    their own. `n_logits` is 0 for models that make no tokens, `has_attention` False where states take its place. A
    DFlash 2 head has convolutions of `n_taps` places around its layers, and embeddings of its candidates, together
    `candidates_width`, beside its logits. `latent` is None where keys and values are no latents."""

    n_embd: int
    n_logits: int
    n_heads: int
    query_width: int
    key_value_width: int
    feed_forward_width: int
    n_masks: int
    has_attention: bool
    n_taps: int = 0
    candidates_width: int = 0
    latent: LatentAttention | None = None

    @property
    def layer_elements(self) -> float:
        """Elements that one token has between the matrix products of a layer."""
        return 3.5 * self.n_embd + 2 * self.query_width + self.key_value_width + self.feed_forward_width


def graph_shape_of(header: Header) -> GraphShape:
    """Return the widths that `header` describes."""
    caches = layer_caches_of(header)
    n_all = len(caches.layers)
    n_heads = max(layer_values(header, "attention.head_count", n_all), default=0)
    n_embd = hyperparameter(header, "embedding_length")
    key = hyperparameter(header, "attention.key_length_mla") or hyperparameter(header, "attention.key_length")
    widest = max(caches.layers, key=lambda layer: layer.k_elements + layer.v_elements, default=None)
    has_cache = any(layer.k_elements or layer.state_elements for layer in caches.layers)
    dense = max(layer_values(header, "feed_forward_length", n_all), default=0)
    n_used = max(layer_values(header, "expert_used_count", n_all), default=0)
    expert = max(layer_values(header, "expert_feed_forward_length", n_all), default=0) or dense
    is_gated = any(".ffn_gate" in tensor.name for tensor in header.tensors)
    embedding = next((tensor for tensor in header.tensors if tensor.name == EMBEDDING), None)
    tokens = header.metadata.get("tokenizer.ggml.tokens")  # a draft head borrows the embedding of its model
    n_tokens = embedding.shape[-1] if embedding else tokens.count if isinstance(tokens, ArrayRef) else 0
    n_taps, top_k, rank = (
        hyperparameter(header, name) for name in ("conv_kernel_size", "selector_top_k", "selector_rank")
    )
    return GraphShape(
        n_embd=n_embd,
        n_logits=n_tokens if has_cache else 0,
        n_heads=n_heads,
        query_width=n_heads * key or n_embd,
        key_value_width=widest.k_elements + widest.v_elements if widest else 0,
        feed_forward_width=(n_used * expert if n_used else dense) * (3 if is_gated else 1),
        n_masks=1 + any(layer.is_windowed for layer in caches.layers),
        has_attention=not has_cache or any(layer.k_elements for layer in caches.layers),
        n_taps=n_taps,
        candidates_width=rank * top_k,
        latent=_latent_attention(header, n_heads, n_embd, len(caches.main_layers)),
    )


def _latent_attention(header: Header, n_heads: int, n_embd: int, n_layers: int) -> LatentAttention | None:
    rank, mla = hyperparameter(header, "attention.kv_lora_rank"), hyperparameter(header, "attention.key_length_mla")
    if not (rank and mla):
        return None
    key = hyperparameter(header, "attention.key_length")  # of a latent with its rotated part
    n_chosen, n_index_heads, index_head = (
        hyperparameter(header, f"attention.indexer.{name}") for name in ("top_k", "head_count", "key_length")
    )
    return LatentAttention(
        n_layers=n_layers,
        queries_width=n_heads * (2 * mla + rank + key + (key - rank)) + n_embd,
        absorbed_width=n_heads * rank,
        n_chosen=n_chosen,
        index_width=n_index_heads * index_head,
    )


def compute_bytes(
    shape: GraphShape,
    n_cells: int,
    *,
    n_ubatch: int = 512,
    n_outputs: int = 0,
    is_fused: bool = True,
    has_output: bool = True,
    has_attention: bool = True,
) -> int:
    """Return the bytes that a pass of `n_ubatch` tokens, at most `n_outputs` of them with logits (0: all), over a cache
    of `n_cells` takes, within 15 %. A device that has layers and not the output makes no logits; one whose cache is the
    processor's does not attend."""
    n_cells = n_cells if shape.n_logits else n_ubatch
    mask = shape.n_masks * n_cells * (0.5 if is_fused else 1.0) if shape.has_attention else 0.0
    logits = shape.n_logits * min(1.0, (n_outputs or n_ubatch) / n_ubatch) + 2 * shape.n_embd if has_output else 0
    if shape.candidates_width:  # blocks of two places are reserved, of which the second has candidates and a row
        logits += (shape.candidates_width + shape.n_embd) // 2
    convolution = mask + (2 * shape.n_taps + 8) * shape.n_embd if shape.n_taps else 0.0
    feed_forward = mask + shape.feed_forward_width + (5.5 if shape.n_taps else 3.5) * shape.n_embd
    attention = mask + 3 * shape.n_embd + 2 * shape.query_width + shape.key_value_width
    if shape.has_attention and not is_fused:
        attention += shape.n_heads * n_cells
    if shape.latent:
        attention = max(attention, _latent_elements(shape.latent, shape.n_heads, n_cells, is_fused=is_fused))
    return int(max(logits, feed_forward, convolution, attention * has_attention) * n_ubatch * _FLOAT_BYTES)


def _latent_elements(latent: LatentAttention, n_heads: int, n_cells: int, *, is_fused: bool) -> float:
    """Return the elements of one token where latent attention holds most: while an indexer scores cells, or while it
    attends to them. What fits where the absorbed queries were takes no more.

    An indexer's mask is F16, its scores are F32. Each layer has a row of zeros for the chosen cells, all of which are
    allocated before the first layer (`build_attn` of llm_graph_input_attn_k_dsa in src/llama-graph.cpp, and
    `ggml_gallocr_alloc_graph_impl` in ggml/src/ggml-alloc.c@0.3.36)."""
    mask = n_cells * (0.5 if is_fused else 1.0)
    held = latent.queries_width + mask
    later: list[float] = [] if is_fused else [n_heads * n_cells]
    scored = 0.0
    if latent.n_chosen:
        held += 0.5 * n_cells + latent.n_layers * min(latent.n_chosen, n_cells)
        scored = latent.index_width + n_cells
        later.append(mask)  # the one that leaves the chosen cells
    return held + max(scored, sum(n for n in later if n > latent.absorbed_width))


def selecting_bytes(shape: GraphShape, n_tokens: int) -> int:
    """Return the bytes that a DFlash 2 head takes behind its layers for blocks of together `n_tokens`, 0 for others:
    logits, and embeddings of the candidates of each place, of those before it, and of both together."""
    elements = shape.n_logits + 2 * shape.n_embd + 3 * shape.candidates_width
    return elements * n_tokens * _FLOAT_BYTES if shape.candidates_width else 0


def bounded_ubatch(shape: GraphShape, n_cells: int, n_ubatch: int, *, is_fused: bool) -> int:
    """Return the micro-batch of at most `n_ubatch` tokens, halved until its attention scores take at most 512 MiB.
    It stays at 64 tokens or more, below which prompts become slow. Fused attention stores no scores."""
    score_bytes = shape.n_heads * n_cells * _FLOAT_BYTES if shape.has_attention and not is_fused else 0
    while n_ubatch // 2 >= _LEAST_UBATCH and score_bytes * n_ubatch > _MOST_SCORE_BYTES:
        n_ubatch //= 2
    return n_ubatch


SCORED_BYTES = 64 << 20  # of the logits of scored prompts in one step, which llama.cpp never gives back
DRAFT_ROWS = 64  # that the answers of one step verify together


def most_outputs(n_vocab: int, n_sequences: int) -> int:
    """Return how many tokens of one step may have logits: one for each answer, those of drafts and of scored prompts.
    Without a limit llama.cpp reserves logits for a whole micro-batch: 1 GiB for 2,048 tokens of a vocabulary of
    128,256."""
    return n_sequences + DRAFT_ROWS + max(1, SCORED_BYTES // (_FLOAT_BYTES * max(1, n_vocab)))


def output_bytes(shape: GraphShape, n_sequences: int) -> int:
    """Return the bytes of the logits that are kept for sampling, on the host wherever the output layer is."""
    return (shape.n_logits or shape.n_embd) * n_sequences * _FLOAT_BYTES
