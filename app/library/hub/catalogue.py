"""The catalogue of suggested models, assets/catalogue.toml, each with a config to plan it by.

Owns the file's format. Needs no network.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

from app.library.hub.reference import (
    CatalogueReference,
    FileReference,
    RepoReference,
    UrlReference,
    parse_reference,
)
from offload.footprint.model import PlannedModel
from quantizer.convert.checkpoint_source import config_header
from quantizer.errors import UsageError
from quantizer.gguf.file_types import FILE_TYPES, FileType

__all__ = ["CatalogueModel", "Role", "catalogue_model", "parse_catalogue", "read_catalogue", "resolve_reference"]

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,40}")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TEXT = re.compile(r".{1,80}")


class Role(StrEnum):
    """The purpose of a model."""

    CHAT = "chat"
    CODE = "code"
    SMALL = "small"
    MOE = "moe"
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueModel:
    """One model: `repo` of the hub has it in `quants`, largest first; `config` is its config.json."""

    name: str
    title: str
    roles: tuple[Role, ...]
    repo: str
    quants: tuple[FileType, ...]
    licence: str
    config: Mapping[str, Any]

    def outline(self) -> PlannedModel:
        """Return its tensors in F16, to be planned in other types; without vocabulary and names."""
        header = config_header(self.config, self.name)
        return PlannedModel(header, header.tensors)


@cache
def read_catalogue() -> tuple[CatalogueModel, ...]:
    """Return the catalogue, the best of each role first."""
    return parse_catalogue((files("assets") / "catalogue.toml").read_text(encoding="utf-8"))


def catalogue_model(name: str) -> CatalogueModel:
    """Return the model called `name`. Raises UsageError that lists all."""
    models = read_catalogue()
    for model in models:
        if model.name == name.lower():
            return model
    known = ", ".join(model.name for model in models)
    raise UsageError(f"The catalogue has no model {name!r}.", f"It has {known}. Other models are org/repo.")


def resolve_reference(text: str, endpoint: str) -> RepoReference | FileReference | UrlReference:
    """Parse a reference and replace a name of the catalogue by its repository. Raises UsageError."""
    reference = parse_reference(text, endpoint)
    return (
        RepoReference(catalogue_model(reference.name).repo) if isinstance(reference, CatalogueReference) else reference
    )


def parse_catalogue(text: str) -> tuple[CatalogueModel, ...]:
    """Parse the catalogue's TOML. Raises ValueError that names the fault."""
    models = tuple(_model(entry) for entry in tomllib.loads(text).get("model", []))
    names = [model.name for model in models]
    if len(set(names)) != len(names):
        raise ValueError("two models of the catalogue have the same name")
    return models


def _model(entry: Mapping[str, Any]) -> CatalogueModel:
    try:
        model = CatalogueModel(
            name=_text(entry["name"], _NAME),
            title=_text(entry["title"], _TEXT),
            roles=tuple(Role(role) for role in entry["roles"]),
            repo=_text(entry["repo"], _REPO),
            quants=tuple(FILE_TYPES[quant] for quant in entry["quants"]),
            licence=_text(entry["licence"], _TEXT),
            config=dict(entry["config"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{entry.get('name')} of the catalogue is invalid: {error}") from error
    if not (model.roles and model.quants):
        raise ValueError(f"{model.name} of the catalogue has no roles or no quants")
    return model


def _text(value: str, form: re.Pattern[str]) -> str:
    if not form.fullmatch(value):
        raise ValueError(f"{value!r} does not match {form.pattern}")
    return value
