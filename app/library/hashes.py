"""What the bytes of a file should hash to, and what they do.

Owns which hash is to be trusted. A file of Ollama's or of the Hugging Face cache is called by its own SHA-256.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from app.library.index import Index
from quantizer.errors import StorageError

__all__ = ["expected_sha256", "sha256_of"]

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
