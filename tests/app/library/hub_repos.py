"""The content of the test hub: repositories and files, and their JSON as of the Hugging Face hub.

Owns the shape of the hub's API (source: replies of huggingface.co/api/models, as huggingface-hub 1 and 2 parse them).
Knows nothing of HTTP.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

__all__ = ["HubFile", "HubRepo"]

_LFS_SUFFIXES = (".gguf", ".safetensors", ".bin", ".model", ".pt")
_POINTER_BYTES = 135


@dataclass(frozen=True)
class HubFile:
    """A file of a repository, in memory or on the disk; large ones are in LFS, with a SHA-256."""

    path: str
    data: bytes | Path

    @property
    def is_lfs(self) -> bool:
        return self.path.endswith(_LFS_SUFFIXES)

    @property
    def n_bytes(self) -> int:
        return len(self.data) if isinstance(self.data, bytes) else self.data.stat().st_size

    @cached_property
    def sha256(self) -> str:
        if isinstance(self.data, bytes):
            return hashlib.sha256(self.data).hexdigest()
        with self.data.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @cached_property
    def blob_id(self) -> str:
        """The name that git has for the file; of one in LFS only the pointer has one, and any name will do."""
        content = self.sha256.encode() if self.is_lfs else self._content
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    @property
    def _content(self) -> bytes:
        return self.data if isinstance(self.data, bytes) else self.data.read_bytes()

    def sibling(self, *, has_blobs: bool) -> dict[str, Any]:
        """Return its JSON in /api/models/ORG/REPO, with `?blobs=true` or without."""
        if not has_blobs:
            return {"rfilename": self.path}
        lfs = {"sha256": self.sha256, "size": self.n_bytes, "pointerSize": _POINTER_BYTES}
        said = {"rfilename": self.path, "size": self.n_bytes, "blobId": self.blob_id}
        return said | ({"lfs": lfs} if self.is_lfs else {})

    def tree_entry(self) -> dict[str, Any]:
        """Return its JSON in /api/models/ORG/REPO/tree/REVISION."""
        said = {"type": "file", "oid": self.blob_id, "size": self.n_bytes, "path": self.path}
        lfs = {"oid": self.sha256, "size": self.n_bytes, "pointerSize": _POINTER_BYTES}
        return said | ({"lfs": lfs} if self.is_lfs else {})


@dataclass
class HubRepo:
    """A repository. `gated` is empty, "auto" or "manual"; `more` are further fields of its JSON."""

    id: str
    files: dict[str, HubFile]
    gated: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, files: dict[str, bytes | Path], gated: str = "", **more: Any) -> HubRepo:
        return cls(name, {path: HubFile(path, data) for path, data in files.items()}, gated, more)

    def put(self, path: str, data: bytes | Path) -> None:
        """Commit another content of the file `path`."""
        self.files[path] = HubFile(path, data)

    @property
    def commit(self) -> str:
        said = "".join(f"{file.path}:{file.sha256};" for file in self.files.values())
        return hashlib.sha1(f"{self.id};{said}".encode()).hexdigest()

    def info(self, *, has_blobs: bool = False, has_siblings: bool = True) -> dict[str, Any]:
        """Return the JSON of /api/models/ORG/REPO; a list of models has the siblings on request only."""
        said: dict[str, Any] = {
            "_id": hashlib.md5(self.id.encode()).hexdigest()[:24],
            "id": self.id,
            "modelId": self.id,
            "author": self.id.partition("/")[0],
            "sha": self.commit,
            "lastModified": "2026-05-01T12:00:00.000Z",
            "createdAt": "2026-04-01T12:00:00.000Z",
            "private": False,
            "gated": self.gated or False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": ["gguf"] if any(path.endswith(".gguf") for path in self.files) else ["safetensors"],
            **self.more,
        }
        siblings = [file.sibling(has_blobs=has_blobs) for file in self.files.values()]
        return said | ({"siblings": siblings} if has_siblings else {})
