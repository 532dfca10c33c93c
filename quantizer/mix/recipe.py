"""llama.cpp's recipe: which tensor type each tensor gets under a file type. Small and pure.

Owns that decision only: no file is read and no native code is called, so a plan can give sizes to the byte. Source:
llama.cpp src/llama-quant.cpp (tensor_allows_quantization, llama_tensor_get_type_impl, tensor_type_fallback) as vendored
in llama-cpp-python 0.3.36; the tests compare it with llama_model_quantize itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from quantizer.gguf.file_types import FileType
from quantizer.gguf.tensor_types import TensorType, tensor_type_named
from quantizer.mix.overrides import Overrides
from quantizer.mix.recipe_rules import (
    ATTENTION_OUTPUT,
    BETTER_LOW_BIT,
    DOWN,
    EMBEDDING,
    EXEMPT_FROM_IMATRIX,
    FALLBACK,
    KEPT_IN_Q8,
    LARGE_GQA,
    LOW_BIT,
    MIXTRAL_OUTPUT_IN_Q5,
    NEEDS_IMATRIX,
    OUTPUT_IN_Q5,
    QUERY_KEY,
    VALUE,
    ModelShape,
    TensorPosition,
)
from quantizer.mix.tensor_categories import Category, allows_quantization, category_of, in_loading_order

__all__ = ["Assignment", "MixTensor", "assign", "needs_imatrix"]

_NO_OVERRIDES = Overrides()


@dataclass(frozen=True, slots=True)
class MixTensor:
    """A tensor as the recipe sees it; `shape` in ggml order, `stored` its present type.

    One that `keeps_type` was made in that type: a larger one would hold nothing more.
    """

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
    recipe = _Recipe(file_type, shape, has_imatrix, overrides, [tensor.name for tensor in tensors])
    ordered = sorted(tensors, key=lambda tensor: in_loading_order(tensor.name))
    return {tensor.name: recipe.assign(tensor) for tensor in ordered}


class _Recipe:
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
        usual = self._usual_type(tensor)
        if tensor.keeps_type and tensor.stored.bits_per_weight <= _fitting(usual, tensor.shape[0]).bits_per_weight:
            usual = tensor.stored
        wanted = self._overrides.type_of(tensor.name, self._is_tied) or usual
        target = _fitting(wanted, tensor.shape[0])
        return Assignment(target, wanted, self._needs_imatrix(tensor.name, target))

    def _usual_type(self, tensor: MixTensor) -> TensorType:
        if not self._file_type.base.is_quantized:
            return self._file_type.base
        kind = category_of(tensor.name)
        name = self._usual_name(tensor, kind)
        self._seen[kind] += 1
        return tensor_type_named(name)

    def _usual_name(self, tensor: MixTensor, kind: Category) -> str:
        name = self._file_type.name
        if any(part in tensor.name for part in KEPT_IN_Q8.get(self._shape.architecture, ())):
            return "Q8_0"
        if kind is Category.OUTPUT or (self._is_tied and kind is Category.EMBEDDING):
            return self._output(tensor)
        if name == "MXFP4_MOE":
            return self._mxfp4(tensor, kind)
        if kind is Category.EMBEDDING:
            return EMBEDDING.get(name, self._base)
        rule = self._low_bit if name in LOW_BIT else self._usual
        return rule(kind, self._place(tensor.name, kind)) or self._base

    @property
    def _base(self) -> str:
        return self._file_type.base_name

    def _output(self, tensor: MixTensor) -> str:
        name = self._file_type.name
        is_odd = self._shape.architecture == "falcon" or not self._file_type.base.fits(tensor.shape[0])
        if name == "MXFP4_MOE" or is_odd or self._base == "Q8_0":
            return "Q8_0"
        return "Q5_K" if name in OUTPUT_IN_Q5 else "Q6_K"

    def _mxfp4(self, tensor: MixTensor, kind: Category) -> str:
        is_expert = len(tensor.shape) > 2 and tensor.shape[2] > 1
        if self._shape.architecture == "bailingmoe3":
            is_expert = is_expert and kind in (Category.UP, Category.GATE, Category.DOWN)
        return "MXFP4" if is_expert else "Q8_0"

    def _place(self, name: str, kind: Category) -> TensorPosition:
        if kind is Category.VALUE:
            return TensorPosition(self._seen[kind], self._n_values, self._shape, self._has_imatrix)
        # with experts a layer has several such tensors, so the name tells the layer
        layer = re.match(r"blk\.(\d+)\.", name) if self._shape.n_experts > 1 else None
        ordinal = int(layer[1]) if layer else self._seen[kind]
        return TensorPosition(ordinal, self._shape.n_layers, self._shape, self._has_imatrix)

    def _low_bit(self, kind: Category, at: TensorPosition) -> str | None:
        is_better = self._file_type.name in BETTER_LOW_BIT
        if kind is Category.VALUE:
            if at.is_large_gqa or self._shape.n_experts >= LARGE_GQA:
                return "Q4_K"
            return "IQ3_S" if is_better else "Q2_K"
        if kind is Category.KEY:
            return "Q4_K" if at.is_mixtral else None
        if kind is Category.DOWN and at.is_early:
            return "IQ3_S" if is_better else "Q2_K"
        if kind is Category.ATTENTION_OUTPUT:
            return self._low_bit_attention_output(at)
        return None

    def _low_bit_attention_output(self, at: TensorPosition) -> str | None:
        if at.is_mixtral:
            return "Q5_K"
        if self._base in ("IQ1_S", "IQ1_M"):
            return "IQ2_XXS"
        return "IQ3_S" if self._file_type.name in BETTER_LOW_BIT else None

    def _usual(self, kind: Category, at: TensorPosition) -> str | None:
        name = self._file_type.name
        match kind:
            case Category.VALUE:
                return self._value(at)
            case Category.KEY | Category.QUERY:
                return "Q8_0" if kind is Category.KEY and at.is_mixtral else QUERY_KEY.get(name)
            case Category.DOWN:
                return DOWN[name](at) if name in DOWN else None
            case Category.ATTENTION_OUTPUT:
                return self._attention_output(at)
            case Category.GATE | Category.UP:
                is_middle = not at.is_early and at.ordinal < 7 * at.count // 8
                return "IQ3_XXS" if name == "IQ3_XS" and is_middle else None
        return None

    def _value(self, at: TensorPosition) -> str | None:
        if at.is_mixtral:
            return "Q8_0"
        rule = VALUE.get(self._file_type.name)
        wanted = (rule(at) if rule else None) or self._base
        return "Q5_K" if self._shape.is_70b and wanted in ("Q3_K", "Q4_K") else wanted

    def _attention_output(self, at: TensorPosition) -> str | None:
        name = self._file_type.name
        if at.is_falcon:
            return "Q4_K" if name == "Q3_K_L" else None
        if at.is_mixtral:
            return "Q5_K" if name in MIXTRAL_OUTPUT_IN_Q5 else None
        return ATTENTION_OUTPUT.get(name)

    def _needs_imatrix(self, name: str, target: TensorType) -> bool:
        is_poor = target.name == "Q2_K" and self._file_type.name == "Q2_K_S" and name not in EXEMPT_FROM_IMATRIX
        return is_poor or needs_imatrix(target)


def needs_imatrix(kind: TensorType) -> bool:
    """Return whether tensors in `kind` are garbage without an importance matrix, whatever the file type."""
    return kind.name in NEEDS_IMATRIX


def _fitting(wanted: TensorType, n_columns: int) -> TensorType:
    if wanted.fits(n_columns):
        return wanted
    smaller = tensor_type_named(FALLBACK.get(wanted.name, wanted.name))
    return smaller if smaller.fits(n_columns) else tensor_type_named("F16")
