"""The facts of a model that people ask for, from its GGUF header alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from quantizer.gguf.header import Header
from quantizer.gguf.hyperparameters import hyperparameter, per_layer
from quantizer.gguf.layer_caches import kv_shape_of
from quantizer.gguf.tensor_types import TENSOR_TYPES, file_type_name

_F16_BYTES = 2
_FIM_KEYS = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")


@dataclass(frozen=True, slots=True)
class TypeShare:
    """The share of one tensor type in a file."""

    n_tensors: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's facts; numbers are 0 and texts empty where the file has none.
    `has_tools`: the chat template has a place for tools."""

    name: str
    architecture: str
    n_parameters: int
    file_type: str
    types: Mapping[str, TypeShare]
    bits_per_weight: float  # of tensors, without metadata
    file_bytes: int
    n_ctx_train: int
    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    n_experts: int
    kv_bytes_per_token: int
    n_vocab: int
    tokenizer: str
    has_chat_template: bool
    has_tools: bool
    has_fim: bool
    licence: str
    template_sha256: str


def read_model_info(header: Header) -> ModelInfo:
    """Gather the facts of a header that was validated."""
    shape = kv_shape_of(header)
    tokens = "tokenizer.ggml.tokens"
    template = header.text("tokenizer.chat_template")
    n_parameters = sum(tensor.n_elements for tensor in header.tensors)
    n_bits = 8 * sum(tensor.n_bytes for tensor in header.tensors)
    shares: dict[str, TypeShare] = {}
    for tensor in header.tensors:
        name = TENSOR_TYPES[tensor.type_id].name
        before = shares.get(name, TypeShare(0, 0))
        shares[name] = TypeShare(before.n_tensors + 1, before.n_bytes + tensor.n_bytes)
    return ModelInfo(
        name=header.text("general.name"),
        architecture=header.architecture,
        n_parameters=n_parameters,
        file_type=file_type_name(header.integer("general.file_type")),
        types=dict(sorted(shares.items(), key=lambda item: -item[1].n_bytes)),  # the largest first
        bits_per_weight=round(n_bits / n_parameters, 3) if n_parameters else 0.0,
        file_bytes=header.file_bytes,
        n_ctx_train=hyperparameter(header, "context_length"),
        n_layers=hyperparameter(header, "block_count"),
        n_embd=hyperparameter(header, "embedding_length"),
        n_heads=_largest(header, "attention.head_count"),
        n_kv_heads=_largest(header, "attention.head_count_kv") or _largest(header, "attention.head_count"),
        n_experts=hyperparameter(header, "expert_count"),
        kv_bytes_per_token=(shape.k_elements + shape.v_elements) * _F16_BYTES,
        n_vocab=header.array_ref(tokens).count if tokens in header.fields else 0,
        tokenizer=header.text("tokenizer.ggml.pre") or header.text("tokenizer.ggml.model"),
        has_chat_template=bool(template),
        has_tools="tools" in template or "tokenizer.chat_template.tool_use" in header.fields,
        has_fim=any(key in header.fields for key in _FIM_KEYS),
        licence=header.text("general.license"),
        template_sha256=hashlib.sha256(template.encode()).hexdigest() if template else "",
    )


def _largest(header: Header, suffix: str) -> int:
    return int(max(per_layer(header, suffix), default=0))
