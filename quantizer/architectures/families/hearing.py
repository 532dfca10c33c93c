"""The language models of those that hear, beside an encoder of sounds: Qwen 2-Audio and Audio Flamingo 3 (Qwen 2),
Qwen 3-ASR (Qwen 3) and Voxtral (Llama).

llama.cpp's converter makes Qwen 3-ASR one whose rotations are divided, which leaves two pairs of each head unrotated.
Voxtral's encoder is left out: llama.cpp averages pairs of its vectors, which the original does not.
"""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures.families.llama import LLAMA_LIKE
from quantizer.architectures.families.qwen import QWEN

_BY_CLASS = {name: entry for entry in (*LLAMA_LIKE, *QWEN) for name in entry.hf_classes}
_TOWER = ("audio_tower.", "multi_modal_projector.")

HEARING = (
    replace(
        _BY_CLASS["Qwen2ForCausalLM"],
        hf_classes=("Qwen2AudioForConditionalGeneration", "AudioFlamingo3ForConditionalGeneration"),
        skipped_modules=_TOWER,
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
        _BY_CLASS["Qwen3ForCausalLM"],
        hf_classes=("Qwen3ASRForConditionalGeneration",),
        skipped_modules=_TOWER,
        renames={r"^thinker\.": ""},
        assumed={**_BY_CLASS["Qwen3ForCausalLM"].assumed, "attention_bias": lambda _config: False},
    ),
    replace(
        _BY_CLASS["LlamaForCausalLM"],
        hf_classes=("VoxtralForConditionalGeneration",),
        skipped_modules=_TOWER,
    ),
)
