"""The table of architectures that can be converted: data, so that adding one takes a few lines.

The entries are in `families`; `projectors` has those of what sees. An entry has its HF classes, llama.cpp's name, which
config values become which metadata, how tensors are rearranged, which are generated, and which are required. Tensor
names come from gguf's map. For a class without an entry the error names the nearest known ones, compared without the
endings of their names (`ForCausalLM` and the like), by the class and by the config's model_type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from quantizer.architectures.architecture import Architecture, check_settings, given, unfolded, usually_named
from quantizer.architectures.families import FAMILIES
from quantizer.architectures.metadata_rows import no_divisors
from quantizer.architectures.shapes import (
    N_PREDICTION_LAYERS,
    PREDICTION,
    count_prediction_layers,
    head_size,
    n_all_layers,
    resolve_shapes,
)
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.source_model import SourceTensor

__all__ = [
    "ARCHITECTURES",
    "UNCONVERTIBLE",
    "Architecture",
    "find_architecture",
    "generated_tensors",
    "nearest_classes",
    "needed_tensors",
]

_N_NEAREST = 3
_MAX_NAME = 64
_GUIDE = Path(__file__).parents[1] / "README.md"
_ENDING = re.compile(r"(For[A-Z]\w*|LMHeadModel|WithLMHeadModel|TextModel|ModelLM|Model|LM)$")
_NO_WORDS = re.compile(r"[^a-z0-9]+")
_FAMILY = re.compile(r"[a-z]+")
# reason -> the HF classes that stay out of the table for it; other programs may convert some of them
_LEFT_OUT: dict[str, tuple[str, ...]] = {
    "it generates text by diffusion, which is not supported": (
        *("DreamModel", "LLaDAMoEModel", "LLaDAMoEModelLM", "LLaDAModelLM", "RND1"),
    ),
    "llama.cpp chooses experts otherwise than the class": ("PhiMoEForCausalLM",),
    "llama.cpp's feed-forward has SiLU where the class has ReLU squared": ("BitNetForCausalLM", "BitnetForCausalLM"),
    "llama.cpp has tanh before the head where the class has ReLU": ("DistilBertForSequenceClassification",),
    "llama.cpp gives both texts of a pair the same type": ("BertForSequenceClassification",),
    "llama.cpp ranks by two labels only": ("Qwen3ForSequenceClassification",),
    "half of each head is rotated, its rows reordered for whole heads, which was not shown to be equal": (
        "BambaForCausalLM",
    ),
    "it gives a vector for each token, which is not supported": ("Lfm2Model", "Lfm2BidirectionalModel"),
    "llama.cpp has no graph for it": ("CwmForCausalLM", "VaultGemmaForCausalLM"),
    "gguf has no names for its tensors yet": (
        *("BailingMoeV3ForCausalLM", "DeepseekV4ForCausalLM", "GraniteSwitchForCausalLM", "HYV4ForCausalLM"),
        *("HrmTextForCausalLM", "KimiK3ForConditionalGeneration", "MapleForCausalLM", "TalkieForCausalLM"),
    ),
    "it was not tried yet": (
        *("ChameleonForCausalLM", "ChameleonForConditionalGeneration", "KimiLinearModel", "MambaLMHeadModel"),
        *("RWForCausalLM", "StableLMEpochForCausalLM", "UMT5Model"),
    ),
    "its code is on the hub only, so that no conversion could be compared with it": (
        *("ArcticForCausalLM", "BaiChuanForCausalLM", "BaichuanForCausalLM", "BailingMoeForCausalLM"),
        *("BailingMoeV2ForCausalLM", "ChatGLMForConditionalGeneration", "ChatGLMModel", "CodeShellForCausalLM"),
        *("DeciLMForCausalLM", "DeepseekForCausalLM", "GPTRefactForCausalLM", "Grok1ForCausalLM", "GrokForCausalLM"),
        *("GroveMoeForCausalLM", "JAISLMHeadModel", "JinaBertForMaskedLM", "JinaBertModel", "MaincoderForCausalLM"),
        *("NeoBERT", "OpenELMForCausalLM", "OrionForCausalLM", "PLMForCausalLM", "PanguEmbeddedForCausalLM"),
        *("Plamo2ForCausalLM", "Plamo3ForCausalLM", "PlamoForCausalLM", "QWenLMHeadModel", "Rwkv6ForCausalLM"),
        *("Rwkv7ForCausalLM", "SmallThinkerForCausalLM", "Step3p5ForCausalLM", "XverseForCausalLM"),
    ),
}
# HF class -> why it stays out of the table
UNCONVERTIBLE: dict[str, str] = {name: reason for reason, names in _LEFT_OUT.items() for name in names}
# HF class -> the model_type of its config class ("of"), what that takes for settings that config.json lacks ("values",
# by their usual names), and those that null switches off ("null"). Source: tests/bench/models/class_defaults.py.
CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    name: row
    for name, row in json.loads((Path(__file__).parent / "class_defaults.json").read_text("utf-8")).items()
    if isinstance(row, dict)
}
_NO_DEFAULTS: dict[str, Any] = {"of": "", "values": {}, "null": []}
# HF class -> its entry
ARCHITECTURES: dict[str, Architecture] = {name: entry for entry in FAMILIES for name in entry.hf_classes}


def find_architecture(values: dict[str, Any], names: Collection[str] | None = None) -> tuple[Architecture, Config]:
    """Return the entry for a parsed config.json, and the config of its language model with the class's defaults.

    The `names` of the checkpoint's tensors, where they are known, decide whether it has a layer that predicts further.
    Raises CheckpointError naming a class without an entry, or a setting that llama.cpp would not follow.
    """
    classes = values.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
    if name not in ARCHITECTURES:
        raise _unknown_class(name, values, ARCHITECTURES)
    architecture = ARCHITECTURES[name]
    whole = unfolded(values)
    # of a model of several parts the settings of the language model; whether embeddings are tied, the whole decides
    ties = {key: value for key, value in whole.items() if key == "tie_word_embeddings"}
    own = whole | given(Config(whole).section("text_config").values) | ties
    parts = (*(given(Config(own).section(name).values) for name in architecture.settings.sections), own)
    named = [setting for part in parts for setting in usually_named(part, architecture.settings.aliases).items()]
    # the number of layers where config.json has only a list of them, as transformers saves Nemotron-H
    kinds = own.get("layers_block_type")
    counted = {"num_hidden_layers": len(kinds)} if isinstance(kinds, list) else {}
    text = values.get("text_config")
    nulls = {key for part in (values, text) if isinstance(part, dict) for key in part if part[key] is None}
    nulls = {architecture.settings.aliases.get(key, key) for key in nulls}
    of_class = _class_defaults(name, own.get("model_type"))
    defaults = {**architecture.settings.defaults, **of_class["values"]}
    switched_off = nulls & set(of_class["null"])
    # a flag that null switches off is false, as it is to an `if` of the class
    off = {key: False for key in switched_off if isinstance(defaults.get(key), bool)}
    config = Config(
        {**counted, **{key: value for key, value in defaults.items() if key not in switched_off}, **off, **dict(named)},
        frozenset(nulls),
    )
    architecture = architecture.variant(config) or architecture
    renamed = None if names is None else [architecture.names.renamed(name) for name in names]
    n_predicting = count_prediction_layers(config, renamed, architecture.names.n_prediction_layers)
    config = replace(config, values={**config.values, N_PREDICTION_LAYERS: n_predicting})
    check_settings(architecture, config, switched_off)
    return architecture, config


def _class_defaults(name: str, kind: Any) -> Mapping[str, Any]:
    """Return the row of a class, of one that takes several language models that of the model's own `kind`."""
    row = CLASS_DEFAULTS.get(name, _NO_DEFAULTS)
    if row is _NO_DEFAULTS or kind is None or row["of"] == kind:
        return row
    return next((other for other in CLASS_DEFAULTS.values() if other["of"] == kind), row)


def needed_tensors(architecture: Architecture, config: Config) -> dict[str, tuple[int, ...]]:
    """Return every tensor that a model of this config must have -> its shape in ggml order."""
    of_layers, n_layers = architecture.tensors.layer, config.integer("num_hidden_layers")
    tensors = resolve_shapes(architecture.tensors.model(config), config)
    if architecture.tensors.needs_output:
        tensors["output.weight"] = tensors["token_embd.weight"]
    for i in range(n_all_layers(config)):
        own = of_layers(config, i) if callable(of_layers) else of_layers
        shapes = resolve_shapes({**own, **(PREDICTION if i >= n_layers else {})}, config)
        tensors |= {f"{architecture.names.blocks}.{i}.{name}": shape for name, shape in shapes.items()}
    return tensors


def generated_tensors(architecture: Architecture, config: Config) -> Sequence[SourceTensor]:
    """Return the tensors that no checkpoint has. Raises CheckpointError for a rope scaling that the graph lacks."""
    if architecture.tensors.generate:
        return architecture.tensors.generate(config)
    rotated = next((row for row in architecture.hyperparameters if row.key == "rope.dimension_count"), None)
    return no_divisors(config, lambda config: (rotated and rotated.read(config)) or head_size(config))


def _unknown_class(name: str, settings: Mapping[str, Any], known: Iterable[str]) -> CheckpointError:
    shown = name[:_MAX_NAME] or "of this checkpoint"
    if name in UNCONVERTIBLE:
        return CheckpointError(
            f"The architecture {shown} cannot be converted: {UNCONVERTIBLE[name]}.",
            "Look for a GGUF of this model, or choose another.",
        )
    part = settings.get("text_config")
    found = (settings.get("model_type"), part.get("model_type") if isinstance(part, dict) else None)
    nearest = ", ".join(
        nearest_classes((name[:_MAX_NAME], *([kind[:_MAX_NAME] for kind in found if isinstance(kind, str)])), known)
    )
    return CheckpointError(
        f"The architecture {shown} cannot be converted yet{'; the nearest known: ' if nearest else ''}{nearest}.",
        f'Look for a GGUF of this model, or add the architecture: "How to extend it" in {_GUIDE}.',
    )


def nearest_classes(hints: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the three classes of `known` that are most like any of `hints`, one for each model; none without hints."""
    if not (wanted := [hint for hint in hints if hint]):
        return []
    endings = {_ending(hint) for hint in wanted}
    stems = [_stem(hint) for hint in wanted]

    def likeness(stem: str) -> float:
        # names of one family, which is their first letters, are always nearer than others
        family = _FAMILY.match(stem)
        return max(
            SequenceMatcher(None, stem, other).ratio()
            + bool(family and (own := _FAMILY.match(other)) and own[0] == family[0])
            for other in stems
        )

    ranked = sorted(known, key=lambda name: (-likeness(_stem(name)), _ending(name) not in endings))
    by_model = {_stem(name): name for name in reversed(ranked)}
    return [name for name in ranked if by_model[_stem(name)] == name][:_N_NEAREST]


def _stem(name: str) -> str:
    return _NO_WORDS.sub("", _ENDING.sub("", name).lower())


def _ending(name: str) -> str:
    found = _ENDING.search(name)
    return found[0] if found else ""
