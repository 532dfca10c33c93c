"""The catalogue of suggested models, assets/catalogue.toml, each with a config to plan it by. Needs no network."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

from app.library.hub.reference import (
    CatalogueReference,
    Pullable,
    RepoReference,
    parse_reference,
)
from offload.footprint.auxiliary_models import PlannedDraft
from offload.footprint.model import PlannedModel
from offload.footprint.weights import graph_shape_of
from quantizer.convert.checkpoint_source import config_header
from quantizer.gguf.tensor_types import FILE_TYPES, FileType
from quantizer.system.errors import UsageError

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,40}")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TEXT = re.compile(r".{1,80}")
_MONTH = re.compile(r"20\d\d-(0[1-9]|1[0-2])")
_ADDRESS = re.compile(r"https://[\w.-]+/[\w./@+#=?-]+")
_N_SIMILAR, _LEAST_SIMILAR = 3, 0.75  # the share of letters that two similar names have in common
_LEAST_BITS, _MOST_SIBLINGS = 4.0, 3
_LEAST_TIMES_SMALLER = 4  # a draft model that takes a quarter of the model's time for each token gains little
_NEW_MONTHS = 6  # a catalogue older than this misses models that people fetch


class Role(StrEnum):
    """The purpose of a model."""

    CHAT = "chat"
    CODE = "code"
    SMALL = "small"
    MOE = "moe"
    THINKING = "thinking"
    TOOLS = "tools"
    VISION = "vision"
    EMBEDDING = "embedding"
    RERANKING = "reranking"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueModel:
    """One model: `repo` of the hub has it in `quants`, largest first; `config` is its config.json. `published` is the
    month in which it came out, `parameters` what its makers or GGUFs state, `source` the addresses that its figures
    come from."""

    name: str
    title: str
    roles: tuple[Role, ...]
    repo: str
    quants: tuple[FileType, ...]
    licence: str
    published: str
    parameters: int
    source: tuple[str, ...]
    config: Mapping[str, Any]

    def outline(self) -> PlannedModel:
        """Return its tensors in F16, to be planned in other types; without vocabulary and names."""
        header = config_header(self.config, self.name)
        return PlannedModel(header, header.tensors)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The models, the best of each role first, as of the day `dated`."""

    dated: date
    models: tuple[CatalogueModel, ...]


@cache
def read_catalogue() -> Catalogue:
    return parse_catalogue((files("assets") / "catalogue.toml").read_text(encoding="utf-8"))


def siblings_of(model: PlannedModel) -> tuple[PlannedDraft, ...]:
    """Return smaller models of the catalogue that can draft for `model`, each in its smallest type of 4 bits or more:
    of the same makers' family, by name, and with as many tokens in their vocabulary."""
    family, n_vocab = _family(model.header.architecture), graph_shape_of(model.header).n_logits
    found = []
    for other in read_catalogue().models:
        if _family(other.name) != family or other.parameters * _LEAST_TIMES_SMALLER > model.n_parameters:
            continue
        outline = other.outline()
        if graph_shape_of(outline.header).n_logits == n_vocab:
            types = [each for each in other.quants if each.base.bits_per_weight > _LEAST_BITS]
            smallest = outline.quantized(min(types or other.quants, key=lambda each: each.base.bits_per_weight))
            found.append(PlannedDraft(other.name, smallest.header, smallest.tensors))
    return tuple(sorted(found, key=lambda draft: sum(tensor.n_bytes for tensor in draft.tensors))[:_MOST_SIBLINGS])


def _family(name: str) -> str:
    """Return the letters that a name or an architecture begins with: qwen of qwen3-30b-a3b and of qwen3moe."""
    return re.match(r"[a-z]*", name.lower())[0]  # type: ignore[index]


def catalogue_notice(dated: date, today: date) -> str:
    """Return where to find newer models once the catalogue is six months old, "" before."""
    n_months = 12 * (today.year - dated.year) + today.month - dated.month - (today.day < dated.day)
    if n_months < _NEW_MONTHS:
        return ""
    newer = "localllm search --trending lists the GGUFs that are popular on the hub now."
    return f"The catalogue is from {dated:%B %Y}, {n_months} months old: {newer}"


def catalogue_model(name: str) -> CatalogueModel:
    """Return the model called `name`, also in Ollama's form, qwen3:4b or bge-m3:latest. Raises UsageError that lists
    those with a similar name, all where none has, and how other models are pulled."""
    models = {model.name: model for model in read_catalogue().models}
    plain = name.lower().removesuffix(":latest").replace(":", "-")
    if plain not in models:
        others = f"Other models are org/repo, or from Ollama's registry: `localllm pull ollama:{name}`."
        if near := similar_names(name, list(models)):
            remedy = f"The nearest: {', '.join(near)}. Try `localllm pull {near[0]}`. {others}"
        else:
            remedy = f"It has {', '.join(models)}. {others}"
        raise UsageError(f"The catalogue has no model {name!r}.", remedy)
    return models[plain]


def similar_names(name: str, known: Sequence[str]) -> list[str]:
    """Return up to three of `known` that `name` may mean, the likeliest first: names of Ollama (qwen3:0.6b), other
    separators, a missing size, a slip of the keyboard."""
    wanted = _letters(name)
    alike = [each for each in known if _letters(each) == wanted]
    begin = [each for each in known if len(wanted) > 2 and _letters(each).startswith(wanted)]
    by_letters = {_letters(each): each for each in known}
    close = [by_letters[each] for each in get_close_matches(wanted, by_letters, _N_SIMILAR, _LEAST_SIMILAR)]
    return list(dict.fromkeys([*alike, *begin, *close]))[:_N_SIMILAR]


def _letters(name: str) -> str:
    name = name.lower().removesuffix(":latest")
    return "".join(character for character in name if character.isalnum())


def resolve_reference(text: str, endpoint: str) -> Pullable:
    """Parse a reference and replace a name of the catalogue by its repository. Raises UsageError."""
    reference = parse_reference(text, endpoint)
    if isinstance(reference, CatalogueReference):
        return RepoReference(catalogue_model(reference.name).repo)
    return reference


def parse_catalogue(text: str) -> Catalogue:
    """Parse the catalogue's TOML. Raises ValueError that names the fault."""
    tables = tomllib.loads(text)
    dated = tables.get("dated")
    if type(dated) is not date:
        raise ValueError("the catalogue has no date, dated = YYYY-MM-DD")
    models = tuple(_model(entry) for entry in tables.get("model", []))
    names = [model.name for model in models]
    if len(set(names)) != len(names):
        raise ValueError("two models of the catalogue have the same name")
    return Catalogue(dated, models)


def _model(entry: Mapping[str, Any]) -> CatalogueModel:
    try:
        model = CatalogueModel(
            name=_text(entry["name"], _NAME),
            title=_text(entry["title"], _TEXT),
            roles=tuple(Role(role) for role in entry["roles"]),
            repo=_text(entry["repo"], _REPO),
            quants=tuple(FILE_TYPES[quant] for quant in entry["quants"]),
            licence=_text(entry["licence"], _TEXT),
            published=_text(entry["published"], _MONTH),
            parameters=int(entry["parameters"]),
            source=tuple(_text(address, _ADDRESS) for address in entry["source"]),
            config=dict(entry["config"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{entry.get('name')} of the catalogue is invalid: {error}") from error
    if not (model.roles and model.quants and model.source):
        raise ValueError(f"{model.name} of the catalogue has no roles, no quants or no source")
    return model


def _text(value: str, form: re.Pattern[str]) -> str:
    if not form.fullmatch(value):
        raise ValueError(f"{value!r} does not match {form.pattern}")
    return value
