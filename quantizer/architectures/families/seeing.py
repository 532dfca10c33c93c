"""Language models of classes that see and take one of several, named by the model_type in their text_config: InternVL,
LLaVA and LFM 2-VL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from quantizer.architectures.architecture import Architecture
from quantizer.architectures.families.lfm import LFM
from quantizer.architectures.families.llama import LLAMA_LIKE
from quantizer.architectures.families.qwen import QWEN
from quantizer.checkpoint.config import Config
from quantizer.errors import CheckpointError

__all__ = ["SEEING"]

_BY_CLASS = {name: entry for entry in (*LLAMA_LIKE, *QWEN, *LFM) for name in entry.hf_classes}
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


SEEING = (
    _one_of(
        "InternVLForConditionalGeneration",
        {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"},
    ),
    _one_of("Lfm2VlForConditionalGeneration", {"lfm2": "Lfm2ForCausalLM"}),
)
