"""Checksums of model files: the expected SHA-256, the actual one, and the comparison.

Owns which hash is trusted. Blobs of Ollama and of the Hugging Face cache are named by their own SHA-256.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.library.local.index import Index
from app.library.local.model_files import ModelRef, parts_of
from app.library.local.projectors import own_projectors
from quantizer.system.errors import UserError
from quantizer.system.files import explained

_BLOB = re.compile(r"(?:sha256-)?([0-9a-f]{64})")
_READ_BYTES = 4 << 20


def expected_sha256(path: Path, index: Index) -> str:
    """Return the recorded SHA-256 of a file, or the one in its name; empty without one. Raises StorageError."""
    if known := index.sha256(path):
        return known
    match = _BLOB.fullmatch(path.resolve().name)
    return match[1] if match else ""


def sha256_of(path: Path, on_bytes: Callable[[int], object]) -> str:
    """Hash a whole file, calling `on_bytes` with the size of each piece read. Raises StorageError."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_BYTES))
    with explained(f"{path} cannot be read", "Check the disk."), path.open("rb", buffering=0) as file:
        while n_bytes := file.readinto(buffer):
            digest.update(buffer[:n_bytes])
            on_bytes(n_bytes)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The outcome for one model: `sound` (hashes match), `recorded` (none was on record before) or `damaged`.

    `sha256` has one hash for each file that was read. `reason` is empty unless the model is damaged.
    """

    ref: ModelRef
    state: Literal["sound", "recorded", "damaged"]
    sha256: tuple[str, ...]
    reason: str = ""


def verified_files(model: Path) -> tuple[Path, ...]:
    """Return the files that are verified with a model: its own, and the projectors in its folder that are its."""
    return (*parts_of(model), *own_projectors(model))


def verify(
    ref: ModelRef, index: Index, on_bytes: Callable[[int], object], *, is_recording: bool = False
) -> VerificationResult:
    """Validate a model's header, hash its files and its projector's, compare with the recorded hashes, and record those
    that are new.

    `is_recording` accepts the current bytes as correct. Raises StorageError when `index` cannot be written.
    """
    from quantizer.gguf.validation import validate_gguf

    files = verified_files(ref.path)
    found: list[str] = []
    is_known = True
    try:
        validate_gguf(ref.path)
        for part in files:
            expected = "" if is_recording else expected_sha256(part, index)
            found.append(sha256_of(part, on_bytes))
            is_known = is_known and bool(expected)
            if expected not in ("", found[-1]):
                reason = f"{part.name} has the SHA-256 {found[-1]} and should have {expected}."
                return VerificationResult(ref, "damaged", tuple(found), reason)
    except UserError as error:
        return VerificationResult(ref, "damaged", tuple(found), str(error))
    for part, sha256 in zip(files, found, strict=True):
        index.record_sha256(part, sha256)
    return VerificationResult(ref, "sound" if is_known else "recorded", tuple(found))
