"""The objects of the library's routes that are not declared in `app.protocol.library`."""

from __future__ import annotations

from typing import TypeAlias

from pydantic import NonNegativeFloat, NonNegativeInt
from typing_extensions import TypedDict

from app.engine.tuning.tune_results import SpeedMeasurement
from app.protocol.library import HubRepository, Recommendation, TypeChoice

__all__ = ["Card", "Recommendations", "Repositories", "Types"]

Row: TypeAlias = tuple[str, str]  # a label and a text, for people


class Recommendations(TypedDict):
    """One for each role."""

    recommendations: list[Recommendation]


class Repositories(TypedDict):
    """What the hub has."""

    repositories: list[HubRepository]


class TypeShare(TypedDict):
    """How much of a file one tensor type takes."""

    n_tensors: NonNegativeInt
    n_bytes: NonNegativeInt


class TemplateBase(TypedDict):
    """The model whose chat template this one should have, and whether it has."""

    repo: str
    is_same: bool


class Card(TypedDict):
    """All that a model's file says of it, what this machine has learnt, and the same in `rows` for people."""

    name: str
    architecture: str
    n_parameters: NonNegativeInt
    file_type: str
    types: dict[str, TypeShare]
    file_bytes: NonNegativeInt
    n_ctx_train: NonNegativeInt
    n_layers: NonNegativeInt
    n_embd: NonNegativeInt
    n_heads: NonNegativeInt
    n_kv_heads: NonNegativeInt
    n_experts: NonNegativeInt
    kv_bytes_per_token: NonNegativeInt
    n_vocab: NonNegativeInt
    tokenizer: str
    has_chat_template: bool
    has_tools: bool
    has_fim: bool
    licence: str
    template_sha256: str
    path: str
    bits_per_weight: NonNegativeFloat
    files: list[str]
    sha256: list[str | None]
    template_base: TemplateBase | None
    tuned: SpeedMeasurement | None
    rows: list[Row]


class Types(TypedDict):
    """Every type that the model could be made."""

    types: list[TypeChoice]
