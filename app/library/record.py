"""What this machine has learnt of a model besides what its file says: hashes, how it was tuned, how it differs.

Owns gathering it. Knows nothing of screens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.engine.tuning import Measured
from app.library.base_template import BaseTemplate, base_template
from app.library.folder import parts_of
from app.library.hashes import expected_sha256
from app.library.index import Index
from quantizer.header import Header

__all__ = ["ModelRecord", "record_of"]


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """`hashes` is (file, SHA-256 or empty) in order. `tuned` is the fastest setting that was measured here.

    `base` is None where the model's base is not on this machine.
    """

    hashes: tuple[tuple[Path, str], ...]
    template: str
    base: BaseTemplate | None
    tuned: Measured | None


def record_of(header: Header, index: Index, cache_dir: Path) -> ModelRecord:
    """Gather what is known of the model whose first or only file has `header`. Raises StorageError."""
    hashes = tuple((part, expected_sha256(part, index)) for part in parts_of(header.path))
    template = header.text("tokenizer.chat_template")
    return ModelRecord(hashes, template, base_template(header), _tuned(header.path, cache_dir))


def _tuned(path: Path, cache_dir: Path) -> Measured | None:
    if not (cache_dir / "tune.json").is_file():
        return None
    from app.engine.measured_cost import best_measured

    return best_measured(path, cache_dir)
