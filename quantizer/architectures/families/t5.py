"""T5, mT5 and UMT5: an encoder and a decoder that attends to it, with learned biases for distances as positions.

Both have layers of their own, `enc.blk` and `dec.blk` in a GGUF. UMT5 has the biases in every layer, the others in the
first. Where embeddings and output are tied (the first T5), the decoder's last states are scaled, which llama.cpp leaves
out: its last norm takes the factor.
"""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures.architecture import Architecture, Hyperparameter
from quantizer.architectures.metadata_rows import SIZES, integer
from quantizer.architectures.shapes import ATTENTION, Dimensions, head_size
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import MappedTensor
from quantizer.convert.source_model import FileTensor

_DISTANCES: Dimensions = {"attn_rel_b.weight": ("n_heads", "n_distances")}
_CROSS_ATTENTION: Dimensions = {
    "cross_attn_norm.weight": ("n_embd",),
    **{f"cross_{name.replace('output', 'o')}": extents for name, extents in ATTENTION.items()},
}
_LAYER: Dimensions = {
    "attn_norm.weight": ("n_embd",),
    **{name.replace("output", "o"): extents for name, extents in ATTENTION.items()},
    "ffn_norm.weight": ("n_embd",),
    "ffn_up.weight": ("n_embd", "n_ff"),
    "ffn_down.weight": ("n_ff", "n_embd"),
}
_GATE: Dimensions = {"ffn_gate.weight": ("n_embd", "n_ff")}
_GATED = "gated-gelu"


def _encoder(config: Config) -> Dimensions:
    n_layers = config.integer("num_hidden_layers")
    return {"token_embd.weight": ("n_embd", "n_vocab"), **_stack("enc", n_layers, _LAYER, config)}


def _both(config: Config) -> Dimensions:
    output: Dimensions = {} if _is_tied(config) else {"output.weight": ("n_embd", "n_vocab")}
    decoder = _stack("dec", _n_decoder_layers(config), {**_LAYER, **_CROSS_ATTENTION}, config)
    return {**_encoder(config), **decoder, **output}


def _stack(name: str, n_layers: int, layer: Dimensions, config: Config) -> Dimensions:
    """Return the tensors of an encoder or a decoder."""
    gate = _GATE if config.text("feed_forward_proj") == _GATED else {}
    tensors: dict[str, tuple[str | int, ...]] = {f"{name}.output_norm.weight": ("n_embd",)}
    for i in range(n_layers):
        distances = _DISTANCES if i == 0 or config.flag("has_distances_everywhere") else {}
        tensors |= {f"{name}.blk.{i}.{key}": extents for key, extents in {**layer, **gate, **distances}.items()}
    return tensors


def _n_decoder_layers(config: Config) -> int:
    return config.integer("num_decoder_layers", "num_hidden_layers")


def _is_tied(config: Config) -> bool:
    return config.flag("tie_word_embeddings") is not False


def _scaled_norm(tensor: FileTensor, name: str, config: Config) -> FileTensor | MappedTensor:
    """Return the decoder's last norm with the factor of tied embeddings. Source: T5 of Mesh TensorFlow."""
    is_scaled = config.flag("scale_decoder_outputs")
    if not (_is_tied(config) if is_scaled is None else is_scaled):
        return tensor
    factor = config.integer("hidden_size") ** -0.5
    return MappedTensor(tensor, name, lambda values: values * values.dtype.type(factor))


_ENCODER = Architecture(
    hf_classes=("T5EncoderModel", "MT5EncoderModel"),
    gguf_name="t5encoder",
    hyperparameters=(
        *SIZES,
        Hyperparameter("attention.head_count", "u32", integer("num_attention_heads")),
        Hyperparameter("attention.key_length", "u32", head_size),
        Hyperparameter("attention.value_length", "u32", head_size),
        Hyperparameter("attention.layer_norm_rms_epsilon", "f32", lambda config: config.number("layer_norm_epsilon")),
        Hyperparameter("attention.layer_norm_epsilon", "f32", lambda config: config.number("layer_norm_epsilon")),
        Hyperparameter("attention.relative_buckets_count", "u32", integer("relative_attention_num_buckets")),
        Hyperparameter("attention.causal", "bool", lambda _config: False),
    ),
    model_tensors=_encoder,
    layer_tensors={},
    # the first checkpoints repeat the embeddings, and have distances between both sides, which are never used
    ignored=("coder.embed_tokens.weight", ".EncDecAttention.relative_attention_bias.weight"),
    unused=("decoder.", "lm_head."),
    aliases={
        "d_model": "hidden_size",
        "d_ff": "intermediate_size",
        "d_kv": "head_dim",
        "num_heads": "num_attention_heads",
        "num_layers": "num_hidden_layers",
        "n_positions": "max_position_embeddings",
    },
    defaults={
        "head_dim": 64,
        "max_position_embeddings": 512,
        "layer_norm_epsilon": 1e-6,
        "relative_attention_num_buckets": 32,
        "feed_forward_proj": "relu",
        "decoder_start_token_id": 0,
    },
    assumed={
        "feed_forward_proj": lambda config: _GATED if config.text("feed_forward_proj") == _GATED else "relu",
        "relative_attention_max_distance": lambda _config: 128,
    },
)
_T5 = replace(
    _ENCODER,
    hf_classes=("T5ForConditionalGeneration",),
    gguf_name="t5",
    hyperparameters=(
        *(row for row in _ENCODER.hyperparameters if row.key != "attention.causal"),
        Hyperparameter("decoder_block_count", "u32", _n_decoder_layers),
        Hyperparameter("decoder_start_token_id", "u32", integer("decoder_start_token_id")),
    ),
    model_tensors=_both,
    splits={"decoder.final_layer_norm.weight": {"decoder.final_layer_norm.weight": _scaled_norm}},
    approximations=lambda _config: (
        "localllm runs the encoder only, which makes embeddings: the decoder needs a program that runs both.",
    ),
    unused=(),
    # as transformers takes it: tied unless the config says otherwise
    defaults={**_ENCODER.defaults, "tie_word_embeddings": True},
)
_EVERYWHERE = {"has_distances_everywhere": True, "feed_forward_proj": _GATED}

T5 = (
    _ENCODER,
    _T5,
    replace(_ENCODER, hf_classes=("UMT5EncoderModel",), defaults={**_ENCODER.defaults, **_EVERYWHERE}),
    replace(
        _T5,
        hf_classes=("MT5ForConditionalGeneration",),
        defaults={**_T5.defaults, "scale_decoder_outputs": False},
    ),
    replace(_T5, hf_classes=("UMT5ForConditionalGeneration",), defaults={**_T5.defaults, **_EVERYWHERE}),
)
