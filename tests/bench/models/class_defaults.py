"""Write down what transformers takes for the settings that a config.json leaves out: the data of `class_defaults`.

    python tests/bench/models/class_defaults.py quantizer/architectures/class_defaults.json

Needs transformers. Kept is what the converter reads without insisting on it: sizes that must be there are refused by
name where they are missing. Sentinel values of classes that config.json names otherwise are left out, and classes whose
code is on the hub, whose outlines borrow a class that computes the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

import quantizer.architectures as table
from quantizer.architectures import Architecture, find_architecture, generated_tensors, needed_tensors
from quantizer.checkpoint.config import CheckpointError, Config

_OUTLINES = Path(__file__).parents[2] / "quantizer" / "outlines.json"
_ON_THE_HUB = {
    *("ExaoneForCausalLM", "InternLM2ForCausalLM", "InternLM3ForCausalLM", "LlamaBidirectionalModel"),
    "MiniCPMForCausalLM",
}
# settings that the modelling code of transformers asks `is None`; of others null is an error there
_SWITCHES = {
    *("sliding_window", "q_lora_rank", "attn_logit_softcapping", "final_logit_softcapping", "attention_chunk_size"),
    *("head_dim", "num_key_value_heads", "mamba_d_ssm"),
}
# one of these must be there, and a default would be read before another of them
_EXPERTS = {"num_local_experts", "num_experts", "n_routed_experts"}
_ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor")
_FALLBACK_BASE = 10_000.0  # of `metadata_rows.rope_base`


class _Recorded(dict[str, Any]):
    """Settings that note which of them are read."""

    def __init__(self, values: Any, names: set[str]) -> None:
        super().__init__(values)
        self.names = names

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)


def read_settings(settings: dict[str, Any]) -> set[str]:
    """Return which settings the rows, tensors and checks of this config's entry read. Raises CheckpointError."""
    architecture, config = find_architecture(settings)
    names: set[str] = set(architecture.settings.assumed)
    recorded = Config(_Recorded(config.values, names))
    for row in architecture.hyperparameters:
        row.read(recorded)
    needed_tensors(architecture, recorded)
    generated_tensors(architecture, recorded)
    architecture.approximations(recorded)
    for factors in architecture.layout.row_factors.values():
        factors(recorded, 4)
    return names


def class_defaults(settings: dict[str, Any], architecture: Architecture) -> dict[str, Any]:
    """Return the model_type of a config's class, its "values" by their usual names, and what "null" switches off."""
    from transformers import CONFIG_MAPPING

    own = settings.get("text_config", settings)
    kind = own.get("model_type", "")
    config_class = (
        CONFIG_MAPPING[kind]
        if kind in CONFIG_MAPPING
        else CONFIG_MAPPING[settings["model_type"]].sub_configs["text_config"]
    )
    # outlines cut lists to fewer layers, and lack the kinds of layers that a pattern of 0 goes with
    stated = {
        key: value
        for key, value in own.items()
        if key not in ("model_type", "sliding_window_pattern") and isinstance(value, bool | int | float | str)
    }
    read = read_settings(settings)
    values: dict[str, Any] = {}
    null: list[str] = []
    for name, default in (*_fields(config_class), *_rope_of(config_class, stated)):
        usual = architecture.settings.aliases.get(name, name)
        others = (*config_class.attribute_map.items(), *architecture.settings.aliases.items())
        names = {name, usual, config_class.attribute_map.get(name, name)}
        names |= {other for other, of in others if of in names}
        is_in_section = any(usual in own.get(section, {}) for section in architecture.settings.sections)
        if is_in_section or usual in _EXPERTS or usual not in read or _is_insisted_on(settings, names):
            continue
        is_off = _is_off_by_null(config_class, stated, name, default)
        if is_off:
            null.append(usual)
        if usual == "tie_word_embeddings" and (own is not settings or not default):  # the whole decides
            continue
        said = architecture.settings.defaults.get(usual, architecture.settings.assumed.get(usual))
        if said != default or type(said) is not type(default) or is_off:
            values[usual] = default
    return {"of": config_class.model_type, "values": values, "null": sorted(null)}


def _fields(config_class: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(config_class):
        is_plain = field.default is not dataclasses.MISSING and isinstance(field.default, bool | int | float | str)
        if is_plain and field.name not in ("architectures", "is_encoder_decoder", "chunk_size_feed_forward"):
            yield field.name, field.default


def _rope_of(config_class: Any, stated: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what the class takes for rotary settings that are all left out."""
    config = config_class.from_dict({key: value for key, value in stated.items() if key not in _ROPE})
    rope = getattr(config, "rope_parameters", None) or {}
    full, windowed = rope.get("full_attention", rope), rope.get("sliding_attention") or {}
    if full.get("rope_theta", _FALLBACK_BASE) != _FALLBACK_BASE:
        yield "rope_theta", float(full["rope_theta"])
    if windowed.get("rope_theta") is not None:
        yield "rope_local_base_freq", float(windowed["rope_theta"])
    if full.get("partial_rotary_factor") is not None:
        yield "partial_rotary_factor", full["partial_rotary_factor"]


def _is_insisted_on(settings: dict[str, Any], names: set[str]) -> bool:
    """Return whether a config.json without a setting, under any of its names, is refused for it."""
    left = {key: value for key, value in settings.items() if key not in names}
    if "text_config" in settings:
        left["text_config"] = {key: value for key, value in settings["text_config"].items() if key not in names}
    try:
        read_settings(left)
    except CheckpointError as error:
        return any(each in str(error) for each in names)
    return False


def _is_off_by_null(config_class: Any, stated: dict[str, Any], name: str, default: Any) -> bool:
    """Return whether null means something else than the default, and is no mistake."""
    left = {key: value for key, value in stated.items() if key != name}
    try:
        found, usual = (config_class.from_dict({**left, **more}).to_dict().get(name) for more in ({name: None}, {}))
    except StrictDataclassError:
        return False
    except Exception:  # a class that computes with it, as other settings would have it
        return name in _SWITCHES
    return found != usual and (found is not None or name in _SWITCHES or default is True)


def main() -> None:
    from transformers import __version__
    from transformers.utils import logging

    logging.set_verbosity_error()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    table.CLASS_DEFAULTS.clear()  # what is already there says nothing about what the entries insist on
    classes: dict[str, dict[str, Any]] = {}
    for outline in json.loads(_OUTLINES.read_text()).values():
        settings = outline["config"]
        name = settings["architectures"][0]
        if name in _ON_THE_HUB:
            continue
        found = class_defaults(settings, find_architecture(settings)[0])
        of_class = classes.setdefault(name, found)
        if (
            of_class["of"] == found["of"]
        ):  # one that takes several language models has the first, others their own class
            of_class["values"] |= found["values"]
            of_class["null"] = sorted({*of_class["null"], *found["null"]})
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(classes.items()) if row["values"]]
    source = json.dumps(f"defaults of the config classes of transformers {__version__}")
    arguments.output.write_text("{\n" + ",\n".join([f'"source": {source}', *lines]) + "\n}\n")


if __name__ == "__main__":
    main()
