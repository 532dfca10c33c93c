"""Models and the machine as they cross processes: local models, models of the hub, and the fit of each.

Owns these values, which the service, the client and `--json` share. Texts may come from files and hubs: none is safe
for a terminal yet. Independent of where models are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from offload.devices.machine import Device

VerdictName: TypeAlias = Literal["fits", "tight", "partial", "wont_run"]
ImportWay: TypeAlias = Literal["copy", "hard link", "reflink", "symbolic link"]
ModelState: TypeAlias = Literal["loading", "ready", "failed", "unloaded"]
DeviceKindName: TypeAlias = Literal["cpu", "gpu", "integrated"]


@dataclass(frozen=True, slots=True)
class ModelFit:
    """The fit of a model on the service's machine. `decode_tps` (tokens a second) is None where unknown, and may be off
    by `uncertainty`, a share of it; `measured_tps` is what its answers reached here, None before the first one.
    `prefill_tps` is the speed of a prompt, None where the types of weights were not measured: it depends on them most.
    `total_bytes` are those of weights, cache and buffers."""

    verdict: VerdictName
    decode_tps: float | None
    total_bytes: int
    uncertainty: float = 0.0
    measured_tps: float | None = None
    prefill_tps: float | None = None

    @property
    def runs_well(self) -> bool:
        """Whether the model is entirely in the fastest memory."""
        return self.verdict in ("fits", "tight")


@dataclass(frozen=True, slots=True)
class Quant:
    """One quantization type of a model, the bytes of its files, and its fit."""

    name: str
    n_bytes: int
    fit: ModelFit


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The facts about a model that lists show, read from its header. 0 and "" are unknown; texts are untrusted. It sees
    pictures, or hears sounds, with the projector that is kept with it."""

    name: str = ""
    architecture: str = ""
    file_type: str = ""
    n_parameters: int = 0
    n_ctx_train: int = 0
    kv_bytes_per_token: int = 0
    has_chat_template: bool = False
    has_tools: bool = False
    has_fim: bool = False
    sees: bool = False
    hears: bool = False
    licence: str = ""
    template_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel(ModelFacts):
    """A model of the service's machine; `where` is "library" or the program that holds it. 0 and "" are unknown.
    `damaged` is why its file was refused, `mismatch` what `verify` found: a hash that is not the recorded one, which
    keeps nobody from using it; one that `is_arriving` may be growing still. `fit` is None where it was not
    computed yet, or cannot be. For a loaded model `loaded_as` is the id that it answers to, and `expires_s` when it is
    unloaded, None for one that stays."""

    id: str
    where: str
    path: str
    n_bytes: int
    modified_s: int = 0
    damaged: str = ""
    fit: ModelFit | None = None
    state: ModelState = "unloaded"
    loaded_as: str = ""
    expires_s: float | None = None
    is_arriving: bool = False
    mismatch: str = ""

    @property
    def file_stem(self) -> str:
        """The name of its file without the ending; empty for a file without it, whose name is a hash."""
        name = self.path.replace("\\", "/").rpartition("/")[2]
        return name.removesuffix(".gguf") if name.endswith(".gguf") else ""


@dataclass(frozen=True, slots=True)
class LoadState:
    """The state of a model's engine: the id that it answers to, and when it is unloaded (seconds since 1970)."""

    state: ModelState = "unloaded"
    loaded_as: str = ""
    expires_s: float | None = None


@dataclass(frozen=True, slots=True)
class LocalModels:
    """The local models; while not `is_complete`, more of them is being read: ask again. `folder` is the models folder:
    GGUF files that are put into it are listed. `skipped` says of other programs why their models are left out."""

    models: tuple[LocalModel, ...]
    is_complete: bool
    folder: str = ""
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDraft:
    """What a draft model would do: its bytes, the layers that then stay on GPUs, tokens a second at the usual
    `acceptance` of its drafts, as a share of those without it (`gain`), and the acceptance from which on it is as fast,
    None where nothing is. A copy of the model itself has a `file_type`; `--draft copy` makes and uses it."""

    what: str
    bytes: int
    layers: int
    draft_tokens: int
    acceptance: float
    decode_tps: float
    gain: float
    least_acceptance: float | None
    file_type: str = ""

    @property
    def gain_text(self) -> str:
        """How much faster or slower answers are with it, at which acceptance, as a part of a sentence."""
        pays = "never faster than without"
        if self.least_acceptance is not None:
            pays = f"faster than without from {self.least_acceptance:.0%} on"
        return f"{self.gain:.2f} times as fast where {self.acceptance:.0%} of its tokens are accepted, {pays}"

    @property
    def pays(self) -> bool:
        return self.gain > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """A model of the catalogue in the quant that suits the machine; `reference` is what `localllm pull` takes. One that
    `keeps_pace` answers as fast as its role needs. It was `published` in that month, as 2026-02. `drafts` are what
    draft models would do beside it, the best first, of those recommended only."""

    role: str
    why: str
    keeps_pace: bool
    name: str = ""
    title: str
    reference: str
    licence: str
    published: str = ""
    n_parameters: int
    n_ctx_train: int
    quant: Quant
    drafts: tuple[PlanDraft, ...] = ()


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The model for a role, None where nothing runs, the reason, and better models that run too slowly."""

    role: str
    why: str
    model: Recommended | None
    passed_over: tuple[Recommended, ...] = ()


@dataclass(frozen=True, slots=True)
class Recommendations:
    """A recommendation for each role, and a notice where the catalogue that they come from is old."""

    recommendations: tuple[Recommendation, ...]
    notice: str = ""

    @property
    def models(self) -> tuple[Recommended, ...]:
        """The recommended models: none for roles for which nothing runs."""
        return tuple(each.model for each in self.recommendations if each.model)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of a repository in its quants, the largest first."""

    architecture: str
    n_parameters: int
    n_ctx_train: int
    quants: tuple[Quant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUpdate:
    """Whether the hub has a newer revision of a model; "unknown" for a `reason`. A newer one is at `commit`:
    `reference` is what `localllm pull` takes, and its changed files have `n_bytes`."""

    id: str
    path: str
    repo: str
    state: Literal["newer", "current", "unknown"] = "unknown"
    reason: str = ""
    reference: str = ""
    n_bytes: int = 0
    commit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRepository:
    """A repository of the hub; `problem` is why its contents are unknown."""

    repo: str
    is_checkpoint: bool
    n_downloads: int
    licence: str
    is_gated: bool
    models: tuple[HubModel, ...] = ()
    n_left_out: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeChoice:
    """A type that a model could be quantized to: `perplexity_loss` is what llama.cpp measured that it adds to the 6.23
    of Llama-3-8B, None where that is unknown; `max_tokens_per_s` is what the memory's bandwidth allows."""

    quant: Quant
    bits_per_weight: float
    perplexity_loss: float | None
    needs_imatrix: bool
    description: str
    max_tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """A model that was imported, and how: as a link, or a copy."""

    id: str
    path: str
    n_bytes: int
    way: ImportWay


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """A model with the files that are removed, or would be in a `dry_run`, and the bytes that this frees."""

    id: str
    paths: tuple[str, ...]
    n_bytes_freed: int
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class MachineProblem:
    """What is wrong with a machine, and what to do about it."""

    what: str
    next_step: str


@dataclass(frozen=True, slots=True)
class MachineReport:
    """A machine: `rows` for people, a label and a text for each part, its problems, and the same for programs. `paths`
    are the folders in use and the log, by their labels."""

    rows: tuple[tuple[str, str], ...]
    problems: tuple[MachineProblem, ...]
    verdict: Literal["good", "problems"] = "good"
    engine: str = ""
    devices: tuple[Device, ...] = ()
    disk_bytes_per_s: float | None = None
    paths: tuple[tuple[str, str], ...] = ()
