"""What the bytes of a file should hash to, and what they do.

Owns which hash is to be trusted. A file of Ollama's or of the Hugging Face cache is called by its own SHA-256.

Whether the bytes of a model are still those that it came with.
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
from quantizer.errors import StorageError, UserError

__all__ = ["VerificationResult", "expected_sha256", "sha256_of", "verify"]

_BLOB = re.compile(r"(?:sha256-)?([0-9a-f]{64})")
_READ_BYTES = 4 << 20


def expected_sha256(path: Path, index: Index) -> str:
    """Return the hash that was recorded of a file, or that its name is; empty without one. Raises StorageError."""
    if known := index.sha256(path):
        return known
    match = _BLOB.fullmatch(path.resolve().name)
    return match[1] if match else ""


def sha256_of(path: Path, on_bytes: Callable[[int], object]) -> str:
    """Read a whole file and return its hash; `on_bytes` hears how many more were read. Raises StorageError."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_BYTES))
    try:
        with path.open("rb", buffering=0) as file:
            while n_bytes := file.readinto(buffer):
                digest.update(buffer[:n_bytes])
                on_bytes(n_bytes)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.", "Check the disk.") from error
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """What came of reading a model: `sound` against what was known, `recorded` where nothing was, or `damaged`.

    `sha256` is of each file, empty where none was read. `reason` is empty unless it is damaged.
    """

    ref: ModelRef
    state: Literal["sound", "recorded", "damaged"]
    sha256: tuple[str, ...]
    reason: str = ""


def verify(
    ref: ModelRef, index: Index, on_bytes: Callable[[int], object], *, is_recording: bool = False
) -> VerificationResult:
    """Read a model through the gate and then whole, hold it against its recorded hash, and record one where none was.

    `is_recording` takes the bytes for right as they are. Raises StorageError when `index` cannot be written.
    """
    from quantizer.gguf.validation import validate_gguf

    found: list[str] = []
    is_known = True
    try:
        validate_gguf(ref.path)
        for part in parts_of(ref.path):
            expected = "" if is_recording else expected_sha256(part, index)
            found.append(sha256_of(part, on_bytes))
            is_known = is_known and bool(expected)
            if expected not in ("", found[-1]):
                reason = f"{part.name} has the SHA-256 {found[-1]} and should have {expected}."
                return VerificationResult(ref, "damaged", tuple(found), reason)
    except UserError as error:
        return VerificationResult(ref, "damaged", tuple(found), str(error))
    for part, sha256 in zip(parts_of(ref.path), found, strict=True):
        index.record(part, sha256)
    return VerificationResult(ref, "sound" if is_known else "recorded", tuple(found))
