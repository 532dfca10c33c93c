"""What one machine was measured to take for weights of each type, and the layouts of weights that decide it. Pure.

A product of a matrix with n_columns x n_rows weights and one vector takes a time for each weight, and one for each row:
its sum, and what begins and ends it. The type of the weights decides both, and so does the path: as in the file, or
repacked for the processor. One *kind* is a type on a path.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from quantizer.gguf.header import TensorInfo
from quantizer.gguf.tensor_types import TENSOR_TYPES

_REPACKED = " repacked"
# llama.cpp repacks matrices of which so many rows are interleaved (`ggml_repack_get_optimal_repack_type`@0.3.36; 16 on
# RISC-V, 4 of some types on Arm). Whether it repacks a type at all is measured.
_INTERLEAVED_ROWS = 8
N_FEW, N_MANY = 64, 512  # columns: tokens of a prompt that are multiplied at once
# And those of steps with drafts: kernels take 16 columns at once, then 4, and each column left over reads all weights
# again, so that a step of 15 tokens may cost more than one of 16.
N_STEP = (2, 4, 8, 15, 16, 17, 31, 32)
# From so many rows on ggml multiplies quantized weights as the file has them by its tiled kernels, on x86
# (`ggml_tiled_min_batch` of ggml-cpu/tiled/tiled.cpp@0.3.36). Of the types that it has them for those where others may
# be faster yet; IQ1 to IQ3 gain at once, and to make weights of them takes seconds.
TILED_FROM = 8
TILED_TYPES = frozenset(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"))
# Weights up to the first size stay in the caches from one token to the next, those above the second do not. The second
# is what a table is measured with.
CACHED_BYTES, UNCACHED_BYTES = 6 << 20, 80 << 20


def kind_of(type_name: str, *, is_repacked: bool) -> str:
    return type_name + _REPACKED if is_repacked else type_name


def type_of(kind: str) -> str:
    return kind.removesuffix(_REPACKED)


def is_repacked(kind: str) -> bool:
    return kind.endswith(_REPACKED)


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Which weights are repacked at loading, where llama.cpp can: all, or those of `repacked_types`. From `plain_from`
    tokens a step (0: never) weights of `dual_types` are used as the file has them; from `copy_from` tokens those of a
    type of `copies`, which has pairs, as the kind that it is paired with."""

    is_repacked: bool = True
    repacked_types: tuple[str, ...] = ()
    plain_from: int = 0
    dual_types: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    copy_from: int = 0

    def kind(self, possible: str, n_tokens: int) -> str:
        """Return the kind that a step of `n_tokens` uses, of weights that are `possible` at most."""
        name = type_of(possible)
        if 0 < self.copy_from <= n_tokens and name in dict(self.copies):
            return dict(self.copies)[name]
        is_dual = 0 < self.plain_from <= n_tokens and name in self.dual_types
        is_chosen = not self.repacked_types or name in self.repacked_types
        return possible if self.is_repacked and is_chosen and not is_dual else name


DEFAULT_LAYOUT = WeightLayout()
AS_IN_FILE = WeightLayout(is_repacked=False)  # of every device but the processor


@dataclass(frozen=True, slots=True)
class TypeWork:
    """Weights and rows of matrices that one token is multiplied with."""

    n_weights: float = 0.0
    n_rows: float = 0.0

    def __add__(self, other: TypeWork) -> TypeWork:
        return TypeWork(self.n_weights + other.n_weights, self.n_rows + other.n_rows)


NO_WORK = TypeWork()
Weights = Mapping[str, TypeWork]  # by kind


def weights_by_kind(tensors: Iterable[tuple[TensorInfo, float]]) -> dict[str, TypeWork]:
    """Return the work on `tensors`, each with the share of it that a token reads, by the kind that is possible."""
    found: dict[str, TypeWork] = {}
    for tensor, share in tensors:
        if len(tensor.shape) < 2:  # norms and biases are steps between products
            continue
        n_rows = tensor.n_elements / tensor.shape[0]
        kind = kind_of(_type_name(tensor), is_repacked=tensor.shape[1] % _INTERLEAVED_ROWS == 0)
        found[kind] = found.get(kind, NO_WORK) + TypeWork(share * tensor.n_elements, share * n_rows)
    return found


_WEIGHT_BYTES = {entry.name: entry.bits_per_weight / 8 for entry in TENSOR_TYPES.values()}
_USUAL_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "F16")
_SAME_BITS = 0.1  # by which share padding and rounding change the size of a tensor


def _type_name(tensor: TensorInfo) -> str:
    """Return the type of `tensor`; of one whose size is another's, as where only that of a file is known, the usual
    type of this size."""
    type_ = TENSOR_TYPES[tensor.type_id]
    bits = 8 * tensor.n_bytes / tensor.n_elements
    if abs(bits / type_.bits_per_weight - 1) <= _SAME_BITS:
        return type_.name
    return min(_USUAL_TYPES, key=lambda name: abs(8 * _WEIGHT_BYTES[name] - bits))


def summed(*parts: Weights) -> dict[str, TypeWork]:
    found: dict[str, TypeWork] = {}
    for part in parts:
        for kind, work in part.items():
            found[kind] = found.get(kind, NO_WORK) + work
    return found


def without(whole: Weights, part: Weights) -> dict[str, TypeWork]:
    """Return `whole` less `part`, never below nothing."""
    found = {}
    for kind, work in whole.items():
        less = part.get(kind, TypeWork())
        rest = TypeWork(max(0.0, work.n_weights - less.n_weights), max(0.0, work.n_rows - less.n_rows))
        if rest.n_weights:
            found[kind] = rest
    return found


def in_layout(weights: Weights, layout: WeightLayout, n_tokens: int) -> dict[str, TypeWork]:
    """Return `weights` by the kinds that a step of `n_tokens` uses."""
    return summed(*({layout.kind(kind, n_tokens): work} for kind, work in weights.items()))


def bytes_of(weights: Weights) -> float:
    return sum(work.n_weights * _WEIGHT_BYTES[type_of(kind)] for kind, work in weights.items())


@dataclass(frozen=True, slots=True)
class ProductCost:
    """Seconds of a product with one vector: for each weight and for each row."""

    weight_s: float
    row_s: float

    def of(self, work: TypeWork) -> float:
        return work.n_weights * self.weight_s + work.n_rows * self.row_s

    def towards(self, other: ProductCost, share: float) -> ProductCost:
        return ProductCost(
            self.weight_s + share * (other.weight_s - self.weight_s), self.row_s + share * (other.row_s - self.row_s)
        )


@dataclass(frozen=True, slots=True)
class TypeCost:
    """The cost of one kind: for one token with weights from memory and from caches, and for each of N_FEW or N_MANY
    tokens at once; `steps` for each of as many as N_STEP has, with weights from caches, which earlier versions did not
    measure. `others_share` is the share of the processors that others took meanwhile, None where it does not matter."""

    one: ProductCost
    cached: ProductCost
    few: ProductCost
    many: ProductCost
    others_share: float | None = None
    steps: tuple[ProductCost, ...] = ()

    def answer(self, model_bytes: float) -> ProductCost:
        """Return the cost for one token, where a token reads `model_bytes` in all."""
        return self.cached.towards(self.one, _share(model_bytes, CACHED_BYTES, UNCACHED_BYTES))

    def step_s(self, n_tokens: int, work: TypeWork, model_bytes: float) -> float:
        """Return the seconds of a step of `n_tokens`, all of which are multiplied, where one reads `model_bytes`: the
        wait for memory of one token, and what the products take beside it."""
        alone_s = self.cached.of(work)
        points = [(1, alone_s), *((n, n * cost.of(work)) for n, cost in zip(N_STEP, self.steps, strict=False))]
        points.append((N_FEW, N_FEW * self.few.of(work)))
        if n_tokens >= N_FEW:
            products_s = n_tokens * self.prompt(n_tokens).of(work)
        else:
            upper = next(index for index, (n, _) in enumerate(points) if n > n_tokens)
            (low, low_s), (high, high_s) = points[upper - 1 : upper + 1]
            products_s = low_s + (n_tokens - low) / (high - low) * (high_s - low_s)
        return max(0.0, self.answer(model_bytes).of(work) - alone_s) + products_s

    def prompt(self, n_tokens: float) -> ProductCost:
        """Return the cost for each of `n_tokens` at once."""
        return self.few.towards(self.many, _share(n_tokens, N_FEW, N_MANY))


def _share(value: float, low: float, high: float) -> float:
    """Return how far `value` is from `low` to `high`, on a logarithmic scale, from 0 to 1."""
    return min(1.0, max(0.0, math.log(max(value, 1.0) / low) / math.log(high / low)))


@dataclass(frozen=True, slots=True)
class GraphCost:
    """What a processor takes between products. `attention` of a token of an answer, fused or not, is for each element
    of a key or value that it attends to, and for each score. Of a prompt it is for each of the cost model's operations,
    and so are the steps on elements; `layer_s` is for a layer of one token."""

    attention: ProductCost
    fused_attention: ProductCost
    prompt_attention_s: float
    fused_prompt_attention_s: float
    element_s: float
    layer_s: float
    others_share: float | None = None


@dataclass(frozen=True, slots=True)
class TypeTable:
    """The measurements of one device: the costs of each kind; `graph` is a processor's."""

    types: Mapping[str, TypeCost] = field(default_factory=dict)
    graph: GraphCost | None = None

    def cost(self, kind: str) -> TypeCost | None:
        """Return the cost of `kind`; of one that llama.cpp does not repack here, as the file has it."""
        return self.types.get(kind) or self.types.get(type_of(kind))

    def has_path(self, kind: str) -> bool:
        return kind in self.types


_NOTABLE = 0.03  # by which share a path has to be faster


def types_worth_repacking(weights: Weights, table: TypeTable, n_prompt: int, n_answer: int) -> tuple[str, ...]:
    """Return the types of `weights` to repack for prompts and answers of so many tokens, where some gain by it and
    others lose; () where all are alike."""
    gaining: set[str] = set()
    losing: set[str] = set()
    for kind, work in weights.items():
        name = type_of(kind)
        if not is_repacked(kind) or not (table.has_path(kind) and table.has_path(name)):
            continue
        repacked_s, plain_s = (
            n_answer * cost.answer(bytes_of(weights)).of(work) + n_prompt * cost.many.of(work)
            for cost in (table.types[kind], table.types[name])
        )
        if repacked_s <= plain_s:
            gaining.add(name)
        elif plain_s < (1 - _NOTABLE) * repacked_s:
            losing.add(name)
    return tuple(sorted(gaining)) if gaining and losing else ()


# The kinds that a copy may have. Both halve how far prompts are from F32, for their products do not round activations
# to 8 bits; copies in Q8_0 would add 20 % (README of app/engine/tuning).
COPY_KINDS = ("BF16", "F16")
UNQUANTIZED = ("F32", "F16", "BF16", "F64")
_LEAST_GAIN = 1.5  # a smaller one is not worth the memory
_USUAL_ROW = 1024
_NO_PROMPT_PRODUCT = ("output.weight", "token_embd.weight")  # of a prompt only the last token needs logits


def faster_copies(table: TypeTable, *, is_repacked: bool) -> dict[str, str]:
    """Return the types that steps of many tokens read _LEAST_GAIN times as fast from a copy in another kind, each with
    the fastest one, as `table` has measured them; empty before that. Types that are repacked at loading have no copy,
    if `is_repacked`, nor have weights that are not quantized, which a copy would round."""
    found = {}
    for name, cost in table.types.items():
        if name.endswith(_REPACKED) or name in UNQUANTIZED:
            continue
        if is_repacked and table.has_path(kind_of(name, is_repacked=True)):
            continue
        gains = {
            kind: min(
                _pace(own) / _pace(other)
                for own, other in ((cost.few, table.types[kind].few), (cost.many, table.types[kind].many))
            )
            for kind in COPY_KINDS
            if kind != name and kind in table.types
        }
        best = max(gains, key=lambda kind: gains[kind], default="")
        if best and gains[best] >= _LEAST_GAIN:
            found[name] = best
    return found


def _pace(cost: ProductCost) -> float:
    return cost.weight_s + cost.row_s / _USUAL_ROW


def is_copied(tensor: TensorInfo, copies: Mapping[str, str]) -> bool:
    """Return whether `tensor` has one of `copies`: a matrix that every token of a prompt is multiplied with. Experts
    have none: their products (MUL_MAT_ID) compute a token after the other in every type."""
    is_matrix = sum(size > 1 for size in tensor.shape) == 2 and tensor.name.endswith(".weight")
    return is_matrix and tensor.name not in _NO_PROMPT_PRODUCT and TENSOR_TYPES[tensor.type_id].name in copies


def copy_bytes(tensors: Iterable[TensorInfo], copies: Mapping[str, str]) -> int:
    """Return the bytes of the `copies` of `tensors`."""
    if not copies:  # as nearly always: a recommendation asks hundreds of models of hundreds of tensors
        return 0
    return sum(
        math.ceil(tensor.n_elements * _WEIGHT_BYTES[copies[TENSOR_TYPES[tensor.type_id].name]])
        for tensor in tensors
        if is_copied(tensor, copies)
    )
