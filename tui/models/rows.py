"""The rows of the models screen, their order, their columns at a given width, and their figures as short text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from app.common.terminal import counted, format_bytes, printable_line, quoted_name
from offload.format import format_speed_range
from quantizer.figures import format_speed
from tui.design.words import duration

if TYPE_CHECKING:
    from app.protocol.job import Job
    from app.protocol.library import HubRepository, LocalModel, ModelFit, ModelUpdate, Recommended, RemovalResult
    from app.protocol.status import ModelStatus


_FIT_WORDS = {"fits": "fits", "tight": "fits tightly", "partial": "fits partly", "wont_run": "won't run"}


def format_size(n_bytes: int) -> str:
    """Return decimal bytes such as 4.92 GB; empty if unknown."""
    return format_bytes(n_bytes) if n_bytes else ""


def format_fit(fit: ModelFit | None) -> str:
    """Return whether a model fits, in words: "fits", "fits tightly", "fits partly" or "won't run"."""
    return "" if fit is None else _FIT_WORDS[fit.verdict]


def format_rate(fit: ModelFit | None) -> str:
    """Return the speed that was measured here, or the predicted one, such as about 32 tok/s, or 18–39 tok/s where it is
    uncertain."""
    if fit is not None and fit.measured_tps is not None:
        return f"{format_speed(fit.measured_tps)} tok/s measured here"
    if fit is None or fit.decode_tps is None:
        return ""
    return f"about {format_speed_range(fit.decode_tps, fit.uncertainty)} tok/s"


def short_rate(fit: ModelFit | None) -> str:
    """Return the speed in one figure: 32 tok/s, or ~32 tok/s where it is predicted and may be off."""
    if fit is not None and fit.measured_tps is not None:
        return f"{format_speed(fit.measured_tps)} tok/s"
    if fit is None or fit.decode_tps is None:
        return ""
    is_certain = "–" not in format_rate(fit)
    return f"{'' if is_certain else '~'}{format_speed(fit.decode_tps)} tok/s"


def format_context(n_tokens: int) -> str:
    """Return a context size such as 128k, 40k or 512."""
    return "" if not n_tokens else str(n_tokens) if n_tokens < 1024 else f"{round(n_tokens / 1024)}k"


def format_progress(job: Job) -> str:
    """Return a job's progress, such as 43 %, 12.3 MB/s, 2 min left."""
    if job.state == "queued":
        return "queued"
    if job.has_ended:
        return f"{job.state}: {job.error.cause}" if job.error else job.state
    parts = (
        "" if job.fraction is None else f"{job.fraction:.0%}",
        f"{format_bytes(round(job.bytes_per_s))}/s" if job.bytes_per_s else "",
        "" if job.remaining_s is None else f"{duration(job.remaining_s)} left",
    )
    return ", ".join(filter(None, parts)) or "in progress"


def format_removal(removal: RemovalResult) -> str:
    """Return how much space deleting a model frees, and which files are deleted: last, since they may be many."""
    freed = format_size(removal.n_bytes_freed)
    frees = f"This frees {freed}." if freed else "This frees nothing: other files share its data."
    files = "\n".join(f"  {quoted_name(str(path))}" for path in removal.paths)
    return f"{quoted_name(removal.id)} and its files are deleted. {frees}\n{files}"


RowKind: TypeAlias = Literal["local", "external", "engine", "remote", "file", "folder"]

# Of the architectures that the converter writes and llama.cpp loads; every other one writes text.
_EMBEDDING_ENDINGS = ("bert", "bert-moe", "bert-v2", "bert-v3", "t5encoder", "embedding")
_DRAFT_ARCHITECTURES = ("eagle", "dflash")
_LIBRARY_SOURCES = ("library", "built in")
# Roles with another name here; the others are shown as they are.
_ROLES = {"small": "small and fast", "moe": "mixture of experts", "vision": "images", "embedding": "embeddings"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One model, or one quant of it, or a folder to look for models in. `model` is the path of a local one;
    `reference`, and the type `quantize` for a checkpoint, are the arguments of a pull. `note` is additional
    information; `progress` replaces the figures. `verified` is how its last verification ended, "" before one; `newer`
    says that the hub has a newer revision."""

    id: str
    kind: RowKind
    name: str
    n_bytes: int = 0
    type: str = ""
    fit: ModelFit | None = None
    n_ctx: int = 0
    model: str = ""
    reference: str = ""
    quantize: str = ""
    state: str = "unloaded"
    loaded_as: str = ""
    is_staying: bool = True
    note: str = ""
    damaged: str = ""
    is_arriving: bool = False
    progress: str = ""
    job_id: str = ""  # of the job that is under way for it
    takes: str = ""  # besides text
    used: str = ""  # how long ago, in words
    is_default: bool = False
    role: str = "chat"
    is_built_in: bool = False
    modified_s: int = 0
    verified: str = ""
    is_sound: bool = False
    newer: str = ""

    @property
    def is_pulling(self) -> bool:
        return self.kind == "remote" and bool(self.job_id)

    @property
    def is_loaded(self) -> bool:
        return self.state in ("ready", "loading")


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under a heading, or a note instead."""

    title: str
    rows: tuple[ModelRow, ...]
    note: str = ""


def local_rows(
    models: Iterable[LocalModel], words: str = "", used: Mapping[str, str] = MappingProxyType({}), default: str = ""
) -> tuple[tuple[ModelRow, ...], tuple[ModelRow, ...]]:
    """Return the rows of the library, and of other programs' models, whose ids and file names contain all `words`.
    `used` says by a model's id, file name or path when it answered last, `default` is the name of the default model."""
    rows = []
    for model in models:
        if _matches(f"{model.id} {model.file_stem} {_role(model)}", words):
            names = (model.id, model.file_stem, model.path)
            last = next((used[name] for name in names if name in used), "")
            rows.append(replace(_local_row(model), used=last, is_default=bool(default) and default in names))
    return tuple(row for row in rows if row.kind == "local"), tuple(row for row in rows if row.kind == "external")


def engine_rows(models: Iterable[ModelStatus], words: str = "") -> tuple[ModelRow, ...]:
    """Return the models of an engine of another program, whose names contain all `words`."""
    return tuple(
        ModelRow(id=model.id, kind="engine", name=model.id, model=model.id, n_ctx=model.n_ctx)
        for model in models
        if _matches(model.id, words)
    )


def downloadable_rows(
    recommended: Sequence[Recommended], found: Sequence[HubRepository], words: str = ""
) -> tuple[tuple[ModelRow, ...], tuple[Section, ...]]:
    by_reference = {each.reference: each for each in reversed(recommended)}  # one model may be best for two roles
    catalogue = tuple(
        _recommended_row(each)
        for each in reversed(by_reference.values())
        if _matches(f"{each.title} {each.reference}", words)
    )
    return catalogue, tuple(map(_repository, found))


def with_jobs(rows: Iterable[ModelRow], jobs: Collection[Job]) -> tuple[ModelRow, ...]:
    """Return the rows with the progress of downloads and verifications, and how the latter ended."""
    pulled = [(job.arguments, job) for job in jobs if job.kind == "pull"]
    pulls = {(arguments.get("reference"), arguments.get("quantize") or ""): job for arguments, job in pulled}
    # the newest comes last
    verified = {job.arguments.get("model"): job for job in jobs if job.kind == "verify" and job.state != "forgotten"}
    shown = []
    for row in rows:
        if row.model and (verification := verified.get(row.model)) is not None:
            row = _with_verification(row, verification)
        pull = pulls.get((row.reference, row.quantize)) if row.kind == "remote" else None
        if pull is not None and pull.state != "forgotten":
            row = replace(row, progress=format_progress(pull), job_id="" if pull.has_ended else pull.id)
        shown.append(row)
    return tuple(shown)


def with_updates(rows: Iterable[ModelRow], updates: Mapping[str, ModelUpdate]) -> tuple[ModelRow, ...]:
    """Return the rows of models, some of which have a newer revision: `updates` by their paths."""
    shown = []
    for row in rows:
        if (update := updates.get(row.model)) is not None:
            row = replace(row, newer=f"The hub has a newer revision, {format_size(update.n_bytes)}: o offers it.")
        shown.append(row)
    return tuple(shown)


def updates_words(found: Sequence[ModelUpdate]) -> str:
    """Return what the hub said of the models, but for those with a newer revision."""
    n_current = sum(update.state == "current" for update in found)
    unknown = [update for update in found if update.state == "unknown"]
    if not found:
        return "No model here is from the hub: there is nothing to compare."
    parts = [f"Up to date: {n_current} of {counted(len(found), 'model')} of the hub."]
    if unknown:
        first = unknown[0]
        parts.append(f"Not comparable: {len(unknown)}. {printable_line(first.id)}: {printable_line(first.reason)}")
    return " ".join(parts)


def _with_verification(row: ModelRow, job: Job) -> ModelRow:
    if not job.has_ended:
        return replace(row, progress=f"verifying: {format_progress(job)}", job_id=job.id)
    if row.modified_s > (job.ended_s or 0.0):  # it is another file now
        return row
    if job.state == "failed" and job.error is not None:
        return replace(row, verified=f"Not verified: {job.error.cause} {job.error.remedy}")
    if row.verified:  # what is recorded counts: an older job may have found the file sound
        return row
    return replace(row, verified=f"Verified. {job.message}", is_sound=True) if job.state == "done" else row


def _role(model: LocalModel) -> str:
    """Return what a local model is for: "chat", "embedding" or "draft", the latter two by its architecture."""
    if model.architecture.endswith(_EMBEDDING_ENDINGS):
        return "embedding"
    is_draft = model.architecture.startswith(_DRAFT_ARCHITECTURES)
    return "draft" if is_draft else "chat"


def _local_row(model: LocalModel) -> ModelRow:
    return ModelRow(
        id=f"local:{model.where}:{model.path}",
        kind="local" if model.where in _LIBRARY_SOURCES else "external",
        name=model.id,
        n_bytes=model.n_bytes,
        type=model.file_type,
        fit=model.fit,
        n_ctx=model.n_ctx_train,
        model=model.path,
        state=model.state,
        loaded_as=model.loaded_as,
        is_staying=model.expires_s is None,
        note="" if model.where == "library" else model.where,
        damaged=model.damaged,
        is_arriving=model.is_arriving,
        takes=" and ".join(verb for verb, does in (("sees", model.sees), ("hears", model.hears)) if does),
        progress="still being copied" if model.is_arriving else "",
        role=_role(model),
        is_built_in=model.where == "built in",
        modified_s=model.modified_s,
        verified=f"Not verified: {model.mismatch}" if model.mismatch else "",
    )


def _recommended_row(model: Recommended) -> ModelRow:
    facts = (_ROLES.get(model.role, model.role), model.published, model.licence)
    return ModelRow(
        id=f"remote:{model.reference}:",
        kind="remote",
        name=model.title,
        n_bytes=model.quant.n_bytes,
        type=model.quant.name,
        fit=model.quant.fit,
        n_ctx=model.n_ctx_train,
        reference=model.reference,
        note=f"{', '.join(fact for fact in facts if fact)}. {model.why}",
    )


def _repository(repo: HubRepository) -> Section:
    facts = [f"{repo.n_downloads:,} downloads", repo.licence, "gated: accept its terms first"]
    title = f"{repo.repo}  {', '.join(fact for fact in facts[: 3 if repo.is_gated else 2] if fact)}"
    left_out = f"and {repo.n_left_out} files of other models" if repo.n_left_out else ""
    kind = ", a checkpoint: converted to a GGUF of this type after download" if repo.is_checkpoint else ""
    rows = []
    for found in repo.models:
        for quant in found.quants:
            suffix, quantize = ("", quant.name) if repo.is_checkpoint else (f":{quant.name}", "")
            row = ModelRow(
                id=f"remote:{repo.repo}{suffix}:{quantize}:{quant.n_bytes}",
                kind="remote",
                name=f"  {quant.name}",
                n_bytes=quant.n_bytes,
                type=quant.name,
                fit=quant.fit,
                n_ctx=found.n_ctx_train,
                reference=f"{repo.repo}{suffix}",
                quantize=quantize,
                note=f"{found.architecture}, {found.n_parameters / 1e9:.1f}B{kind}",
            )
            rows.append(row)
    return Section(title, tuple(rows), repo.problem or left_out)


def _matches(name: str, words: str) -> bool:
    return all(word in name.lower() for word in words.lower().split())
