"""Which tensor type each tensor gets under a file type: llama.cpp's rules, and types that the user sets by hand. Pure.

No file is read and no native code is called, so a plan can give sizes to the byte. Source: llama.cpp
src/llama-quant.cpp (tensor_get_category, tensor_allows_quantization, llama_tensor_get_type_impl, tensor_type_fallback)
and llama-model-loader.h (weight_name_comparer) as vendored in llama-cpp-python 0.3.36; the tests compare it with
llama_model_quantize itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache

from quantizer.gguf.tensor_types import WEIGHT_TYPES, FileType, TensorType, tensor_type_named
from quantizer.system.errors import UsageError

_MAX_PATTERN_CHARS = 1000
_EMBEDDING_NAME, _LAYER_EMBEDDING, _OUTPUT_NAME = "token_embd.weight", "per_layer_token_embd.weight", "output.weight"


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
    `by_name` is a whole mix, which was found with the other settings in mind and has priority."""

    tensors: tuple[TensorOverride, ...] = ()
    output: TensorType | None = None
    embedding: TensorType | None = None
    by_name: Mapping[str, TensorType] = field(default_factory=dict)

    def type_of(self, name: str, is_tied: bool) -> TensorType | None:
        """Return the type set for the tensor called `name`; `is_tied` when the embedding is the output as well."""
        # one tensor's has priority over a pattern, as in llama.cpp (src/llama-quant.cpp, llama_tensor_get_type)
        named = self.by_name.get(name) or {_EMBEDDING_NAME: self.embedding, _OUTPUT_NAME: self.output}.get(name)
        if named is not None:
            return named
        matching = next((override.kind for override in self.tensors if override.matches(name)), None)
        if matching is not None:
            return matching
        return {_EMBEDDING_NAME: self.output if is_tied else None, _LAYER_EMBEDDING: self.embedding}.get(name)

    def unused(self, names: Sequence[str]) -> Iterator[str]:
        """Yield each setting that applies to none of the tensors called `names`."""
        for override in self.tensors:
            if not any(override.matches(name) for name in names):
                yield f"--tensor {override.pattern}={override.kind.name}"
        if self.output is not None and _OUTPUT_NAME not in names and _EMBEDDING_NAME not in names:
            yield f"--output-type {self.output.name}"
        if self.embedding is not None and _EMBEDDING_NAME not in names:
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
        cause = f"{pattern!r} is not a valid regular expression: {error}."
        raise UsageError(cause, "Put a backslash before ( [ * +.") from error
    return TensorOverride(pattern, weight_type_named(name))


def weight_type_named(name: str) -> TensorType:
    """Return the storage type of weights called `name`, in any case. Raises UsageError listing all."""
    kind = WEIGHT_TYPES.get(name.upper())
    if kind is None:
        raise UsageError(f"There is no tensor type {name!r}.", f"Choose one of {', '.join(WEIGHT_TYPES)}.")
    return kind


class Category(Enum):
    """The role of a tensor, as far as it decides how many bits it deserves."""

    EMBEDDING = auto()
    OUTPUT = auto()
    QUERY = auto()
    KEY = auto()
    VALUE = auto()
    ATTENTION_OUTPUT = auto()
    UP = auto()
    GATE = auto()
    DOWN = auto()
    OTHER = auto()


_BY_NAME = {
    "output.weight": Category.OUTPUT,
    "token_embd.weight": Category.EMBEDDING,
    "per_layer_token_embd.weight": Category.EMBEDDING,
}
# In order: the first part that a name contains decides.
_BY_PART = (
    ("attn_qkv.weight", Category.VALUE),
    ("attn_kv_b.weight", Category.VALUE),
    ("attn_v.weight", Category.VALUE),
    ("attn_k.weight", Category.KEY),
    ("attn_q.weight", Category.QUERY),
    ("attn_output.weight", Category.ATTENTION_OUTPUT),
    ("ffn_up", Category.UP),
    ("ffn_gate", Category.GATE),
    ("ffn_down", Category.DOWN),
)
_KEPT_NAMES = {"position_embd.weight", "token_types.weight"}
_KEPT_PARTS = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight"),
    *("time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight"),
    *("time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight"),
    *("time_mix_a2.weight", "time_mix_g1.weight", "time_mix_g2.weight", "time_mix_decay_w1.weight"),
    *("time_mix_decay_w2.weight", "time_mix_lerp_fused.weight", "attn_rel_b.weight", ".position_embd"),
    *("sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger", "a.rvq.codebook"),
    "mm.a.code_embd",
)
_KEPT_PARTS_OF = {
    "glm5-next": (
        *("hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate"),
        *("indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight"),
        *("ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight", "attn_v_b.weight"),
    )
}
_LAYER = re.compile(r"blk\.(\d+)\.")


# Choosing among the catalogue's models and types takes the types of 76,000 tensors, which have few thousand names.
_MOST_NAMES = 1 << 13


@lru_cache(_MOST_NAMES)
def category_of(name: str) -> Category:
    if name in _BY_NAME:
        return _BY_NAME[name]
    return next((kind for part, kind in _BY_PART if part in name), Category.OTHER)


def allows_quantization(name: str, shape: Sequence[int], architecture: str) -> bool:
    """Return whether a tensor is quantized: matrices of weights are, norms and small or sensitive tensors are not."""
    return n_dims(shape) >= 2 and _may_be_quantized(name, architecture)


@lru_cache(_MOST_NAMES)
def _may_be_quantized(name: str, architecture: str) -> bool:
    if not name.endswith("weight") or name in _KEPT_NAMES:
        return False
    return not any(part in name for part in (*_KEPT_PARTS, *_KEPT_PARTS_OF.get(architecture, ())))


def n_dims(shape: Sequence[int]) -> int:
    """Return the dimensions as ggml counts them: trailing ones do not count. At least 1."""
    n_found = len(shape)
    while n_found > 1 and shape[n_found - 1] <= 1:
        n_found -= 1
    return max(n_found, 1)


@lru_cache(_MOST_NAMES)
def in_loading_order(name: str) -> tuple[int, bytes]:
    """Return the sort key of llama.cpp's tensor map: tensors of no layer first, then layer by layer, then by name."""
    match = _LAYER.match(name)
    return (int(match[1]) if match else -1, name.encode())


_LARGE_GQA = 4
_MIXTRAL_EXPERTS = 8
# (architecture, layers) that llama.cpp takes for a 70B model; a llama must also share key-value heads
_SEVENTY_B = {("llama", 80), ("qwen2", 80), ("deci", 80), ("olmo", 80), ("jais2", 68)}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The few hyperparameters that the rules need."""

    architecture: str
    n_layers: int
    n_heads: int = 0
    n_kv_heads: int = 0
    n_experts: int = 0

    @property
    def is_70b(self) -> bool:
        is_shared = self.architecture != "llama" or self.n_heads != self.n_kv_heads
        return is_shared and (self.architecture, self.n_layers) in _SEVENTY_B


@dataclass(frozen=True, slots=True)
class _TensorPosition:
    """The position of a tensor in its model: the `ordinal`-th of `count` of its category."""

    ordinal: int
    count: int
    shape: ModelShape
    has_imatrix: bool

    @property
    def is_early(self) -> bool:
        return self.ordinal < self.count // 8

    @property
    def wants_more_bits(self) -> bool:
        # the first and last eighth, and every third in between
        eighth = self.count // 8
        return self.is_early or self.ordinal >= 7 * self.count // 8 or (self.ordinal - eighth) % 3 == 2

    @property
    def is_large_gqa(self) -> bool:
        return self.shape.n_kv_heads > 0 and self.shape.n_heads // self.shape.n_kv_heads >= _LARGE_GQA

    @property
    def is_falcon(self) -> bool:
        return self.shape.architecture == "falcon"

    @property
    def is_mixtral(self) -> bool:
        return self.shape.n_experts == _MIXTRAL_EXPERTS


# A rule that returns None leaves a tensor the type of the file type.
_Rule = Callable[[_TensorPosition], str | None]
_Rules = dict[str, _Rule]


def _falcon_down(at: _TensorPosition) -> str:
    return "Q6_K" if at.ordinal < at.count // 16 else "Q5_K" if at.wants_more_bits else "Q4_K"


def _always(name: str) -> _Rule:
    return lambda _at: name


# Kept at 8 bits or more by name, whatever the file type
_PREDICTING = re.compile(r"(blk\.\d+\.)nextn\.eh_proj\.")
_UNWEIGHTED = "Q4_K"  # the smallest of the usual types that does without an importance matrix everywhere
_KEPT_IN_Q8 = {"glm5-next": ("attn_q_a", "attn_q_b", "nextn.eh_proj")}
_LOW_BIT = {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"}
_BETTER_LOW_BIT = {"IQ2_S", "IQ2_M"}
_OUTPUT_IN_Q5 = _LOW_BIT | {"IQ3_XXS"}

_EMBEDDING = {
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"), "Q2_K"),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "IQ3_S"),
    **dict.fromkeys(("TQ1_0", "TQ2_0", "Q2_0"), "Q4_K"),
}

_VALUE: _Rules = {
    "Q2_K": lambda at: "Q4_K" if at.is_large_gqa else "Q3_K",
    "Q2_K_S": lambda at: "Q4_K" if at.is_large_gqa else None,
    "IQ3_XXS": lambda at: "Q4_K" if at.is_large_gqa else None if at.has_imatrix else "IQ3_S",
    "IQ3_XS": lambda at: "Q4_K" if at.is_large_gqa else None,
    "IQ3_S": lambda at: "Q4_K" if at.is_large_gqa else None,
    "IQ3_M": _always("Q4_K"),
    "Q3_K_M": lambda at: "Q5_K" if at.ordinal < 2 else "Q4_K",
    "Q3_K_L": _always("Q5_K"),
    "IQ4_NL": lambda at: "Q5_K" if at.is_large_gqa else None,
    "IQ4_XS": lambda at: "Q5_K" if at.is_large_gqa else None,
    "Q4_K_M": lambda at: "Q6_K" if at.wants_more_bits else None,
    "Q5_K_M": lambda at: "Q6_K" if at.wants_more_bits else None,
    "Q4_K_S": lambda at: "Q5_K" if at.ordinal < 4 else None,
}

_DOWN: _Rules = {
    "Q2_K": _always("Q3_K"),
    "Q2_K_S": lambda at: "Q4_K" if at.is_early else None,
    "IQ3_XXS": lambda at: None if at.has_imatrix else "Q4_K" if at.is_early else "Q3_K",
    "Q3_K_M": lambda at: (
        "Q5_K" if at.ordinal < at.count // 16 else "Q4_K" if not at.is_falcon or at.wants_more_bits else "Q3_K"
    ),
    "IQ3_M": lambda at: "Q4_K" if at.is_early or (at.is_mixtral and at.wants_more_bits) else None,
    "Q3_K_L": lambda at: "Q4_K" if at.is_falcon else "Q5_K",
    "Q4_K_M": lambda at: _falcon_down(at) if at.is_falcon else "Q6_K" if at.wants_more_bits else None,
    "IQ4_NL": lambda at: "Q5_K" if at.is_early and not at.has_imatrix else None,
    "IQ4_XS": lambda at: "Q5_K" if at.is_early and not at.has_imatrix else None,
    "Q5_K_M": lambda at: "Q6_K" if at.wants_more_bits else None,
    "Q4_K_S": lambda at: "Q5_K" if at.is_early and not at.is_falcon else None,
    "Q4_0": lambda at: "Q4_1" if at.has_imatrix and at.is_early else None,
    "Q5_0": lambda at: "Q5_1" if at.has_imatrix and at.is_early else None,
}

_ATTENTION_OUTPUT = {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}
_MIXTRAL_OUTPUT_IN_Q5 = frozenset(
    ["Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S", "IQ3_M", "IQ4_XS"]
)
_QUERY_KEY = {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}

# A type whose block does not divide the row -> the next best with smaller blocks; what then still fails becomes F16.
_FALLBACK = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0", "Q1_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
_NEEDS_IMATRIX = {"IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_M", "IQ1_S"}
_EXEMPT_FROM_IMATRIX = {"token_embd.weight", "per_layer_token_embd.weight", "output.weight"}


_NO_OVERRIDES = Overrides()


@dataclass(frozen=True, slots=True)
class MixTensor:
    """A tensor as the rules see it; `shape` in ggml order, `stored` its present type.
    One that `keeps_type` was made in that type: a larger one would hold nothing more."""

    name: str
    shape: tuple[int, ...]
    stored: TensorType
    keeps_type: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    """The type of one tensor, and the type `wanted` for it: they differ where its shape does not allow that one."""

    target: TensorType
    wanted: TensorType
    needs_imatrix: bool = False


def assign(
    tensors: Sequence[MixTensor],
    file_type: FileType,
    shape: ModelShape,
    has_imatrix: bool = False,
    overrides: Overrides = _NO_OVERRIDES,
) -> dict[str, Assignment]:
    """Decide the type of every tensor of a model.

    Returns tensor name -> Assignment. Tensors that are never quantized keep the type they are stored in. An override
    leaves the other tensors what they would be without it; in llama.cpp it shifts the count of their kind.
    """
    rules = _TypeRules(file_type, shape, has_imatrix, overrides, [tensor.name for tensor in tensors])
    ordered = sorted(tensors, key=lambda tensor: in_loading_order(tensor.name))
    return {tensor.name: rules.assign(tensor) for tensor in ordered}


def with_unweighted(
    verdicts: Mapping[str, Assignment], tensors: Sequence[MixTensor], weighted: Collection[str], overrides: Overrides
) -> dict[str, Assignment]:
    """Return the types `verdicts`, with Q4_K where those of a layer that predicts further would be garbage.
    Nothing runs that layer on a text, so that no importance matrix has it: `weighted` are the tensors that one has."""
    layers = {match[1] for tensor in tensors if (match := _PREDICTING.match(tensor.name))}
    changed = dict(verdicts)
    for tensor in tensors:
        if (
            tensor.name.startswith(tuple(layers))
            and changed[tensor.name].needs_imatrix
            and tensor.name not in weighted
            and overrides.type_of(tensor.name, is_tied=False) is None
        ):
            wanted = tensor_type_named(_UNWEIGHTED)
            changed[tensor.name] = Assignment(_fitting(wanted, tensor.shape[0]), wanted)
    return changed


class _TypeRules:
    """One pass over a model in loading order, counting the tensors of each kind as it goes."""

    def __init__(
        self, file_type: FileType, shape: ModelShape, has_imatrix: bool, overrides: Overrides, names: Sequence[str]
    ) -> None:
        self._file_type = file_type
        self._shape = shape
        self._has_imatrix = has_imatrix
        self._overrides = overrides
        kinds = [category_of(name) for name in names]
        self._is_tied = Category.OUTPUT not in kinds
        self._n_values = kinds.count(Category.VALUE)
        self._seen = dict.fromkeys(Category, 0)

    def assign(self, tensor: MixTensor) -> Assignment:
        if not allows_quantization(tensor.name, tensor.shape, self._shape.architecture):
            return Assignment(tensor.stored, tensor.stored)
        usual = self._file_type.base
        if usual.is_quantized:
            kind = category_of(tensor.name)
            usual = tensor_type_named(self._usual_name(tensor, kind))
            self._seen[kind] += 1
        if tensor.keeps_type and tensor.stored.bits_per_weight <= _fitting(usual, tensor.shape[0]).bits_per_weight:
            usual = tensor.stored
        wanted = self._overrides.type_of(tensor.name, self._is_tied) or usual
        target = _fitting(wanted, tensor.shape[0])
        is_poor = target.name == "Q2_K" and self._file_type.name == "Q2_K_S" and tensor.name not in _EXEMPT_FROM_IMATRIX
        return Assignment(target, wanted, is_poor or needs_imatrix(target))

    def _usual_name(self, tensor: MixTensor, kind: Category) -> str:
        name = self._file_type.name
        if any(part in tensor.name for part in _KEPT_IN_Q8.get(self._shape.architecture, ())):
            return "Q8_0"
        if kind is Category.OUTPUT or (self._is_tied and kind is Category.EMBEDDING):
            is_odd = self._shape.architecture == "falcon" or not self._file_type.base.fits(tensor.shape[0])
            if name == "MXFP4_MOE" or is_odd or self._base == "Q8_0":
                return "Q8_0"
            return "Q5_K" if name in _OUTPUT_IN_Q5 else "Q6_K"
        if name == "MXFP4_MOE":
            is_expert = len(tensor.shape) > 2 and tensor.shape[2] > 1
            if self._shape.architecture == "bailingmoe3":
                is_expert = is_expert and kind in (Category.UP, Category.GATE, Category.DOWN)
            return "MXFP4" if is_expert else "Q8_0"
        if kind is Category.EMBEDDING:
            return _EMBEDDING.get(name, self._base)
        rule = self._low_bit if name in _LOW_BIT else self._usual
        return rule(kind, self._place(tensor.name, kind)) or self._base

    @property
    def _base(self) -> str:
        return self._file_type.base_name

    def _place(self, name: str, kind: Category) -> _TensorPosition:
        if kind is Category.VALUE:
            return _TensorPosition(self._seen[kind], self._n_values, self._shape, self._has_imatrix)
        # with experts a layer has several such tensors, so the name tells the layer
        layer = re.match(r"blk\.(\d+)\.", name) if self._shape.n_experts > 1 else None
        ordinal = int(layer[1]) if layer else self._seen[kind]
        return _TensorPosition(ordinal, self._shape.n_layers, self._shape, self._has_imatrix)

    def _low_bit(self, kind: Category, at: _TensorPosition) -> str | None:
        is_better = self._file_type.name in _BETTER_LOW_BIT
        if kind is Category.VALUE:
            if at.is_large_gqa or self._shape.n_experts >= _LARGE_GQA:
                return "Q4_K"
            return "IQ3_S" if is_better else "Q2_K"
        if kind is Category.KEY:
            return "Q4_K" if at.is_mixtral else None
        if kind is Category.DOWN and at.is_early:
            return "IQ3_S" if is_better else "Q2_K"
        if kind is Category.ATTENTION_OUTPUT:
            usual = "IQ2_XXS" if self._base in ("IQ1_S", "IQ1_M") else "IQ3_S" if is_better else None
            return "Q5_K" if at.is_mixtral else usual
        return None

    def _usual(self, kind: Category, at: _TensorPosition) -> str | None:
        name = self._file_type.name
        match kind:
            case Category.VALUE:
                if at.is_mixtral:
                    return "Q8_0"
                wanted = (_VALUE[name](at) if name in _VALUE else None) or self._base
                return "Q5_K" if self._shape.is_70b and wanted in ("Q3_K", "Q4_K") else wanted
            case Category.KEY | Category.QUERY:
                return "Q8_0" if kind is Category.KEY and at.is_mixtral else _QUERY_KEY.get(name)
            case Category.DOWN:
                return _DOWN[name](at) if name in _DOWN else None
            case Category.ATTENTION_OUTPUT:
                return self._attention_output(at)
            case Category.GATE | Category.UP:
                is_middle = not at.is_early and at.ordinal < 7 * at.count // 8
                return "IQ3_XXS" if name == "IQ3_XS" and is_middle else None
        return None

    def _attention_output(self, at: _TensorPosition) -> str | None:
        name = self._file_type.name
        if at.is_falcon:
            return "Q4_K" if name == "Q3_K_L" else None
        if at.is_mixtral:
            return "Q5_K" if name in _MIXTRAL_OUTPUT_IN_Q5 else None
        return _ATTENTION_OUTPUT.get(name)


def needs_imatrix(kind: TensorType) -> bool:
    # garbage without one, whatever the file type
    return kind.name in _NEEDS_IMATRIX


def _fitting(wanted: TensorType, n_columns: int) -> TensorType:
    if wanted.fits(n_columns):
        return wanted
    smaller = tensor_type_named(_FALLBACK.get(wanted.name, wanted.name))
    return smaller if smaller.fits(n_columns) else tensor_type_named("F16")
