"""Encoders: BERT, DistilBERT, RoBERTa, XLM-R and their rerankers; Nomic's BERT, with rotary positions, a gated
feed-forward and GPT-2's names of settings.
"""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures.architecture import Architecture, Hyperparameter, Value
from quantizer.architectures.metadata_rows import LAYER_NORM, ROPE, SIZES, integer
from quantizer.architectures.shapes import ATTENTION, FUSED_ATTENTION, GATED_FEED_FORWARD, Dimensions, biases
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import positions_beyond_padding, whole_tensor
from quantizer.errors import CheckpointError

__all__ = ["BERT", "NOMIC"]

_RANK = 4  # llama.cpp's number for pooling by a head that ranks

_ENCODER = (
    *SIZES,
    *LAYER_NORM,
    Hyperparameter("attention.head_count", "u32", integer("num_attention_heads")),
    Hyperparameter("attention.causal", "bool", lambda _config: False),
)
_NORMS: Dimensions = {"attn_output_norm.weight": ("n_embd",), "layer_output_norm.weight": ("n_embd",)}
_WEIGHTS: Dimensions = {
    **ATTENTION,
    **_NORMS,
    "ffn_up.weight": ("n_embd", "n_ff"),
    "ffn_down.weight": ("n_ff", "n_embd"),
}
_EMBEDDINGS: Dimensions = {
    "token_embd.weight": ("n_embd", "n_vocab"),
    "token_types.weight": ("n_embd", "n_token_types"),
    "token_embd_norm.weight": ("n_embd",),
    "token_embd_norm.bias": ("n_embd",),
}
_RANKING: Dimensions = {"cls.weight": ("n_embd", "n_embd"), "cls.output.weight": ("n_embd", "n_labels")}


def _n_positions_beyond_padding(config: Config) -> int:
    return config.integer("max_position_embeddings") - config.integer("pad_token_id") - 1


def _labels(config: Config) -> Value:
    """Return the names of a ranker's outputs, by which llama.cpp counts them."""
    labels = config.section("id2label").values
    names = [labels.get(str(i)) for i in range(len(labels))]
    if not all(isinstance(name, str) for name in names):
        raise CheckpointError("config.json does not number its labels from 0 on.", "Check id2label.")
    return [str(name) for name in names]


_BERT = Architecture(
    hf_classes=("BertModel", "BertForMaskedLM"),
    gguf_name="bert",
    hyperparameters=_ENCODER,
    model_tensors=lambda _config: {**_EMBEDDINGS, "position_embd.weight": ("n_embd", "n_positions")},
    layer_tensors={**_WEIGHTS, **biases(_WEIGHTS)},
    # what the first checkpoints call the two vectors of a norm
    splits={".gamma": {".weight": whole_tensor}, ".beta": {".bias": whole_tensor}},
    ignored=("embeddings.position_ids",),
    prefix="bert.",
    unused=("cls.", "pooler."),
    defaults={"type_vocab_size": 2, "layer_norm_eps": 1e-12},
    assumed={
        "hidden_act": lambda _config: "gelu",
        "position_embedding_type": lambda _config: "absolute",
        "is_decoder": lambda _config: False,
    },
)
_DISTILLED = replace(
    _BERT,
    hf_classes=("DistilBertModel", "DistilBertForMaskedLM"),
    model_tensors=lambda config: {
        name: extents for name, extents in _BERT.model_tensors(config).items() if name != "token_types.weight"
    },
    prefix="distilbert.",
    unused=("vocab_",),
    aliases={
        "dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "activation": "hidden_act",
    },
    defaults={"type_vocab_size": 1, "layer_norm_eps": 1e-12},
)
_ROBERTA = replace(
    _BERT,
    hf_classes=("RobertaModel", "RobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaForMaskedLM"),
    hyperparameters=(
        *(row for row in _ENCODER if row.key != "context_length"),
        Hyperparameter("context_length", "u32", _n_positions_beyond_padding),
    ),
    model_tensors=lambda config: {
        **_EMBEDDINGS,
        "position_embd.weight": ("n_embd", _n_positions_beyond_padding(config)),
    },
    row_orders={"POS_EMBD": positions_beyond_padding},
    prefix="roberta.",
    unused=("lm_head.", "pooler."),
    defaults={**_BERT.defaults, "pad_token_id": 1},
)

BERT = (
    _BERT,
    _DISTILLED,
    _ROBERTA,
    replace(
        _ROBERTA,
        hf_classes=("RobertaForSequenceClassification", "XLMRobertaForSequenceClassification"),
        hyperparameters=(
            *_ROBERTA.hyperparameters,
            Hyperparameter("pooling_type", "u32", lambda _config: _RANK),
            Hyperparameter("classifier.output_labels", "str[]", _labels),
        ),
        model_tensors=lambda config: {**_ROBERTA.model_tensors(config), **_RANKING, **biases(_RANKING)},
        defaults={**_ROBERTA.defaults, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}},
        # llama.cpp reads both texts of a pair as of the first type
        assumed={**_ROBERTA.assumed, "type_vocab_size": lambda _config: 1},
    ),
)


def _n_trained_positions(config: Config) -> Value:
    """Return the positions of training: beyond them its rope would change with a text's length, unlike llama.cpp's."""
    return min(config.integer("max_position_embeddings"), config.integer("max_trained_positions"))


NOMIC = Architecture(
    hf_classes=("NomicBertModel",),
    gguf_name="nomic-bert",
    hyperparameters=(
        *(row for row in _ENCODER if row.key != "context_length"),
        *ROPE,
        Hyperparameter("context_length", "u32", _n_trained_positions),
    ),
    model_tensors=lambda _config: _EMBEDDINGS,
    layer_tensors={**FUSED_ATTENTION, **GATED_FEED_FORWARD, **_NORMS, **biases(_NORMS)},
    aliases={
        "n_embd": "hidden_size",
        "n_inner": "intermediate_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings",
        "layer_norm_epsilon": "layer_norm_eps",
        "rotary_emb_base": "rope_theta",
    },
    defaults={
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "max_trained_positions": 2048,
        "rope_theta": 1000.0,
    },
    assumed={
        "activation_function": lambda _config: "swiglu",
        "hidden_act": lambda _config: "silu",
        "rotary_emb_fraction": lambda _config: 1.0,
        "moe_every_n_layers": lambda _config: 0,
        **dict.fromkeys(
            (
                *("causal", "prenorm", "parallel_block", "use_rms_norm", "rotary_emb_interleaved"),
                *("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"),
            ),
            lambda _config: False,
        ),
    },
)
