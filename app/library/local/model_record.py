"""The chat template of the repository that a model was made from, where that is in the Hugging Face cache.

Owns the way from a model's metadata to that repository, and how two templates differ. Never asks the network.

What this machine has learnt of a model besides what its file says: hashes, how it was tuned, how it differs.

Owns gathering it. Knows nothing of screens.

A model's card as people read it: lines of a label and a text. Pure.

Owns their words and order. Texts come from files and are not yet fit for a terminal.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.tuning.tune_results import SpeedMeasurement
from app.library.external import home_folder
from app.library.external.hugging_face import cache_folder, snapshots_of
from app.library.local.index import Index
from app.library.local.model_files import parts_of
from app.library.local.verification import expected_sha256
from quantizer.errors import CheckpointError
from quantizer.gguf.header import Header

__all__ = [
    "BaseTemplate",
    "ModelRecord",
    "base_template",
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
    """A repository as ORG/NAME, and its default chat template: empty where it has none."""

    repo: str
    text: str


def base_template(header: Header, environment: Mapping[str, str] = os.environ) -> BaseTemplate | None:
    """Return the template of the model's base.

    None where the file names no base, or that is not on this machine, or its files are unsound.
    """
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
    """Return the lines that lead from `base` to `own`, as diff writes them; none where they are too many to compare."""
    before, after = base.splitlines(), own.splitlines()
    if len(before) + len(after) > _MAX_COMPARED_LINES:
        return []
    return list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]  # without the names of files


def _template_in(folder: Path) -> str:
    from quantizer.checkpoint.config import Config
    from quantizer.checkpoint.safetensors import read_json
    from quantizer.tokenizers.chat_templates import DEFAULT, read_chat_templates
    from quantizer.tokenizers.folder import TokenizerFolder, as_object

    path = folder / "tokenizer_config.json"
    settings = Config(as_object(read_json(path), path.name))
    return read_chat_templates(TokenizerFolder(folder, {}, settings, Config({}))).get(DEFAULT, "")


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """`hashes` is (file, SHA-256 or empty) in order. `tuned` is the fastest setting that was measured here.

    `base` is None where the model's base is not on this machine.
    """

    hashes: tuple[tuple[Path, str], ...]
    template: str
    base: BaseTemplate | None
    tuned: SpeedMeasurement | None


def record_of(header: Header, index: Index, cache_dir: Path) -> ModelRecord:
    """Gather what is known of the model whose first or only file has `header`. Raises StorageError."""
    hashes = tuple((part, expected_sha256(part, index)) for part in parts_of(header.path))
    template = header.text("tokenizer.chat_template")
    return ModelRecord(hashes, template, base_template(header), _tuned(header.path, cache_dir))


def _tuned(path: Path, cache_dir: Path) -> SpeedMeasurement | None:
    if not (cache_dir / "tune.json").is_file():
        return None
    from app.engine.tuning.tune_results import best_measurement

    return best_measurement(path, cache_dir)


if TYPE_CHECKING:
    from app.engine.tuning.tune_results import SpeedMeasurement
    from quantizer.gguf.model_info import ModelInfo


def model_info_rows(card: ModelInfo, record: ModelRecord) -> list[tuple[str, str]]:
    """Return label and text of every line that there is something to say in."""
    return [(label, text) for label, text in (*_of_card(card), *_of_record(record)) if text]


def template_changes(record: ModelRecord) -> list[str]:
    """Return how the chat template differs from that of the model's base, line by line; nothing where it does not."""
    return difference(record.base.text, record.template) if record.base else []


def _of_card(card: ModelInfo) -> list[tuple[str, str]]:
    return [
        ("name", card.name),
        ("architecture", card.architecture),
        ("parameters", f"{card.n_parameters:,}"),
        ("size", f"{card.file_bytes:,} bytes, {card.bits_per_weight:.2f} bits per weight"),
        ("type", card.file_type),
        ("tensors", ", ".join(f"{share.n_tensors} × {name}" for name, share in card.types.items())),
        ("context", f"{card.n_ctx_train:,} tokens" if card.n_ctx_train else ""),
        ("layers", f"{card.n_layers} of width {card.n_embd:,}" if card.n_layers else ""),
        ("heads", f"{card.n_heads}, {card.n_kv_heads} for keys and values" if card.n_heads else ""),
        ("experts", str(card.n_experts) if card.n_experts else ""),
        ("cache", f"{card.kv_bytes_per_token:,} bytes per token in F16" if card.kv_bytes_per_token else ""),
        ("vocabulary", f"{card.n_vocab:,} tokens ({card.tokenizer})" if card.n_vocab else ""),
        ("chat template", "yes" if card.has_chat_template else "no"),
        ("tools", "yes" if card.has_tools else "no"),
        ("fill in the middle", "yes" if card.has_fim else "no"),
        ("licence", card.licence),
    ]


def _of_record(record: ModelRecord) -> list[tuple[str, str]]:
    rows = [("template's base", _comparison(record))]
    if record.tuned:
        rows.append(("tuned", _speeds(record.tuned)))
    for path, sha256 in record.hashes:
        rows += [("file", str(path)), ("sha256", sha256 or "unknown until `localllm verify`")]
    return rows


def _comparison(record: ModelRecord) -> str:
    """How the template stands to that of the model's base, empty where that is not here."""
    if record.base is None:
        return ""
    if record.base.text == record.template:
        return f"the same as in {record.base.repo}"
    changes = template_changes(record)
    n_added, n_gone = (sum(line.startswith(sign) for line in changes) for sign in "+-")
    counts = f" ({n_added} lines more, {n_gone} fewer; --template shows them)" if changes else ""
    return f"differs from {record.base.repo}{counts}"


def _speeds(tuned: SpeedMeasurement) -> str:
    setting = tuned.setting
    attention = "fused" if setting.flash_attention else "plain"
    decode = ", ".join(f"{speed:.1f} at {depth}" for depth, speed in tuned.decode)
    how = f"{attention} attention, {setting.n_threads} threads"
    return f"{how}: {tuned.prefill:.1f} tok/s of prompt; tok/s of answer by tokens in the cache: {decode}"
