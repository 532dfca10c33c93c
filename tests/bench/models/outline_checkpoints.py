"""Write down what checkpoints look like, without their weights: the fixture of the tests of architectures.

    uv run python tests/bench/models/outline_checkpoints.py FOLDER tests/quantizer/outlines.json
    uv run python tests/bench/models/outline_checkpoints.py FOLDER tests/quantizer/projector_outlines.json --projectors

FOLDER is one that `tiny_checkpoints.py` wrote. An outline holds the config, cut to one layer of each kind, the names
and shapes of what is then left, and the metadata that conversion makes of it: run this after the logits were compared.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from quantizer.architectures import CLASS_DEFAULTS, find_architecture
from quantizer.architectures.architecture import unfolded
from quantizer.architectures.projectors import Projector, find_projector, projectors_for

# what says nothing of the model, or is said for every layer
_DROPPED = re.compile(
    r".*(dropout|init|router_|use_cache|output_|chunk_size|transformers_version|_token_id|_token_index).*"
    r"|(mlp_)?layer_types|moe_layer_end_index|no_rope_layers|moe_layers|dtype|mlp_bias|(vision|audio|talker|code2wav|token2wav)_config"
)
# what null switches off, in one class at least
_OFF = {key for row in CLASS_DEFAULTS.values() for key in row["null"]}
_SECTIONS = ("text_config", "thinker_config", "attn_config", "ffn_config")
_WIDTHS = {"hidden_size", "dim", "n_embd", "d_model"}
_LAYER = re.compile(r"\b(?:layers?|h|blocks?)\.(\d+)\.")


def outline(folder: Path) -> dict[str, Any]:
    """The outline of one checkpoint."""
    whole = json.loads((folder / "config.json").read_text())
    config = _shortened(whole)
    counts = [find_architecture(settings)[1].integer("num_hidden_layers") for settings in (whole, config)]
    tensors = _tensors(folder / "model.safetensors", *counts)
    architecture, settings = find_architecture(config, tensors)
    rows = {row.key: row.read(settings) for row in architecture.hyperparameters}
    return {
        "config": config,
        "tensors": tensors,
        "metadata": {key: value for key, value in rows.items() if value is not None},
    }


def projector_outline(folder: Path) -> dict[str, Any] | None:
    """The outline of the projector in a checkpoint, with all of its towers; None where none is converted."""
    settings = unfolded(json.loads((folder / "config.json").read_text()))
    known, processor = projectors_for(settings), folder / "preprocessor_config.json"
    if not known or not processor.exists():
        return None
    settings.pop("thinker_config", None)
    kept = {key: value for key, value in settings.items() if not _DROPPED.fullmatch(key) and value is not None}
    towers = {
        tower.section: {key: value for key, value in settings[tower.section].items() if value is not None}
        for tower in known
    }
    config = kept | {"text_config": _shortened(settings["text_config"])} | towers
    prepared = json.loads(processor.read_text())
    parts = [_tower(tower, config, prepared, folder / "model.safetensors") for tower in known]
    return {
        "config": config,
        "processor": prepared,
        "tensors": {name: shape for tensors, _ in parts for name, shape in tensors.items()},
        "metadata": {key: value for _, rows in parts for key, value in rows.items() if value is not None},
    }


def _tower(
    known: Projector, config: dict[str, Any], prepared: dict[str, Any], weights: Path
) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """The tensors of one tower with their shapes, and its metadata."""
    projector, found = find_projector(known, config, prepared)
    n_layers = found.integer("num_hidden_layers")
    tensors = _tensors(weights, n_layers, n_layers)
    own = {name: shape for name, shape in tensors.items() if name.removeprefix("model.").startswith(known.modules)}
    return own, {row.key: row.read(found) for row in projector.hyperparameters}


def _shortened(config: dict[str, Any]) -> dict[str, Any]:
    shares = "num_kv_shared_layers" in config  # then layers differ by more than their kind
    kept = {
        key: value
        for key, value in config.items()
        if (not _DROPPED.fullmatch(key) or (shares and key == "layer_types")) and (value is not None or key in _OFF)
    }
    kept |= {key: _shortened(value) for key, value in kept.items() if key in _SECTIONS}
    kept |= {"num_decoder_layers": 1} if "num_decoder_layers" in kept else {}
    if shares or not kept.keys() & _WIDTHS:
        return kept
    n_layers = _n_kinds(config)
    listed = {
        key: kinds[:n_layers] for key, kinds in _listed(config).items() if "full_attention_interval" not in config
    }
    return kept | {"num_hidden_layers": n_layers} | listed


def _listed(config: dict[str, Any]) -> dict[str, list[str]]:
    """The kinds of layers under their setting, where they have tensors of their own."""
    lists = {key: config.get(key) or [] for key in ("layer_types", "layers_block_type")}
    if config.get("prefix_dense_intermediate_size"):  # then no other setting tells which layers are dense
        lists["mlp_layer_types"] = config["mlp_layer_types"]
    has_states = any(key.startswith("mamba_") for key in config)
    shared = set() if has_states else {"full_attention", "sliding_attention", "chunked_attention"}
    return {key: kinds for key, kinds in lists.items() if set(kinds) - shared}


def _n_kinds(config: dict[str, Any]) -> int:
    """As many layers as it takes to have one of each kind."""
    kinds = config.get("layer_types") or []
    if kinds[:1] == ["full_attention"] and "sliding_attention" in kinds:
        return 1 + int(kinds.index("sliding_attention"))
    for kinds in (*_listed(config).values(), *filter(None, [config.get("mlp_layer_types")])):
        return 1 + max(int(kinds.index(kind)) for kind in set(kinds))
    starts = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    n_dense = next((config[key] for key in starts if config.get(key)), 0)
    return 1 + int(n_dense or config.get("attn_layer_offset", config.get("interleave_moe_layer_step", 1) - 1))


def _tensors(path: Path, n_layers: int, n_left: int) -> dict[str, list[int]]:
    """The shapes of the first layers, and of those behind the last, which then follow the first."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__")
    kept: dict[str, list[int]] = {}
    for name, row in header.items():
        layer = _LAYER.search(name)
        number = int(layer[1]) if layer else 0
        if layer and number >= n_layers:
            name = f"{name[: layer.start(1)]}{number - n_layers + n_left}{name[layer.end(1) :]}"
        if number < n_left or number >= n_layers:
            kept[name] = row["shape"]
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--projectors", action="store_true")
    arguments = parser.parse_args()
    of = projector_outline if arguments.projectors else outline
    outlines = {path.name: of(path) for path in sorted(arguments.folder.iterdir())}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in outlines.items() if value)
    arguments.output.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
