"""The projector of Gemma 4: a tower that rotates by row and column, looks positions up by both, and averages squares.

It takes pictures of any size, with colours from zero to one. Smaller models bound what goes into each matrix and what
comes out; larger ones shift and scale what the tower gives.
"""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Layout, Settings
from quantizer.architectures.projectors import projector
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import MappedTensor
from quantizer.convert.source_model import FileTensor

_BOUNDS = (".input_min", ".input_max", ".output_min", ".output_max")
_NORMS: shapes.Dimensions = {
    "ln1.weight": ("n_embd",),
    "ln2.weight": ("n_embd",),
    "attn_post_norm.weight": ("n_embd",),
    "ffn_post_norm.weight": ("n_embd",),
    "attn_q_norm.weight": ("n_head",),
    "attn_k_norm.weight": ("n_head",),
}
_MATRICES: shapes.Dimensions = {
    **shapes.without(projector.TOWER_WEIGHTS, *_NORMS),
    "ffn_gate.weight": ("n_embd", "n_ff"),
}


def _number(bound: FileTensor, name: str, _config: Config) -> MappedTensor:
    """Return a number that is stored without dimensions as libmtmd reads it. Raises CheckpointError for several."""
    if bound.shape not in ((), (1,)):
        raise CheckpointError(f"{bound.name} is not a single number.", "Download the checkpoint again.")
    return MappedTensor(replace(bound, shape=(1,)), name, lambda values: values)


def _layer(config: Config, _i: int) -> shapes.Dimensions:
    bounds: shapes.Dimensions = {name.removesuffix(".weight") + bound: (1,) for name in _MATRICES for bound in _BOUNDS}
    return {**_NORMS, **_MATRICES, **(bounds if config.flag("use_clipped_linears") else {})}


def _outside_layers(config: Config) -> shapes.Dimensions:
    shift: shapes.Dimensions = {"v.std_bias": ("n_embd",), "v.std_scale": ("n_embd",)}
    return {
        "v.patch_embd.weight": ("n_patch", "n_patch", 3, "n_embd"),
        "v.position_embd.weight": ("n_embd", config.integer("position_embedding_size"), 2),
        "mm.input_projection.weight": ("n_embd", "n_projected"),
        **(shift if config.flag("standardize") else {}),
    }


def _without_hearing(config: Config) -> tuple[str, ...]:
    hears = config.section("model").values.get("audio_config") is not None
    return ("What lets the model hear is left out; the projector sees only.",) if hears else ()


GEMMA_4_PROJECTORS = (
    projector.Projector(
        kind="gemma4v",
        hf_classes=("Gemma4ForConditionalGeneration",),
        modules=("vision_tower.", "embed_vision."),
        hyperparameters=(
            *projector.TOWER,
            # colours stay as they are
            rows.f32_list("vision.image_mean", [0.0, 0.0, 0.0]),
            rows.f32_list("vision.image_std", [1.0, 1.0, 1.0]),
            *projector.GELU,
            rows.f32("vision.attention.layer_norm_epsilon", "rms_norm_eps"),
            rows.u32("vision.projector.scale_factor", lambda config: config.integer("pooling_kernel_size")),
        ),
        tensors=projector.TowerTensors(layer=_layer, model=_outside_layers),
        names=projector.TowerNames(
            renames={
                r"^(model\.)?vision_tower\.encoder\.layers\.": "vision_model.model.layers.",
                r"^(model\.)?vision_tower\.": "model.vision_tower.",
                r"^(model\.)?embed_vision\.embedding_projection\.": "mm.input_projection.",
                r"_proj\.linear\.weight$": "_proj.weight",
                r"\.self_attn\.([qkvo])_proj\.": r".self_attn.\1_proj.linear.",
                r"\.position_embedding_table$": ".position_embedding_table.weight",
            },
            suffixes=_BOUNDS,
        ),
        layout=Layout(
            splits={
                ".patch_embedder.input_proj.weight": {".patch_embedder.input_proj.weight": projector.colours_apart},
                **{bound: {bound: _number} for bound in _BOUNDS},
            }
        ),
        settings=Settings(
            defaults=projector.sizes(
                hidden=768,
                feed_forward=3072,
                layers=16,
                heads=12,
                patch_size=16,
                head_dim=64,
                rms_norm_eps=1e-6,
                pooling_kernel_size=3,
                position_embedding_size=10240,
            ),
            assumed={
                "hidden_activation": "gelu_pytorch_tanh",
                "attention_bias": False,
                "num_key_value_heads": lambda config: config.integer("num_attention_heads"),
                "head_dim": shapes.even_head_size,
                "rope_parameters": lambda config: {**config.section("rope_parameters").values, "rope_theta": 100.0},
            },
        ),
        derived=lambda _config: {"image_size": 224},  # as llama.cpp has it: libmtmd takes all
        approximations=_without_hearing,
        processor_assumed={**projector.PLAIN_PROCESSOR, "do_normalize": False},
    ),
)
