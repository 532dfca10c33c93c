"""Layers of a model that predict further tokens (multi-token prediction, MTP; `nextn` in llama.cpp): whether llama.cpp
runs those of a file, and the bytes that they read.

llama.cpp ends the process where a tensor of such a layer is missing or a setting does not suit its graph, so all of
that is checked here, from the header. Source: graph_mtp, load_arch_tensors and load_arch_hparams in src/models, and
`create_memory` in src/llama-model.cpp of llama.cpp as vendored in llama-cpp-python 0.3.36. Without a graph there, so
without a row here: bailingmoe2, exaone4, exaone-moe, glm4 and dots3note ("preserved but unused"), and glm5-next (line
190 of its file throws "NextN graph not implemented yet").
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from offload.footprint.auxiliary_models import only_predicts
from quantizer.gguf.header import Header
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.validation import tensors_of

_Group = tuple[tuple[str, ...], ...]  # alternatives, each begun by the tensor that llama.cpp chooses it by


@dataclass(frozen=True, slots=True)
class _Prediction:
    """What llama.cpp needs to run prediction layers of an architecture: tensors (`.weight`, unless they name an
    ending), one alternative of each group, and those that a hyperparameter asks for, where it is not zero and where it
    is. It runs up to `n_most` such layers, one after the other."""

    needed: tuple[str, ...]
    groups: tuple[_Group, ...] = ()
    asked: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = ()
    n_most: int = 1


_NEXT = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm", "attn_output")
_EXPERTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
_SHARED_EXPERT = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
_FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")
_QKV: _Group = (("attn_qkv",), ("attn_q", "attn_k", "attn_v"))
_GATE_UP: _Group = (("ffn_gate_up_exps",), ("ffn_gate_exps", "ffn_up_exps"))
_GATED_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "post_attention_norm")
_LATENT_QUERIES = ("attn_q_a", "attn_q_a_norm", "attn_q_b")
_LATENT_KEYS = ("attn_kv_a_mqa", "attn_kv_a_norm", "attn_k_b", "attn_v_b")
_LATENT_EXPERTS = (*_NEXT, *_EXPERTS, *_SHARED_EXPERT, *_LATENT_QUERIES, *_LATENT_KEYS, "ffn_norm")
_INDEXER = tuple(f"indexer.{name}" for name in ("k_norm", "k_norm.bias", "proj", "attn_k", "attn_q_b"))
_MAX_CHAINED = 8  # layers, each with a context of its own; models have up to three

_PREDICTIONS: dict[str, _Prediction] = {
    "glm4moe": _Prediction((*_NEXT, *_EXPERTS, "post_attention_norm"), (_QKV,)),
    "hy_v3": _Prediction(
        (*_NEXT, *_EXPERTS, *_SHARED_EXPERT, "attn_q_norm", "attn_k_norm", "ffn_norm"), (_QKV,), n_most=_MAX_CHAINED
    ),
    "qwen35": _Prediction((*_NEXT, *_GATED_ATTENTION, *_FEED_FORWARD)),
    "qwen35moe": _Prediction((*_NEXT, *_GATED_ATTENTION, *_EXPERTS, *_SHARED_EXPERT, "ffn_gate_inp_shexp")),
    "qwen3next": _Prediction((*_NEXT, *_GATED_ATTENTION, *_EXPERTS, *_SHARED_EXPERT, "ffn_gate_inp_shexp")),
    "deepseek2": _Prediction(_LATENT_EXPERTS),
    "deepseek32": _Prediction((*_LATENT_EXPERTS, *_INDEXER)),
    "glm-dsa": _Prediction(_LATENT_EXPERTS),
    "bailingmoe3": _Prediction(
        (
            *(*_NEXT, "layer_output_norm", "attn_gate", *_LATENT_KEYS, "ffn_norm"),
            *(*_EXPERTS, "exp_probs_b.bias", *_SHARED_EXPERT),
        ),
        asked=(("attention.q_lora_rank", _LATENT_QUERIES, ("attn_q",)),),
    ),
    "nemotron_h_moe": _Prediction(
        (
            *(*_NEXT, "nextn.shared_head_norm", "post_attention_norm"),
            *("ffn_gate_inp", "exp_probs_b.bias", "ffn_up_exps", "ffn_down_exps", "ffn_up_shexp", "ffn_down_shexp"),
        ),
        (_QKV,),
        (("moe_latent_size", ("ffn_latent_down", "ffn_latent_up"), ()),),
    ),
    "cohere2moe": _Prediction(
        (*_NEXT, "ffn_gate_inp", "ffn_down_exps"), (_QKV, _GATE_UP), (("expert_shared_count", _SHARED_EXPERT, ()),)
    ),
    "mimo2": _Prediction((*_NEXT, "attn_qkv", "ffn_norm", *_FEED_FORWARD), n_most=_MAX_CHAINED),
    "step35": _Prediction(
        (*_NEXT, "ffn_norm"), (_QKV, ((*_EXPERTS, *_SHARED_EXPERT), _FEED_FORWARD)), n_most=_MAX_CHAINED
    ),
}
_LITE_DEEPSEEK = (26, 27, 48)  # trunk layers of the deepseek2 models that llama.cpp reads without latent queries


def has_mtp_layers(header: Header) -> bool:
    return bool(header.integer(f"{header.architecture}.nextn_predict_layers"))


def is_prediction_file(header: Header) -> bool:
    """Return whether a file has the prediction layers of a model alone, as llama.cpp's converter writes them with
    `--mtp`."""
    return header.architecture in _PREDICTIONS and only_predicts(header)


def prediction_file_faults(head: Header, model: Header) -> Iterator[str]:
    """Yield why the prediction layers of the file `head` cannot draft for `model`."""
    if head.architecture != model.architecture:
        yield f"it has layers of {head.architecture} models, and this is a {model.architecture} model"
        return
    own, other = (
        hyperparameter(header, "block_count") - hyperparameter(header, "nextn_predict_layers")
        for header in (head, model)
    )
    if own != other:
        yield f"it follows {own} layers, and this model has {other}"
    widths = [hyperparameter(header, "embedding_length") for header in (head, model)]
    if widths[0] != widths[1]:
        yield f"it needs hidden states of {widths[0]} numbers, and this model's have {widths[1]}"
    if mtp_layer_bytes(head) is None:
        yield "llama.cpp cannot run its layers"
    missing = {"token_embd.weight", "output_norm.weight"} - {tensor.name for tensor in head.tensors}
    if missing:
        yield f"it has no {min(missing)}"


def mtp_layer_bytes(header: Header) -> int | None:
    """Return the bytes that are read for a layer that predicts one token further, the output matrix included: where
    there are several, of the average one. None for a file without any that can draft. Raises ModelFileError for a bad
    shard."""
    prediction = _PREDICTIONS.get(header.architecture)
    n_layers = hyperparameter(header, "nextn_predict_layers")
    if prediction is None or not 0 < n_layers <= prediction.n_most:
        return None
    n_trunk = hyperparameter(header, "block_count") - n_layers
    if not _suits_graph(header, n_trunk):
        return None
    n_bytes = {tensor.name: tensor.n_bytes for tensor in tensors_of(header)}
    blocks = tuple(f"blk.{index}." for index in range(n_trunk, n_trunk + n_layers))
    if not all(_has_tensors(header, prediction, block, n_bytes) for block in blocks):
        return None
    own = sum(size for name, size in n_bytes.items() if name.startswith(blocks))
    return own // n_layers + n_bytes.get("output.weight", n_bytes.get("token_embd.weight", 0))


def _has_tensors(header: Header, prediction: _Prediction, block: str, names: Collection[str]) -> bool:
    def has(tensor: str) -> bool:
        return f"{block}{tensor}{'' if tensor.endswith('.bias') else '.weight'}" in names

    asked = [tensors[not hyperparameter(header, name)] for name, *tensors in prediction.asked]
    chosen = [next((some for some in group if has(some[0])), group[-1]) for group in prediction.groups]
    return all(has(tensor) for tensors in (prediction.needed, *asked, *chosen) for tensor in tensors)


def _suits_graph(header: Header, n_trunk: int) -> bool:
    """Return whether llama.cpp runs the layers with these hyperparameters."""
    prefix = header.architecture
    if n_trunk < 1 or hyperparameter(header, "leading_dense_block_count") > n_trunk:
        return False
    if prefix != "deepseek2":
        return True
    lengths = ("attention.q_lora_rank", "attention.key_length_mla", "attention.value_length_mla")
    is_latent = all(hyperparameter(header, length) for length in lengths)
    return is_latent and n_trunk not in _LITE_DEEPSEEK and f"{prefix}.attention.temperature_scale" not in header.fields
