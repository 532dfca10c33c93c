"""Language models of classes that see or hear, each like one that does not.

InternVL takes one of several, named by the model_type in its text_config. Rotations of GLM-4V, GLM-OCR and PaddleOCR-VL
are divided into sections; llama.cpp then rotates halves of a head, where dense models of GLM are stored for neighbours.
llama.cpp's converter divides those of Qwen 3-ASR too, which leaves two pairs of each head unrotated: not here.
Voxtral's encoder is left out: llama.cpp averages pairs of its vectors, which the original does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture
from quantizer.architectures.families.dense import DENSE
from quantizer.architectures.families.llama import LLAMA_LIKE
from quantizer.architectures.families.qwen import QWEN
from quantizer.architectures.families.recurrent import LFM
from quantizer.architectures.families.shared_experts import ERNIE, GLM
from quantizer.checkpoint.config import CheckpointError, Config

_BY_CLASS = {name: entry for entry in (*LLAMA_LIKE, *QWEN, *LFM, *DENSE, *GLM, *ERNIE) for name in entry.hf_classes}
_TOWER = ("vision_tower.", "multi_modal_projector.")


def _like(language_class: str, hf_classes: tuple[str, ...], skipped_modules: tuple[str, ...]) -> Architecture:
    entry = _BY_CLASS[language_class]
    return replace(entry, hf_classes=hf_classes, names=replace(entry.names, skipped_modules=skipped_modules))


def _with_defaults(entry: Architecture, **defaults: Any) -> Architecture:
    return replace(entry, settings=replace(entry.settings, defaults=defaults))


def _one_of(hf_class: str, kinds: Mapping[str, str]) -> Architecture:
    """Return the entry of `hf_class`; `kinds` has its language models: model_type -> HF class, the usual one first."""
    entries = {kind: _like(language_class, (hf_class,), _TOWER) for kind, language_class in kinds.items()}
    usual = next(iter(kinds))

    def variant(config: Config) -> Architecture:
        kind = config.text("model_type") or usual
        if kind not in entries:
            raise CheckpointError(
                f"The language model {kind[:32]!r} is not supported in {hf_class}.", "Choose another model."
            )
        return entries[kind]

    return replace(entries[usual], variant=variant, variants=tuple(entries.values()))


def _halves(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    """Return the rows of heads with neighbours in the two halves of what is rotated."""
    size, n_rotated = shapes.head_size(config), rows.partly_rotated(1.0)(config)
    if not isinstance(n_rotated, int) or not 0 <= n_rotated <= size or n_rotated % 2 or n_rows % size:
        raise CheckpointError(
            f"{n_rows} rows do not split into heads with an even number of rotated dimensions.", "Check config.json."
        )
    rotated = np.arange(n_rotated).reshape(-1, 2).T.reshape(-1)
    order = np.concatenate([rotated, np.arange(n_rotated, size)])
    row_numbers: npt.NDArray[np.intp] = np.arange(0, n_rows, size)[:, None] + order
    return row_numbers.reshape(-1)


_SECTIONS = rows.i32_list("rope.dimension_sections", rows.rotation_sections((8, 12, 12)))
_ERNIE = _BY_CLASS["Ernie4_5ForCausalLM"]
_GLM, _GLM_EXPERTS = _BY_CLASS["Glm4ForCausalLM"], _BY_CLASS["Glm4MoeForCausalLM"]

_GLM_4V = replace(
    _GLM,
    hf_classes=("Glm4vForConditionalGeneration",),
    hyperparameters=(
        *rows.without(_GLM.hyperparameters, "rope.dimension_count"),
        rows.u32("rope.dimension_count", rows.partly_rotated(1.0)),
        _SECTIONS,
    ),
    tensors=replace(
        _GLM.tensors,
        layer={
            **shapes.PRE_NORMS,
            **shapes.POST_NORMS,
            **shapes.ATTENTION,
            **shapes.QKV_BIASES,
            **shapes.FUSED_FEED_FORWARD,
        },
    ),
    names=replace(_GLM.names, skipped_modules=("visual.",)),
    layout=replace(_GLM.layout, row_orders={"ATTN_Q": _halves, "ATTN_K": _halves}),
    settings=_GLM.settings.plus(assumed={"head_dim": shapes.even_head_size}),
)

SEEING = (
    _GLM_4V,
    replace(
        _GLM_4V,
        hf_classes=("GlmOcrForConditionalGeneration",),
        tensors=replace(_GLM_4V.tensors, layer=_GLM.tensors.layer),
        # what predicts a token further is left out
        names=replace(_GLM_4V.names, leaves_later_layers=True),
        settings=replace(_GLM_4V.settings, assumed=_GLM.settings.assumed),
    ),
    replace(
        _GLM_EXPERTS,
        hf_classes=("Glm4vMoeForConditionalGeneration",),
        hyperparameters=(*_GLM_EXPERTS.hyperparameters, _SECTIONS),
        names=replace(_GLM_EXPERTS.names, skipped_modules=("visual.",)),
        settings=_GLM_EXPERTS.settings.plus(defaults={"attention_bias": True}),
    ),
    _one_of(
        "InternVLForConditionalGeneration",
        {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"},
    ),
    # the config.json of Pixtral 12B lacks what is Mistral's
    _with_defaults(
        _one_of("LlavaForConditionalGeneration", {"mistral": "MistralForCausalLM"}),
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        rms_norm_eps=1e-6,
    ),
    _one_of("Lfm2VlForConditionalGeneration", {"lfm2": "Lfm2ForCausalLM"}),
    _like(
        "Qwen3ForCausalLM",
        ("LightOnOcrForConditionalGeneration", "LightOnOCRForConditionalGeneration"),
        ("vision_encoder.", "vision_projection."),
    ),
    replace(
        _ERNIE,
        hf_classes=("PaddleOCRVLForConditionalGeneration",),
        gguf_name="paddleocr",
        hyperparameters=(
            *_ERNIE.hyperparameters,
            rows.i32_list("rope.dimension_sections", rows.rotation_sections((16, 24, 24))),
        ),
        names=replace(_ERNIE.names, skipped_modules=("visual.", "projector.", "mlp_AR.")),
        settings=_ERNIE.settings.plus(defaults={"head_dim": 128}),
    ),
)


_AUDIO_TOWER = ("audio_tower.", "multi_modal_projector.")
_QWEN_3_ASR = _like("Qwen3ForCausalLM", ("Qwen3ASRForConditionalGeneration",), _AUDIO_TOWER)

HEARING = (
    # those of Qwen 2, which Qwen 2-Audio was published without
    _with_defaults(
        _like(
            "Qwen2ForCausalLM",
            ("Qwen2AudioForConditionalGeneration", "AudioFlamingo3ForConditionalGeneration"),
            _AUDIO_TOWER,
        ),
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
    ),
    replace(
        _QWEN_3_ASR,
        names=replace(_QWEN_3_ASR.names, renames={r"^thinker\.": ""}),
        settings=_QWEN_3_ASR.settings.plus(assumed={"attention_bias": False}),
    ),
    _like("LlamaForCausalLM", ("VoxtralForConditionalGeneration",), _AUDIO_TOWER),
)
