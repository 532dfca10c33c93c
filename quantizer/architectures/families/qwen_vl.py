"""The language models of Qwen 2-VL, 2.5-VL, 3-VL, 2.5-Omni and 3-Omni, dense and with experts: Qwen 2 and 3 whose
rotations are divided among time, height and width.

For text all three are the token's position. What the vision model adds to the first layers of Qwen 3-VL comes from its
own file; this one says to how many. Its experts are stored with inputs as rows, by transformers 5 on request not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantizer.architectures.architecture import Architecture, Hyperparameter, Value
from quantizer.architectures.families.qwen import QWEN
from quantizer.architectures.metadata_rows import kind_of, rotation_sections
from quantizer.architectures.shapes import DIMENSIONS, matrices
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import Cut, StackedTensor, TransposedTensor
from quantizer.convert.source_model import FileTensor, RearrangedTensor, SourceTensor

_SECTIONS_2, _SECTIONS_3 = (16, 24, 24), (24, 20, 20)  # transformers' defaults
_N_DEEPSTACK = 3


def _unscaled(config: Config) -> Value:
    """Return nothing to write. Raises CheckpointError when positions are scaled."""
    kind_of(config, ("default", "mrope"))
    return None


def _n_deepstack(config: Config) -> Value:
    """Return how many layers get something of the vision model."""
    layers = config.section("vision_config").values.get("deepstack_visual_indexes")
    return len(layers) if isinstance(layers, list) else _N_DEEPSTACK


def _unrotated(config: Config) -> tuple[str, ...]:
    """Warn of the pairs that llama.cpp takes for a fourth section: those beyond thrice the section whose turn it is."""
    sections = rotation_sections(_SECTIONS_3)(config)
    assert isinstance(sections, list)
    n_pairs, thrice = sum(sections), [3 * n for n in sections]
    n_beyond = sum(i >= thrice[i % 3] for i in range(n_pairs))
    if not n_beyond:
        return ()
    return (f"llama.cpp does not rotate {n_beyond} of the {n_pairs} pairs of a head, which turn slowest.",)


def _outputs_as_rows(matrix: FileTensor, n_inputs: int) -> SourceTensor:
    return matrix if matrix.shape[0] == n_inputs else TransposedTensor(matrix, matrix.name)


def _half(second: bool) -> Cut:
    def rows(matrix: SourceTensor, name: str) -> RearrangedTensor:
        n_columns, n_rows = matrix.shape
        order = np.arange(n_rows)[n_rows // 2 :] if second else np.arange(n_rows // 2)
        return RearrangedTensor(matrix, name, (n_columns, len(order)), order)

    def cut(tensor: FileTensor, name: str, config: Config) -> StackedTensor:
        n_inputs = config.integer("hidden_size")
        return StackedTensor(name, tuple(rows(_outputs_as_rows(part, n_inputs), name) for part in matrices(tensor)))

    return cut


def _down(tensor: FileTensor, name: str, config: Config) -> StackedTensor:
    n_inputs = DIMENSIONS["n_ff_expert"](config)
    return StackedTensor(name, tuple(_outputs_as_rows(part, n_inputs) for part in matrices(tensor)))


def _seeing(entry: Architecture, hf_classes: tuple[str, ...], name: str, sections: tuple[int, ...]) -> Architecture:
    """Return the entry of the language model that is like `entry`."""
    return replace(
        entry,
        hf_classes=hf_classes,
        gguf_name=name,
        hyperparameters=(
            *(row for row in entry.hyperparameters if not row.key.startswith("rope.scaling.")),
            Hyperparameter("rope.scaling.type", "str", _unscaled),
            Hyperparameter("rope.dimension_sections", "i32[]", rotation_sections(sections)),
        ),
        skipped_modules=("visual.",),
    )


_BY_CLASS = {name: entry for entry in QWEN for name in entry.hf_classes}
_DEEPSTACK = (Hyperparameter("n_deepstack_layers", "u32", _n_deepstack),)
_QWEN_2 = _seeing(
    _BY_CLASS["Qwen2ForCausalLM"],
    ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    "qwen2vl",
    _SECTIONS_2,
)
_QWEN_3 = _seeing(_BY_CLASS["Qwen3ForCausalLM"], ("Qwen3VLForConditionalGeneration",), "qwen3vl", _SECTIONS_3)
_EXPERTS = _seeing(_BY_CLASS["Qwen3MoeForCausalLM"], ("Qwen3VLMoeForConditionalGeneration",), "qwen3vlmoe", _SECTIONS_3)

_SEEING = (
    # in llama.cpp the heads together are as wide as the model
    replace(
        _QWEN_2,
        assumed={
            **_QWEN_2.assumed,
            "head_dim": lambda config: config.integer("hidden_size") // config.integer("num_attention_heads"),
        },
    ),
    replace(
        _QWEN_3,
        hyperparameters=_QWEN_3.hyperparameters + _DEEPSTACK,
        assumed={**_QWEN_3.assumed, "attention_bias": lambda _config: False},
        approximations=_unrotated,
    ),
    replace(
        _EXPERTS,
        hyperparameters=_EXPERTS.hyperparameters + _DEEPSTACK,
        splits={
            ".experts.gate_up_proj": {
                ".experts.gate_proj.weight": _half(second=False),
                ".experts.up_proj.weight": _half(second=True),
            },
            ".experts.down_proj": {".experts.down_proj.weight": _down},
        },
        assumed={**_EXPERTS.assumed, "attention_bias": lambda _config: False},
        approximations=_unrotated,
    ),
)
# those that hear too, beside what speaks
_OMNI_2 = replace(
    _SEEING[0],
    hf_classes=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
    skipped_modules=("visual.", "audio_tower.", "talker.", "token2wav."),
    renames={r"^thinker\.": ""},
)
_OMNI_3 = replace(
    _SEEING[-1],
    hf_classes=("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"),
    skipped_modules=("visual.", "audio_tower.", "talker.", "code2wav."),
    renames={r"^thinker\.": ""},
)
QWEN_VL = (*_SEEING, _OMNI_2, _OMNI_3)
