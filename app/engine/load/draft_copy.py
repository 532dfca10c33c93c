"""Low-bit copies of models that draft for them: files in `<cache>/drafts/`, and what was measured of them.

A copy is named after the content of its model, so it follows a model that is moved and is never taken for that of
another file; its metadata says so too, and from where it was made. `localllm quantize MODEL --as-draft` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.load.machine_file import MachineFile, fingerprint, this_build
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import Header
from quantizer.gguf.tensor_types import DRAFT_COPY_TYPE, file_type_name
from quantizer.gguf.validation import validate_gguf
from quantizer.system.errors import UserError
from quantizer.system.files import sorted_glob

if TYPE_CHECKING:
    from offload.advice.drafts import DraftEvidence

FOLDER = "drafts"
_OF, _FROM = "localllm.draft.model", "localllm.draft.made_from"  # the key of its model, and where that was
_REMEDY = "Remove it: `localllm quantize MODEL --as-draft` makes another."
_LEAST_VERIFIED = 16  # tokens, after which the measured acceptance counts: of a copy that does not pay only probes are


def copy_path(model: Path, file_type: str, cache_dir: Path) -> Path:
    """Return where the copy of `model` in `file_type` is, or would be. Raises OSError for a model that is gone."""
    return cache_dir / FOLDER / f"{fingerprint(model)}-{file_type}.gguf"


def copy_metadata(model: Path) -> dict[str, str]:
    """Return the metadata of a copy of `model`. Raises OSError for a model that is gone."""
    return {_OF: fingerprint(model), _FROM: str(model)}


def draft_copies_of(model: Path, cache_dir: Path) -> list[Path]:
    """Return the files of copies of `model`, the newest first; none for a model that is gone."""
    try:
        found = sorted_glob(cache_dir / FOLDER, f"{fingerprint(model)}-*.gguf")
        return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    except OSError:
        return []


def read_copy(path: Path, model: Path) -> Header:
    """Return the header of the copy of `model` at `path`. Raises ModelFileError for a damaged file and for a copy of
    another model."""
    header = validate_gguf(path)
    if header.text(_OF) != fingerprint(model):
        raise ModelFileError(f"{path.name} is no copy of {model.name}.", _REMEDY)
    return header


def find_copy(model: Path, cache_dir: Path) -> tuple[Path | None, tuple[str, ...]]:
    """Return the newest copy of `model` that can be used, and why newer ones were passed over."""
    passed_over: list[str] = []
    for path in draft_copies_of(model, cache_dir):
        try:
            read_copy(path, model)
        except UserError as error:
            passed_over.append(f"A low-bit copy does not draft: {error.cause}")
        else:
            return path, tuple(passed_over)
    return None, tuple(passed_over)


def is_copy(header: Header) -> bool:
    return bool(header.text(_OF))


def source_of(copy: Path) -> tuple[str, Path | None]:
    """Return the key of the model of a copy, and where that was when it was copied; "" and None for other files."""
    try:
        header = validate_gguf(copy)
    except UserError:
        return "", None
    made_from = header.text(_FROM)
    return header.text(_OF), Path(made_from) if made_from else None


@dataclass(frozen=True, slots=True)
class CopyRecords:
    """What was measured of copies on this machine, in `<cache>/drafts.json`, by the names of their files."""

    file: MachineFile

    @classmethod
    def of(cls, cache_dir: Path) -> CopyRecords:
        return cls(MachineFile(cache_dir / "drafts.json", this_build()))

    def evidence(self, copy: Header) -> DraftEvidence:
        """Return what was measured of `copy`, with the acceptance that is usual for its type until enough of its tokens
        were verified. A damaged record counts as none."""
        from offload.advice.drafts import COPY_ACCEPTANCES, DraftEvidence  # imports numpy

        usual = COPY_ACCEPTANCES.get(
            file_type_name(copy.integer("general.file_type")), COPY_ACCEPTANCES[DRAFT_COPY_TYPE]
        )
        entry = self.file.entry(copy.path.name)
        n_verified, n_accepted = _count(entry, "n_verified"), _count(entry, "n_accepted")
        is_known = n_verified >= _LEAST_VERIFIED and n_accepted <= n_verified
        return DraftEvidence(n_accepted / n_verified if is_known else usual, _count(entry, "step_cost"))

    def has_paid(self, copy: Path) -> bool:
        """Return whether `copy` paid when its steps and those of the model were measured last; True before that."""
        return self.file.entry(copy.name).get("pays", True) is not False

    def record_steps(self, copy: Path, step_cost: float, *, pays: bool) -> None:
        self.file.update(copy.name, {"step_cost": step_cost, "pays": pays})

    def forget(self, copy: Path) -> None:
        if self.file.entry(copy.name):
            self.file.update(copy.name, {"step_cost": 0.0, "pays": True, "n_verified": 0, "n_accepted": 0})

    def record_use(self, copy: Path, n_verified: int, n_accepted: int) -> None:
        """Count tokens of `copy` that were verified or probed, those behind a rejected one left out."""
        entry = self.file.entry(copy.name)
        before = {"n_verified": _count(entry, "n_verified"), "n_accepted": _count(entry, "n_accepted")}
        after = {"n_verified": before["n_verified"] + n_verified, "n_accepted": before["n_accepted"] + n_accepted}
        self.file.update(copy.name, after)


def _count(entry: Mapping[str, object], name: str) -> float:
    value = entry.get(name)
    return max(0.0, float(value)) if isinstance(value, int | float) and math.isfinite(value) else 0.0
