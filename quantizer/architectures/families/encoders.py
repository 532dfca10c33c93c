"""Encoders. BERT, DistilBERT, RoBERTa, CamemBERT, XLM-R and their rerankers; Nomic's BERT: rotary positions, a gated
feed-forward, GPT-2's names of settings. EuroBERT: a Llama without a causal mask. ModernBERT: windows around each token
in two of three layers, no norm in the first.

T5, mT5 and UMT5: an encoder and a decoder that attends to it, with learned biases for distances as positions. Both have
layers of their own, `enc.blk` and `dec.blk` in a GGUF. UMT5 has the biases in every layer, the others in the first.
Where embeddings and output are tied (the first T5), the decoder's last states are scaled, which llama.cpp leaves out:
its last norm takes the factor.
"""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Layout, RequiredTensors, Settings, TensorNames, Value
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import MappedTensor, positions_beyond_padding, whole_tensor
from quantizer.convert.source_model import FileTensor

_RANK = 4  # llama.cpp's number for pooling by a head that ranks

_ENCODER = (
    *(rows.SIZES + rows.LAYER_NORM),
    rows.u32("attention.head_count", "num_attention_heads"),
    rows.boolean("attention.causal", False),
)
_NORMS: shapes.Dimensions = {"attn_output_norm.weight": ("n_embd",), "layer_output_norm.weight": ("n_embd",)}
_WEIGHTS: shapes.Dimensions = {**shapes.ATTENTION, **_NORMS, **shapes.UNGATED_FEED_FORWARD}
_EMBEDDINGS: shapes.Dimensions = {
    "token_embd.weight": ("n_embd", "n_vocab"),
    "token_types.weight": ("n_embd", "n_token_types"),
    "token_embd_norm.weight": ("n_embd",),
    "token_embd_norm.bias": ("n_embd",),
}
_RANKING: shapes.Dimensions = {"cls.weight": ("n_embd", "n_embd"), "cls.output.weight": ("n_embd", "n_labels")}


def _n_positions_beyond_padding(config: Config) -> int:
    return config.integer("max_position_embeddings") - config.integer("pad_token_id") - 1


def _labels(config: Config) -> Value:
    """Return the names of a ranker's outputs, by which llama.cpp counts them."""
    labels = config.section("id2label").values
    names = [labels.get(str(i)) for i in range(len(labels))]
    if not all(isinstance(name, str) for name in names):
        raise CheckpointError("id2label in config.json is not numbered from 0.", "Check id2label.")
    return [str(name) for name in names]


_RANKER = (rows.u32("pooling_type", _RANK), rows.string_list("classifier.output_labels", _labels))
_LABELS = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}

_BERT = Architecture(
    hf_classes=("BertModel", "BertForMaskedLM"),
    gguf_name="bert",
    hyperparameters=_ENCODER,
    tensors=RequiredTensors(
        model=lambda _config: {**_EMBEDDINGS, "position_embd.weight": ("n_embd", "n_positions")},
        layer={**_WEIGHTS, **shapes.biases(_WEIGHTS)},
    ),
    names=TensorNames(ignored=("embeddings.position_ids",), prefix="bert.", unused=("cls.", "pooler.")),
    layout=Layout(
        # what the first checkpoints call the two vectors of a norm
        splits={".gamma": {".weight": whole_tensor}, ".beta": {".bias": whole_tensor}}
    ),
    settings=Settings(
        defaults={"type_vocab_size": 2, "layer_norm_eps": 1e-12},
        assumed={"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False},
    ),
)
_DISTILLED = replace(
    _BERT,
    hf_classes=("DistilBertModel", "DistilBertForMaskedLM"),
    tensors=replace(
        _BERT.tensors, model=lambda config: shapes.without(_BERT.tensors.model(config), "token_types.weight")
    ),
    names=replace(_BERT.names, prefix="distilbert.", unused=("vocab_",)),
    settings=replace(
        _BERT.settings,
        aliases={
            "dim": "hidden_size",
            "hidden_dim": "intermediate_size",
            "n_layers": "num_hidden_layers",
            "n_heads": "num_attention_heads",
            "activation": "hidden_act",
        },
        defaults={"type_vocab_size": 1, "layer_norm_eps": 1e-12},
    ),
)
_ROBERTA = replace(
    _BERT,
    hf_classes=(
        *("RobertaModel", "RobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaForMaskedLM"),
        *("CamembertModel", "CamembertForMaskedLM"),
    ),
    hyperparameters=(
        *rows.without(_ENCODER, "context_length"),
        rows.u32("context_length", _n_positions_beyond_padding),
    ),
    tensors=replace(
        _BERT.tensors,
        model=lambda config: {**_EMBEDDINGS, "position_embd.weight": ("n_embd", _n_positions_beyond_padding(config))},
    ),
    names=replace(_BERT.names, prefix="roberta.", unused=("lm_head.", "pooler.")),
    layout=replace(_BERT.layout, row_orders={"POS_EMBD": positions_beyond_padding}),
    settings=_BERT.settings.plus(defaults={"pad_token_id": 1}),
)

BERT = (
    _BERT,
    _DISTILLED,
    _ROBERTA,
    replace(
        _ROBERTA,
        hf_classes=(
            *("RobertaForSequenceClassification", "XLMRobertaForSequenceClassification"),
            "CamembertForSequenceClassification",
        ),
        hyperparameters=(*_ROBERTA.hyperparameters, *_RANKER),
        tensors=replace(
            _ROBERTA.tensors,
            model=lambda config: {**_ROBERTA.tensors.model(config), **_RANKING, **shapes.biases(_RANKING)},
        ),
        settings=_ROBERTA.settings.plus(
            defaults=_LABELS,
            # llama.cpp reads both texts of a pair as of the first type
            assumed={"type_vocab_size": 1},
        ),
    ),
)


NOMIC = Architecture(
    hf_classes=("NomicBertModel",),
    gguf_name="nomic-bert",
    hyperparameters=(
        *rows.without(_ENCODER, "context_length"),
        *rows.ROPE,
        # beyond the positions of training its rope would change with a text's length, unlike llama.cpp's
        rows.u32(
            "context_length",
            lambda config: min(config.integer("max_position_embeddings"), config.integer("max_trained_positions")),
        ),
    ),
    tensors=RequiredTensors(
        model=lambda _config: _EMBEDDINGS,
        layer={**shapes.FUSED_ATTENTION, **shapes.GATED_FEED_FORWARD, **_NORMS, **shapes.biases(_NORMS)},
    ),
    settings=Settings(
        aliases={
            "n_embd": "hidden_size",
            "n_inner": "intermediate_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_positions": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_eps",
            "rotary_emb_base": "rope_theta",
        },
        defaults={"type_vocab_size": 2, "layer_norm_eps": 1e-12, "max_trained_positions": 2048, "rope_theta": 1000.0},
        assumed={
            "activation_function": "swiglu",
            "hidden_act": "silu",
            "rotary_emb_fraction": 1.0,
            "moe_every_n_layers": 0,
            **dict.fromkeys(("causal", "prenorm", "parallel_block", "use_rms_norm", "rotary_emb_interleaved"), False),
            **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), False),
        },
    ),
)


_UNSCALED_ROPE = (*rows.UNSCALED, *rows.without(rows.ROPE, "rope.scaling."))


def _window_pattern(config: Config) -> Value:
    """Return which layers have a window; before transformers 5 the first of every few had none."""
    kinds, n = config.values.get("layer_types"), config.integer("global_attn_every_n_layers")
    if kinds is None:
        return [bool(i % max(1, n)) for i in range(config.integer("num_hidden_layers"))]
    return [kind == "sliding_attention" for kind in kinds]


_MODERN_LAYER: shapes.Dimensions = {
    "ffn_norm.weight": ("n_embd",),
    **shapes.FUSED_ATTENTION,
    **shapes.FUSED_FEED_FORWARD,
}
_LATER_MODERN_LAYER: shapes.Dimensions = {"attn_norm.weight": ("n_embd",), **_MODERN_LAYER}
_MODERN_BERT = Architecture(
    hf_classes=("ModernBertModel", "ModernBertForMaskedLM"),
    gguf_name="modern-bert",
    hyperparameters=(
        *rows.without(_ENCODER, "attention.layer_norm_epsilon"),
        *(rows.VOCABULARY + _UNSCALED_ROPE + rows.WINDOW_ROPE),
        rows.f32("attention.layer_norm_epsilon", "norm_eps"),
        rows.u32("attention.sliding_window", "local_attention"),
        rows.bool_list("attention.sliding_window_pattern", _window_pattern),
        rows.string("hidden_activation", lambda config: config.text("hidden_activation")),
    ),
    tensors=RequiredTensors(
        model=lambda _config: {
            "token_embd.weight": ("n_embd", "n_vocab"),
            "token_embd_norm.weight": ("n_embd",),
            "output_norm.weight": ("n_embd",),
        },
        # the embeddings were just normalised
        layer=lambda _config, i: _LATER_MODERN_LAYER if i else _MODERN_LAYER,
    ),
    names=TensorNames(prefix="model.", unused=("head.", "decoder.")),
    settings=Settings(
        aliases={"global_rope_theta": "rope_theta", "local_rope_theta": "rope_local_base_freq"},
        defaults={
            "norm_eps": 1e-5,
            "rope_theta": 160_000.0,
            "rope_local_base_freq": 10_000.0,
            "local_attention": 128,
            "global_attn_every_n_layers": 3,
            "hidden_activation": "gelu",
        },
        assumed={
            # llama.cpp has the gates of both
            "hidden_activation": lambda config: "silu" if config.text("hidden_activation") == "silu" else "gelu",
            **dict.fromkeys(("norm_bias", "mlp_bias", "attention_bias"), False),
        },
    ),
)


_MODERN_RANKING: shapes.Dimensions = {**_RANKING, "cls.norm.weight": ("n_embd",), "cls.output.bias": ("n_labels",)}
MODERN_BERT = (
    _MODERN_BERT,
    replace(
        _MODERN_BERT,
        hf_classes=("ModernBertForSequenceClassification",),
        hyperparameters=(
            *(_MODERN_BERT.hyperparameters + _RANKER),
            rows.u32("classifier.pooling_type", lambda config: 1 if config.text("classifier_pooling") == "mean" else 2),
        ),
        tensors=replace(
            _MODERN_BERT.tensors, model=lambda config: {**_MODERN_BERT.tensors.model(config), **_MODERN_RANKING}
        ),
        names=replace(_MODERN_BERT.names, unused=()),
        layout=replace(
            _MODERN_BERT.layout,
            splits={
                "classifier.weight": {"classifier.out_proj.weight": whole_tensor},
                "classifier.bias": {"classifier.out_proj.bias": whole_tensor},
            },
        ),
        settings=_MODERN_BERT.settings.plus(
            defaults={**_LABELS, "classifier_pooling": "cls"},
            assumed={
                "classifier_pooling": lambda config: "mean" if config.text("classifier_pooling") == "mean" else "cls",
                "classifier_activation": "gelu",
                "classifier_bias": False,
            },
        ),
    ),
)

EUROBERT = Architecture(
    hf_classes=("EuroBertModel", "EuroBertForMaskedLM"),
    gguf_name="eurobert",
    hyperparameters=(
        *rows.without(rows.DECODER, "rope."),
        *(rows.RMS_NORM + rows.VOCABULARY + _UNSCALED_ROPE),
        rows.boolean("attention.causal", False),
    ),
    tensors=RequiredTensors(
        model=lambda _config: {"token_embd.weight": ("n_embd", "n_vocab"), "output_norm.weight": ("n_embd",)},
        layer=shapes.LLAMA_LAYER,
    ),
    names=TensorNames(prefix="model.", unused=("lm_head.",)),
    settings=Settings(
        defaults={"rms_norm_eps": 1e-5},
        assumed={
            "hidden_act": "silu",
            "head_dim": shapes.even_head_size,
            "attention_bias": False,
            "mlp_bias": False,
        },
    ),
)


_DISTANCES: shapes.Dimensions = {"attn_rel_b.weight": ("n_heads", "n_distances")}
_CROSS_ATTENTION: shapes.Dimensions = {
    "cross_attn_norm.weight": ("n_embd",),
    **{f"cross_{name.replace('output', 'o')}": extents for name, extents in shapes.ATTENTION.items()},
}
_LAYER: shapes.Dimensions = {
    "attn_norm.weight": ("n_embd",),
    **{name.replace("output", "o"): extents for name, extents in shapes.ATTENTION.items()},
    "ffn_norm.weight": ("n_embd",),
    **shapes.UNGATED_FEED_FORWARD,
}
_GATE: shapes.Dimensions = {"ffn_gate.weight": ("n_embd", "n_ff")}
_GATED = "gated-gelu"


def _t5_encoder(config: Config) -> shapes.Dimensions:
    n_layers = config.integer("num_hidden_layers")
    return {"token_embd.weight": ("n_embd", "n_vocab"), **_t5_stack("enc", n_layers, _LAYER, config)}


def _t5_encoder_and_decoder(config: Config) -> shapes.Dimensions:
    output: shapes.Dimensions = {} if _is_tied(config) else {"output.weight": ("n_embd", "n_vocab")}
    decoder = _t5_stack("dec", _n_decoder_layers(config), {**_LAYER, **_CROSS_ATTENTION}, config)
    return {**_t5_encoder(config), **decoder, **output}


def _t5_stack(name: str, n_layers: int, layer: shapes.Dimensions, config: Config) -> shapes.Dimensions:
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


_T5_ENCODER = Architecture(
    hf_classes=("T5EncoderModel", "MT5EncoderModel"),
    gguf_name="t5encoder",
    hyperparameters=(
        *rows.SIZES,
        rows.u32("attention.head_count", "num_attention_heads"),
        rows.u32("attention.key_length", shapes.head_size),
        rows.u32("attention.value_length", shapes.head_size),
        rows.f32("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
        rows.f32("attention.layer_norm_epsilon", "layer_norm_epsilon"),
        rows.u32("attention.relative_buckets_count", "relative_attention_num_buckets"),
        rows.boolean("attention.causal", False),
    ),
    tensors=RequiredTensors(model=_t5_encoder, layer={}),
    names=TensorNames(
        # the first checkpoints repeat the embeddings, and have distances between both sides, which are never used
        ignored=("coder.embed_tokens.weight", ".EncDecAttention.relative_attention_bias.weight"),
        unused=("decoder.", "lm_head."),
    ),
    settings=Settings(
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
            "relative_attention_max_distance": 128,
        },
    ),
)
_T5 = replace(
    _T5_ENCODER,
    hf_classes=("T5ForConditionalGeneration", "T5WithLMHeadModel"),
    gguf_name="t5",
    hyperparameters=(
        *rows.without(_T5_ENCODER.hyperparameters, "attention.causal"),
        rows.u32("decoder_block_count", _n_decoder_layers),
        rows.u32("decoder_start_token_id", "decoder_start_token_id"),
    ),
    tensors=replace(_T5_ENCODER.tensors, model=_t5_encoder_and_decoder),
    names=replace(_T5_ENCODER.names, unused=()),
    layout=replace(
        _T5_ENCODER.layout,
        splits={"decoder.final_layer_norm.weight": {"decoder.final_layer_norm.weight": _scaled_norm}},
    ),
    settings=_T5_ENCODER.settings.plus(
        # as transformers takes it: tied unless the config says otherwise
        defaults={"tie_word_embeddings": True}
    ),
    approximations=lambda _config: (
        "localllm runs the encoder only, which makes embeddings: the decoder needs a program that runs both.",
    ),
)
_EVERYWHERE = {"has_distances_everywhere": True, "feed_forward_proj": _GATED}

T5 = (
    _T5_ENCODER,
    _T5,
    replace(_T5_ENCODER, hf_classes=("UMT5EncoderModel",), settings=_T5_ENCODER.settings.plus(defaults=_EVERYWHERE)),
    replace(
        _T5,
        hf_classes=("MT5ForConditionalGeneration",),
        settings=_T5.settings.plus(defaults={"scale_decoder_outputs": False}),
    ),
    replace(_T5, hf_classes=("UMT5ForConditionalGeneration",), settings=_T5.settings.plus(defaults=_EVERYWHERE)),
)
