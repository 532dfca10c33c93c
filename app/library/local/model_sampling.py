"""How a model is sampled where a request does not say it: found in its recipe, its GGUF, its maker's
generation_config.json beside it, and the catalogue, in this order.

Owns the file `NAME.generation_config.json` beside a pulled model, and assets/catalogue_sampling.toml. A model is in the
catalogue by its name alone: one that was derived from another has a name of its own.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from app.library.local.model_files import name_without_quant
from app.library.local.recipe import Recipe
from app.protocol.sampling import HTTP_NAMES, NUMBER_RANGES, NUMBER_TYPES, ModelSampling, model_sampling
from quantizer.gguf.file_names import unsplit_name
from quantizer.gguf.header import Header
from quantizer.gguf.sampling_keys import (
    GENERATION_CONFIG,
    NOTHING_STATED,
    StatedSampling,
    sampling_of_config,
    sampling_of_header,
)
from quantizer.system.files import explained, open_regular, read_regular, write_atomically

MAX_CONFIG_BYTES = 64 << 10
_CATALOGUE = "catalogue_sampling.toml"


def read_model_sampling(header: Header, recipe: Recipe) -> ModelSampling:
    """Return how the model of `header`, with `recipe`, is sampled. What cannot be read is left out, with a word."""
    own, beside = sampling_of_header(header), _beside(header.path)
    return model_sampling(
        (
            ("recipe", _of_recipe(recipe)),
            ("model", own.options),
            ("hub", beside.options),
            ("catalogue", catalogue_sampling(header)),
        ),
        (*own.ignored, *beside.ignored),
    )


def generation_config_path(model: Path) -> Path:
    """Return where the generation_config.json of the model at `model` is kept, whether there is one or not."""
    return model.with_name(f"{model.stem}.{GENERATION_CONFIG}")


def write_generation_config(model: Path, data: bytes) -> None:
    """Keep `data` as the generation_config.json of the model at `model`, whole or not at all. Raises StorageError."""
    target = generation_config_path(model)
    with explained(f"{target} cannot be written", "Check the disk and its permissions."):
        write_atomically(target, data, sync=True)


def read_generation_config(model: Path) -> bytes:
    """Return what is kept beside the model at `model`; empty where it states no sampling or cannot be read."""
    path = _config_beside(model)
    try:
        data = read_regular(path, MAX_CONFIG_BYTES) if path is not None else b""
    except OSError:
        return b""
    return data if data and parse_generation_config(data).options else b""


def sampling_stamp(model: Path) -> str:
    """Return a stamp of what is beside the model at `model`, which differs after any change of it."""
    path = _config_beside(model)
    if path is None:
        return ""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{path.name}:{status.st_mtime_ns}:{status.st_size}:{status.st_ino}"


def parse_generation_config(data: bytes) -> StatedSampling:
    """Return what the bytes of a generation_config.json state."""
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        return StatedSampling(ignored=(f"{GENERATION_CONFIG} is not JSON: {str(error)[:80]}",))
    if not isinstance(config, dict):
        return StatedSampling(ignored=(f"{GENERATION_CONFIG} is not an object",))
    return sampling_of_config(config)


def catalogue_sampling(header: Header) -> Mapping[str, int | float]:
    """Return what the makers of the model of `header` recommend, nothing for one that the catalogue does not have."""
    repo, stem = header.path.parent.name, Path(unsplit_name(header.path.name)).stem
    names = (header.text("general.name"), name_without_quant(stem), name_without_quant(repo))
    known = read_catalogue_sampling()
    return next((known[key] for key in map(_letters, names) if key in known), {})


@cache
def read_catalogue_sampling() -> Mapping[str, Mapping[str, int | float]]:
    """Return the catalogue's options by the letters of each model's name."""
    return parse_catalogue_sampling((files("assets") / _CATALOGUE).read_text(encoding="utf-8"))


def parse_catalogue_sampling(text: str) -> dict[str, Mapping[str, int | float]]:
    """Parse the catalogue's TOML. Raises ValueError that names the fault."""
    found: dict[str, Mapping[str, int | float]] = {}
    for entry in tomllib.loads(text)["sampling"]:
        options = {name: NUMBER_TYPES[name](value) for name, value in entry["options"].items()}
        for name, value in options.items():
            lowest, highest = NUMBER_RANGES[name]
            if not lowest <= value <= highest:
                raise ValueError(f"{name} of {entry['models']} is {value}")
        if not (options and entry["source"]):
            raise ValueError(f"{entry['models']} have no options or no source")
        for model in entry["models"]:
            if _letters(model) in found:
                raise ValueError(f"{model} is there twice")
            found[_letters(model)] = options
    return found


def _of_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the numbers among a recipe's parameters that are valid; requests refuse others."""
    own_names = {HTTP_NAMES.get(name, name): name for name in NUMBER_TYPES}
    found = {}
    for http_name, value in recipe.parameters.items():
        name = own_names.get(http_name)
        if name is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        lowest, highest = NUMBER_RANGES[name]
        if name == "top_k" and value < 0:
            value = 0
        if lowest <= value <= highest:
            found[name] = NUMBER_TYPES[name](value)
    return found


def _beside(model: Path) -> StatedSampling:
    path = _config_beside(model)
    if path is None:
        return NOTHING_STATED
    try:
        with open_regular(path) as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        return StatedSampling(ignored=(f"{path.name} cannot be read: {error.strerror}",))
    if len(data) > MAX_CONFIG_BYTES:
        return StatedSampling(ignored=(f"{path.name} is larger than {MAX_CONFIG_BYTES >> 10} KiB",))
    return parse_generation_config(data)


def _config_beside(model: Path) -> Path | None:
    """Return the file that belongs to the model, or the one of the checkpoint in whose folder it is."""
    candidates = (generation_config_path(model), model.with_name(GENERATION_CONFIG))
    return next((path for path in candidates if path.is_file()), None)


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
