"""The record of a model on this machine: hashes, tuning, and its base model's chat template.

Owns gathering them, and the rows of `localllm show`. The base's template comes from the Hugging Face cache, never from
the network. Texts come from files: escape them before a terminal shows them.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from app.engine.tuning.tune_results import SpeedMeasurement, best_measurement
from app.library.external import hugging_face_snapshots
from app.library.local.index import MISMATCH_REMEDY, Index, expected_sha256, full_model_info
from app.library.local.model_files import parts_of
from app.library.local.model_sampling import read_model_sampling
from app.library.local.projectors import FoundProjector, find_projector
from app.library.local.recipe import NO_RECIPE, Recipe
from app.protocol.sampling import OUR_SAMPLING, ModelSampling
from offload.footprint.auxiliary_models import PlannedProjector
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.gguf.header import Header
from quantizer.gguf.model_info import ModelInfo
from quantizer.system.files import is_file

_TEMPLATE = "tokenizer.chat_template"
_ORIGINS = ("general.base_model.0.repo_url", "general.source.repo_url")
_REPO_URL = re.compile(r"https://huggingface\.co/([\w.-]+)/([\w.-]+)/?", re.ASCII)
_MAX_COMPARED_LINES = 5000  # comparing takes up to the square of them


@dataclass(frozen=True, slots=True)
class BaseTemplate:
    """A repository as ORG/NAME, and its default chat template, or empty."""

    repo: str
    text: str


@dataclass(frozen=True, slots=True)
class TemplateBase:
    """The model whose chat template this one should have, and whether it has."""

    repo: str
    is_same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription(ModelInfo):
    """The facts of a model's files, this machine's records of it, and both as printable `rows`. `sha256` has one
    hash, if known, for each of `files`, `mismatch` what `verify` found wrong with one. `template_base` is None where
    the model's base is not on this machine. `tuned` is the fastest setting measured here; `sampling` is how it is
    sampled where a request does not say it. `source` is the package that it was pulled from, "" for another model.
    With the file `projector`, of `projector_type`, it sees or hears; the tokens are those of a picture of 1024 ×
    1024 pixels, the most that any picture takes, and those of 30 seconds of sound."""

    sees: bool = False
    hears: bool = False
    projector: str = ""
    projector_type: str = ""
    picture_tokens: int = 0
    max_picture_tokens: int = 0
    sound_tokens: int = 0
    path: str
    files: tuple[str, ...]
    sha256: tuple[str | None, ...]
    mismatch: str = ""
    template_base: TemplateBase | None
    tuned: SpeedMeasurement | None
    source: str = ""
    sampling: ModelSampling = OUR_SAMPLING
    rows: tuple[tuple[str, str], ...] = ()


def describe_model(header: Header, index: Index, cache_dir: Path, recipe: Recipe = NO_RECIPE) -> ModelDescription:
    """Return the value of `localllm show --json` for the model with `recipe` whose first or only file has `header`.
    Raises ModelFileError when another file is invalid, StorageError."""
    info, base, files = full_model_info(header), base_template(header), parts_of(header.path)
    described = ModelDescription(
        **{item.name: getattr(info, item.name) for item in fields(ModelInfo)},
        path=str(files[0]),
        files=tuple(map(str, files)),
        sha256=tuple(expected_sha256(part, index) or None for part in files),
        mismatch=index.mismatch(header.path),
        template_base=TemplateBase(base.repo, base.text == header.text(_TEMPLATE)) if base else None,
        # Without measurements the file is not hashed, which the search for them begins with.
        tuned=best_measurement(header, cache_dir) if is_file(cache_dir / "tune.json") else None,
        source=_source(index.origin(files[0])),
        sampling=read_model_sampling(header, recipe),
    )
    found = find_projector(header)
    if found.projector is not None:
        planned = PlannedProjector.of(found.projector, header)
        described = replace(
            described,
            sees=found.sees,
            hears=found.hears,
            projector=found.path,
            projector_type=found.projector.type_name,
            picture_tokens=planned.picture.typical if planned.picture else 0,
            max_picture_tokens=planned.picture.most if planned.picture else 0,
            sound_tokens=planned.n_sound_tokens,
        )
    rows = (
        *_info_rows(info),
        ("template's base", _comparison(header, base)),
        *_projector_rows(described, found),
        ("tuned", _speeds(described.tuned) if described.tuned else ""),
        ("sampling", described.sampling.words or "this program's own: the model states none"),
        *(("sampling left out", what) for what in described.sampling.ignored),
        ("source", described.source),
    )
    for path, sha256 in zip(described.files, described.sha256, strict=True):
        rows = (*rows, ("file", path), ("sha256", sha256 or "unknown until `localllm verify`"))
    rows = (*rows, ("mismatch", f"{described.mismatch} {MISMATCH_REMEDY}" if described.mismatch else ""))
    return replace(described, rows=tuple((label, text) for label, text in rows if text))


def base_template(header: Header, environment: Mapping[str, str] = os.environ) -> BaseTemplate | None:
    """Return the template of the model's base; None if it has none, it is not on this machine, or it is invalid."""
    matches = (_REPO_URL.fullmatch(header.text(key)) for key in _ORIGINS)
    for repo in (f"{match[1]}/{match[2]}" for match in matches if match):
        for snapshot in hugging_face_snapshots(repo, environment):
            if (snapshot / "tokenizer_config.json").is_file():
                with contextlib.suppress(CheckpointError):
                    return BaseTemplate(repo, _template_in(snapshot))
    return None


def difference(base: str, own: str) -> list[str]:
    """Return a unified diff from `base` to `own` as lines; none where they are too many to compare."""
    before, after = base.splitlines(), own.splitlines()
    if len(before) + len(after) > _MAX_COMPARED_LINES:
        return []
    return list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]  # without the file names


def template_changes(header: Header) -> list[str]:
    """Return the diff from the base's chat template to the model's; empty where they are equal or there is no base."""
    base = base_template(header)
    return difference(base.text, header.text(_TEMPLATE)) if base else []


def _template_in(folder: Path) -> str:
    from quantizer.checkpoint.safetensors import read_object
    from quantizer.tokenizers.vocabulary import DEFAULT_TEMPLATE, TokenizerFolder, read_chat_templates

    settings = Config(read_object(folder / "tokenizer_config.json"))
    return read_chat_templates(TokenizerFolder(folder, {}, settings, Config({}))).get(DEFAULT_TEMPLATE, "")


def _source(origin: str) -> str:
    """Return the reference in the recorded origin of a file; the hub's files have fingerprints alone there."""
    reference = origin.partition(" ")[0]
    return reference if ":" in reference else ""


def _info_rows(info: ModelInfo) -> list[tuple[str, str]]:
    return [
        ("name", info.name),
        ("architecture", info.architecture),
        ("parameters", f"{info.n_parameters:,}"),
        ("size", f"{info.file_bytes:,} bytes, {info.bits_per_weight:.2f} bits per weight"),
        ("type", info.file_type),
        ("tensors", ", ".join(f"{share.n_tensors} × {name}" for name, share in info.types.items())),
        ("context", f"{info.n_ctx_train:,} tokens" if info.n_ctx_train else ""),
        ("layers", f"{info.n_layers} of width {info.n_embd:,}" if info.n_layers else ""),
        ("heads", f"{info.n_heads}, {info.n_kv_heads} for keys and values" if info.n_heads else ""),
        ("experts", str(info.n_experts) if info.n_experts else ""),
        ("cache", f"{info.kv_bytes_per_token:,} bytes per token in F16" if info.kv_bytes_per_token else ""),
        ("vocabulary", f"{info.n_vocab:,} tokens ({info.tokenizer})" if info.n_vocab else ""),
        ("chat template", "yes" if info.has_chat_template else "no"),
        ("tools", "yes" if info.has_tools else "no"),
        ("fill in the middle", "yes" if info.has_fim else "no"),
        ("licence", info.licence),
    ]


def _projector_rows(described: ModelDescription, found: FoundProjector) -> list[tuple[str, str]]:
    rows = [("passed over", reason) for reason in found.passed_over]
    if described.sees:
        most = f", at most {described.max_picture_tokens:,}"
        varies = described.max_picture_tokens != described.picture_tokens
        rows += [("sees", f"pictures of {described.picture_tokens:,} tokens{most if varies else ''}")]
    if described.hears:
        rows += [("hears", f"sounds of about {described.sound_tokens:,} tokens in 30 seconds")]
    if found.speaks:
        rows += [("speaks", "texts aloud: localllm speak")]
    if found.projector is not None:
        size = f"{found.projector.n_bytes:,} bytes of weights"
        kind = f"{described.projector_type}, " if described.projector_type else ""
        rows += [("projector", f"{described.projector} ({kind}{size})")]
    return rows


def _comparison(header: Header, base: BaseTemplate | None) -> str:
    """Compare the template with its base's in a few words; empty without a base."""
    if base is None:
        return ""
    if base.text == header.text(_TEMPLATE):
        return f"the same as in {base.repo}"
    changes = difference(base.text, header.text(_TEMPLATE))
    n_added, n_removed = (sum(line.startswith(sign) for line in changes) for sign in "+-")
    counts = f" ({n_added} lines added, {n_removed} removed; --template shows them)" if changes else ""
    return f"differs from {base.repo}{counts}"


def _speeds(tuned: SpeedMeasurement) -> str:
    setting = tuned.setting
    attention = "fused" if setting.flash_attention else "plain"
    decode = ", ".join(f"{speed:.1f} at {depth}" for depth, speed in tuned.decode)
    how = f"{attention} attention, {setting.n_threads} threads"
    return f"{how}: {tuned.prefill:.1f} tok/s of prompt; tok/s of answer by tokens in the cache: {decode}"
