"""Models as the service tells faces of them: those that are here, those that could be, and what each comes to.

Owns these values. Texts may come from files and hubs: none is fit for a terminal yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "DeviceKindName",
    "HubModel",
    "HubRepository",
    "LocalModel",
    "LocalModels",
    "MachineProblem",
    "MachineReport",
    "ModelFit",
    "Quant",
    "Recommended",
    "RemovalResult",
    "TypeChoice",
    "VerdictName",
]

VerdictName: TypeAlias = Literal["fits", "tight", "partial", "wont_run"]
DeviceKindName: TypeAlias = Literal["cpu", "gpu", "integrated"]


@dataclass(frozen=True, slots=True)
class ModelFit:
    """What a model comes to on the service's machine. `decode_tps` (tokens a second) is None where nobody can tell;
    `total_bytes` are those of weights, cache and buffers together."""

    verdict: VerdictName
    decode_tps: float | None
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Quant:
    """One type in which a model is had, the bytes of its files, and what it would come to."""

    name: str
    n_bytes: int
    fit: ModelFit


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model of the service's machine; `where` is "library" or the program that holds it. 0 is unknown.

    `damaged` says why the gate refused its file. `fit` is None where it was not worked out yet, or cannot be. Of a
    loaded one `loaded_as` is the id that it answers to, and `expires_s` when it is let go, None for one that stays.
    """

    id: str
    where: str
    path: str
    n_bytes: int
    damaged: str = ""
    file_type: str = ""
    n_parameters: int = 0
    n_ctx_train: int = 0
    fit: ModelFit | None = None
    state: Literal["loading", "ready", "failed", "unloaded"] = "unloaded"
    loaded_as: str = ""
    expires_s: float | None = None


@dataclass(frozen=True, slots=True)
class LocalModels:
    """The models that are here; while not `is_complete`, more of them is being read: ask again."""

    models: tuple[LocalModel, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """A model of the catalogue in the quant that suits the machine; `reference` is what a pull takes. One that
    `keeps_pace` answers as fast as people want who ask that of a model."""

    role: str
    why: str
    keeps_pace: bool
    title: str
    reference: str
    licence: str
    n_parameters: int
    n_ctx_train: int
    quant: Quant


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of a repository in its quants, the largest first."""

    architecture: str
    n_parameters: int
    n_ctx_train: int
    quants: tuple[Quant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRepository:
    """A repository of the hub; `problem` says why nothing is known of what it holds."""

    repo: str
    is_checkpoint: bool
    n_downloads: int
    licence: str
    is_gated: bool
    models: tuple[HubModel, ...]
    n_left_out: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeChoice:
    """A type that a model could be made: `perplexity_loss` is what llama.cpp measured that it adds to the 6.23 of
    Llama-3-8B, None where it says nothing."""

    quant: Quant
    bits_per_weight: float
    perplexity_loss: float | None
    needs_imatrix: bool
    description: str


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """A model with the files that go, or went, and the bytes that the disk gets back."""

    id: str
    paths: tuple[str, ...]
    n_bytes_freed: int


@dataclass(frozen=True, slots=True)
class MachineProblem:
    """What is wrong with a machine, and what to do about it."""

    what: str
    next_step: str


@dataclass(frozen=True, slots=True)
class MachineReport:
    """A machine as people read of it, a label and a text for each part, and what is wrong with it."""

    rows: tuple[tuple[str, str], ...]
    problems: tuple[MachineProblem, ...]
