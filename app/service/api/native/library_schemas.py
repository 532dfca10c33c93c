"""The objects of the library's routes, as `app.library.library_json` and its neighbours build them: fields and what
these may be."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import NonNegativeFloat, NonNegativeInt
from typing_extensions import TypedDict

from app.protocol.library import DeviceKindName
from app.service.api.native.schemas import Fit

__all__ = ["Card", "Listing", "LoadedAs", "Machine", "Placed", "Recommendations", "Removed", "Repositories", "Types"]

Row: TypeAlias = tuple[str, str]  # a label and a text, for people


class LoadedAs(TypedDict):
    """What a model's engine is at, and when it is let go (seconds since 1970)."""

    state: Literal["loading", "ready", "failed", "unloaded"]
    loaded_as: str | None
    expires_s: NonNegativeFloat | None


class LibraryModel(LoadedAs):
    """A model of this machine: what the disk says, and the facts, null where the file is damaged or not read yet."""

    id: str
    where: str
    path: str
    bytes: NonNegativeInt
    modified_s: NonNegativeInt
    damaged: str | None
    name: str | None
    architecture: str | None
    n_parameters: NonNegativeInt | None
    file_type: str | None
    n_ctx_train: NonNegativeInt | None
    kv_bytes_per_token: NonNegativeInt | None
    has_chat_template: bool | None
    has_tools: bool | None
    has_fim: bool | None
    licence: str | None
    template_sha256: str | None
    fit: Fit | None


class Listing(TypedDict):
    """The models of this machine; not `complete` while some are being read."""

    models: list[LibraryModel]
    complete: bool


class Suggestion(Fit):
    """A model of the catalogue in the quant that suits this machine best."""

    name: str
    title: str
    ref: str
    quant: str
    n_bytes: NonNegativeInt
    n_parameters: NonNegativeInt
    licence: str
    n_ctx_train: NonNegativeInt
    uncertainty: NonNegativeFloat


class Recommendation(TypedDict):
    """What to take for a role, null where nothing runs, and why; whether it is as fast as people want who ask that."""

    role: Literal["chat", "code", "small", "moe", "embedding"]
    model: Suggestion | None
    keeps_pace: bool
    why: str
    passed_over: list[Suggestion]


class Recommendations(TypedDict):
    """One for each role."""

    recommendations: list[Recommendation]


class Quant(Fit):
    """A file, or several, of a repository."""

    quant: str
    n_bytes: NonNegativeInt


class Family(TypedDict):
    """The quants of one model."""

    architecture: str
    n_parameters: NonNegativeInt
    n_ctx_train: NonNegativeInt | None
    quants: list[Quant]


class Repository(TypedDict):
    """A repository of the hub, and why nothing is told of its models, if so."""

    repo: str
    kind: Literal["checkpoint", "gguf"]
    downloads: NonNegativeInt
    licence: str | None
    gated: bool
    models: list[Family]
    models_left_out: NonNegativeInt
    problem: str | None


class Repositories(TypedDict):
    """What the hub has."""

    repositories: list[Repository]


class TypeShare(TypedDict):
    """How much of a file one tensor type takes."""

    n_tensors: NonNegativeInt
    n_bytes: NonNegativeInt


class TemplateBase(TypedDict):
    """The model whose chat template this one should have, and whether it has."""

    repo: str
    is_same: bool


class TunedSetting(TypedDict):
    """What decides speed."""

    n_threads: NonNegativeInt
    flash_attention: bool
    extra_buffers: bool
    n_ubatch: NonNegativeInt
    kv_type: str


class Tuned(TypedDict):
    """The fastest setting that was measured here, in tokens a second."""

    setting: TunedSetting
    prefill: NonNegativeFloat
    decode: list[tuple[NonNegativeInt, NonNegativeFloat]]
    step_ratios: list[tuple[NonNegativeInt, NonNegativeFloat]]


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
    tuned: Tuned | None
    rows: list[Row]


class Type(Fit):
    """What a type would make of a model. `perplexity_loss` is what llama.cpp measured of another one."""

    type: str
    bits_per_weight: NonNegativeFloat
    bytes: NonNegativeInt
    perplexity_loss: float | None
    max_tokens_per_s: NonNegativeFloat
    needs_imatrix: bool
    description: str


class Types(TypedDict):
    """Every type that the model could be made."""

    types: list[Type]


class MachineDevice(TypedDict):
    """A processor with memory. What is null nobody knows."""

    name: str
    kind: DeviceKindName
    total_bytes: NonNegativeInt
    free_bytes: NonNegativeInt
    bytes_per_s: NonNegativeFloat | None
    link_bytes_per_s: NonNegativeFloat | None
    link_latency_s: NonNegativeFloat | None
    description: str


class Problem(TypedDict):
    """What is wrong, and what to do about it."""

    what: str
    next_step: str


class Machine(TypedDict):
    """What this machine is for running models, and the same in `rows` for people."""

    verdict: Literal["good", "problems"]
    engine: str
    devices: list[MachineDevice]
    disk_bytes_per_s: NonNegativeFloat | None
    problems: list[Problem]
    rows: list[Row]


class Placed(TypedDict):
    """A model that got a place in the library, and how."""

    id: str
    path: str
    bytes: NonNegativeInt
    way: Literal["copy", "hard link", "reflink", "symbolic link"]


class Removed(TypedDict):
    """What went from the library, or would go."""

    id: str
    paths: list[str]
    bytes_freed: NonNegativeInt
    dry_run: bool
