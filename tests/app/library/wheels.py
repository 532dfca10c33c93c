"""Wheels for tests, well formed unless a test edits them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["make_wheel", "record_line"]


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def make_wheel(
    folder: Path,
    project: str,
    files: Mapping[str, bytes],
    version: str = "1.0",
    requires: Sequence[str] = (),
    record: str | None = None,
    tag: str = "py3-none-any",
    method: int = zipfile.ZIP_DEFLATED,
) -> Path:
    """Write the wheel of `project` with `files` by their paths; `record` replaces what its RECORD says of them."""
    stem = f"{project.replace('-', '_')}-{version}"
    path, info = folder / f"{stem}-{tag}.whl", f"{stem}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}"]
    metadata = "\n".join((*lines, *(f"Requires-Dist: {each}" for each in requires), "", "A model.")).encode()
    held = {**files, f"{info}/METADATA": metadata}
    rows = [record_line(name, data) for name, data in held.items()] if record is None else [record]
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in held.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", "\n".join((*rows, f"{info}/RECORD,,")) + "\n")
    return path
