"""Language models of classes that see, each like one that does not. InternVL takes one of several, named by the
model_type in its text_config. Rotations of GLM-4V, GLM-OCR and PaddleOCR-VL are divided into sections.

llama.cpp rotates halves of a head where there are sections; dense models of GLM are stored for neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from quantizer.architectures.architecture import Architecture, Hyperparameter
from quantizer.architectures.families.dense import DENSE
from quantizer.architectures.families.llama import LLAMA_LIKE
from quantizer.architectures.families.qwen import QWEN
from quantizer.architectures.families.recurrent import LFM
from quantizer.architectures.families.shared_experts import ERNIE, GLM
from quantizer.architectures.metadata_rows import partly_rotated, rotation_sections
from quantizer.architectures.shapes import (
    ATTENTION,
    FUSED_FEED_FORWARD,
    POST_NORMS,
    PRE_NORMS,
    QKV_BIASES,
    head_size,
)
from quantizer.checkpoint.config import CheckpointError, Config

_BY_CLASS = {name: entry for entry in (*LLAMA_LIKE, *QWEN, *LFM, *DENSE, *GLM, *ERNIE) for name in entry.hf_classes}
_TOWER = ("vision_tower.", "multi_modal_projector.")


def _one_of(hf_class: str, kinds: Mapping[str, str]) -> Architecture:
    """Return the entry of `hf_class`; `kinds` has its language models: model_type -> HF class, the usual one first."""
    entries = {
        kind: replace(_BY_CLASS[language_class], hf_classes=(hf_class,), skipped_modules=_TOWER)
        for kind, language_class in kinds.items()
    }
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
    """Return the rows of heads with neighbours in the two halves of what is rotated.

    Raises CheckpointError when the rows are not so many heads, or something is rotated alone.
    """
    size, n_rotated = head_size(config), partly_rotated(1.0)(config)
    if not isinstance(n_rotated, int) or not 0 <= n_rotated <= size or n_rotated % 2 or n_rows % size:
        raise CheckpointError(f"{n_rows} rows do not split into heads with pairs to rotate.", "Check config.json.")
    rotated = np.arange(n_rotated).reshape(-1, 2).T.reshape(-1)
    order = np.concatenate([rotated, np.arange(n_rotated, size)])
    rows: npt.NDArray[np.intp] = np.arange(0, n_rows, size)[:, None] + order
    return rows.reshape(-1)


_SECTIONS = Hyperparameter("rope.dimension_sections", "i32[]", rotation_sections((8, 12, 12)))
_ERNIE = _BY_CLASS["Ernie4_5ForCausalLM"]
_GLM, _GLM_EXPERTS = _BY_CLASS["Glm4ForCausalLM"], _BY_CLASS["Glm4MoeForCausalLM"]

_GLM_4V = replace(
    _GLM,
    hf_classes=("Glm4vForConditionalGeneration",),
    skipped_modules=("visual.",),
    hyperparameters=(
        *(row for row in _GLM.hyperparameters if row.key != "rope.dimension_count"),
        Hyperparameter("rope.dimension_count", "u32", partly_rotated(1.0)),
        _SECTIONS,
    ),
    layer_tensors={**PRE_NORMS, **POST_NORMS, **ATTENTION, **QKV_BIASES, **FUSED_FEED_FORWARD},
    row_orders={"ATTN_Q": _halves, "ATTN_K": _halves},
    assumed={
        **_GLM.assumed,
        "head_dim": lambda config: config.integer("hidden_size") // max(1, config.integer("num_attention_heads")),
    },
)

SEEING = (
    _GLM_4V,
    replace(
        _GLM_4V,
        hf_classes=("GlmOcrForConditionalGeneration",),
        # what predicts a token further stays behind
        leaves_later_layers=True,
        layer_tensors=_GLM.layer_tensors,
        assumed=_GLM.assumed,
    ),
    replace(
        _GLM_EXPERTS,
        hf_classes=("Glm4vMoeForConditionalGeneration",),
        skipped_modules=("visual.",),
        hyperparameters=(*_GLM_EXPERTS.hyperparameters, _SECTIONS),
        defaults={**_GLM_EXPERTS.defaults, "attention_bias": True},
    ),
    _one_of(
        "InternVLForConditionalGeneration",
        {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"},
    ),
    replace(
        _one_of("LlavaForConditionalGeneration", {"mistral": "MistralForCausalLM"}),
        # Pixtral 12B leaves out what is Mistral's
        defaults={
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6,
        },
    ),
    _one_of("Lfm2VlForConditionalGeneration", {"lfm2": "Lfm2ForCausalLM"}),
    replace(
        _BY_CLASS["Qwen3ForCausalLM"],
        hf_classes=("LightOnOcrForConditionalGeneration", "LightOnOCRForConditionalGeneration"),
        skipped_modules=("vision_encoder.", "vision_projection."),
    ),
    replace(
        _ERNIE,
        hf_classes=("PaddleOCRVLForConditionalGeneration",),
        gguf_name="paddleocr",
        skipped_modules=("visual.", "projector.", "mlp_AR."),
        hyperparameters=(
            *_ERNIE.hyperparameters,
            Hyperparameter("rope.dimension_sections", "i32[]", rotation_sections((16, 24, 24))),
        ),
        defaults={**_ERNIE.defaults, "head_dim": 128},
    ),
)


_BY_NAME = {name: entry for entry in (*LLAMA_LIKE, *QWEN) for name in entry.hf_classes}
_AUDIO_TOWER = ("audio_tower.", "multi_modal_projector.")

HEARING = (
    replace(
        _BY_NAME["Qwen2ForCausalLM"],
        hf_classes=("Qwen2AudioForConditionalGeneration", "AudioFlamingo3ForConditionalGeneration"),
        skipped_modules=_AUDIO_TOWER,
        # those of Qwen 2, which Qwen 2-Audio was published without
        defaults={
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-6,
        },
    ),
    replace(
        _BY_NAME["Qwen3ForCausalLM"],
        hf_classes=("Qwen3ASRForConditionalGeneration",),
        skipped_modules=_AUDIO_TOWER,
        renames={r"^thinker\.": ""},
        assumed={**_BY_NAME["Qwen3ForCausalLM"].assumed, "attention_bias": lambda _config: False},
    ),
    replace(
        _BY_NAME["LlamaForCausalLM"],
        hf_classes=("VoxtralForConditionalGeneration",),
        skipped_modules=_AUDIO_TOWER,
    ),
)
