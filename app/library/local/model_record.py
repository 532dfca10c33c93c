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
from dataclasses import dataclass, fields
from pathlib import Path

from app.engine.tuning.tune_results import SpeedMeasurement
from app.library.external import home_folder
from app.library.external.hugging_face import cache_folder, snapshots_of
from app.library.local.index import Index
from app.library.local.model_files import parts_of
from app.library.local.verification import expected_sha256
from quantizer.errors import CheckpointError
from quantizer.gguf.header import Header
from quantizer.gguf.model_info import ModelInfo

__all__ = [
    "BaseTemplate",
    "ModelDescription",
    "ModelRecord",
    "base_template",
    "describe_model_file",
    "difference",
    "model_info_rows",
    "record_of",
    "template_changes",
]

_ORIGINS = ("general.base_model.0.repo_url", "general.source.repo_url")
_REPO_URL = re.compile(r"https://huggingface\.co/([\w.-]+)/([\w.-]+)/?", re.ASCII)
_MAX_COMPARED_LINES = 5000  # comparing takes up to the square of them


@dataclass(frozen=True, slots=True)
class BaseTemplate:
    """A repository as ORG/NAME, and its default chat template, or empty."""

    repo: str
    text: str


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """`hashes` is (file, SHA-256 or empty) in order. `tuned` is the fastest setting measured here.

    `base` is None where the model's base is not on this machine.
    """

    hashes: tuple[tuple[Path, str], ...]
    template: str
    base: BaseTemplate | None
    tuned: SpeedMeasurement | None


def record_of(header: Header, index: Index, cache_dir: Path) -> ModelRecord:
    """Return the record of the model whose first or only file has `header`. Raises StorageError."""
    hashes = tuple((part, expected_sha256(part, index)) for part in parts_of(header.path))
    template = header.text("tokenizer.chat_template")
    return ModelRecord(hashes, template, base_template(header), _tuned(header.path, cache_dir))


def base_template(header: Header, environment: Mapping[str, str] = os.environ) -> BaseTemplate | None:
    """Return the template of the model's base; None if it has none, it is not on this machine, or it is invalid."""
    for match in (_REPO_URL.fullmatch(header.text(key)) for key in _ORIGINS):
        if match is None:
            continue
        folder = cache_folder(home_folder(), environment) / f"models--{match[1]}--{match[2]}"
        for snapshot in snapshots_of(folder):
            if (snapshot / "tokenizer_config.json").is_file():
                with contextlib.suppress(CheckpointError):
                    return BaseTemplate(f"{match[1]}/{match[2]}", _template_in(snapshot))
    return None


def difference(base: str, own: str) -> list[str]:
    """Return a unified diff from `base` to `own` as lines; none where they are too many to compare."""
    before, after = base.splitlines(), own.splitlines()
    if len(before) + len(after) > _MAX_COMPARED_LINES:
        return []
    return list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]  # without the file names


def template_changes(record: ModelRecord) -> list[str]:
    """Return the diff from the base's chat template to the model's; empty where they are equal or there is no base."""
    return difference(record.base.text, record.template) if record.base else []


def _template_in(folder: Path) -> str:
    from quantizer.checkpoint.config import Config
    from quantizer.checkpoint.safetensors import read_json
    from quantizer.tokenizers.folder import DEFAULT_TEMPLATE, TokenizerFolder, as_object, read_chat_templates

    path = folder / "tokenizer_config.json"
    settings = Config(as_object(read_json(path), path.name))
    return read_chat_templates(TokenizerFolder(folder, {}, settings, Config({}))).get(DEFAULT_TEMPLATE, "")


def _tuned(path: Path, cache_dir: Path) -> SpeedMeasurement | None:
    if not (cache_dir / "tune.json").is_file():
        return None
    from app.engine.tuning.tune_results import best_measurement

    return best_measurement(path, cache_dir)


@dataclass(frozen=True, slots=True)
class TemplateBase:
    """The model whose chat template this one should have, and whether it has."""

    repo: str
    is_same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription(ModelInfo):
    """The facts of a model's files, this machine's records of it, and both as printable `rows`."""

    path: str
    files: tuple[str, ...]
    sha256: tuple[str | None, ...]
    template_base: TemplateBase | None
    tuned: SpeedMeasurement | None
    rows: tuple[tuple[str, str], ...]


def describe_model_file(info: ModelInfo, record: ModelRecord) -> ModelDescription:
    """Return the value of `localllm show --json`."""
    paths = tuple(str(path) for path, _ in record.hashes)
    return ModelDescription(
        **{item.name: getattr(info, item.name) for item in fields(ModelInfo)},
        path=paths[0],
        files=paths,
        sha256=tuple(sha256 or None for _, sha256 in record.hashes),
        template_base=TemplateBase(record.base.repo, record.base.text == record.template) if record.base else None,
        tuned=record.tuned,
        rows=tuple(model_info_rows(info, record)),
    )


def model_info_rows(info: ModelInfo, record: ModelRecord) -> list[tuple[str, str]]:
    """Return label and text of every row that is not empty."""
    return [(label, text) for label, text in (*_info_rows(info), *_record_rows(record)) if text]


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


def _record_rows(record: ModelRecord) -> list[tuple[str, str]]:
    rows = [("template's base", _comparison(record))]
    if record.tuned:
        rows.append(("tuned", _speeds(record.tuned)))
    for path, sha256 in record.hashes:
        rows += [("file", str(path)), ("sha256", sha256 or "unknown until `localllm verify`")]
    return rows


def _comparison(record: ModelRecord) -> str:
    """Compare the template with its base's in a few words; empty without a base."""
    if record.base is None:
        return ""
    if record.base.text == record.template:
        return f"the same as in {record.base.repo}"
    changes = template_changes(record)
    n_added, n_removed = (sum(line.startswith(sign) for line in changes) for sign in "+-")
    counts = f" ({n_added} lines added, {n_removed} removed; --template shows them)" if changes else ""
    return f"differs from {record.base.repo}{counts}"


def _speeds(tuned: SpeedMeasurement) -> str:
    setting = tuned.setting
    attention = "fused" if setting.flash_attention else "plain"
    decode = ", ".join(f"{speed:.1f} at {depth}" for depth, speed in tuned.decode)
    how = f"{attention} attention, {setting.n_threads} threads"
    return f"{how}: {tuned.prefill:.1f} tok/s of prompt; tok/s of answer by tokens in the cache: {decode}"
