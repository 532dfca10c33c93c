"""Ollama's models: `manifests/<host>/<namespace>/<model>/<tag>` refer to `blobs/sha256-<hash>`.

Manifests are untrusted: only a hash from them becomes part of a path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.library.local.model_files import ModelRef

__all__ = ["models"]

_SYSTEM_FOLDER = Path("/usr/share/ollama/.ollama/models")  # of the service that Linux packages install
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MAX_MANIFEST_BYTES = 1 << 20
_OWN_HOST, _OWN_NAMESPACE = "registry.ollama.ai", "library"


def models(home: Path, environment: Mapping[str, str]) -> Iterator[ModelRef]:
    """Yield the models that consist of one GGUF, by the names that `ollama ls` shows."""
    chosen = environment.get("OLLAMA_MODELS")
    for folder in [Path(chosen)] if chosen else [home / ".ollama" / "models", _SYSTEM_FOLDER]:
        for manifest in sorted((folder / "manifests").glob("*/*/*/*")):
            digest = _digest_of(manifest)
            blob = folder / "blobs" / f"sha256-{digest}"
            if digest and blob.is_file():
                yield ModelRef(_name(manifest), blob, _repo(manifest), "Ollama")


def _digest_of(manifest: Path) -> str:
    """Return the hash of the one model in a manifest; empty for none, several or an unreadable manifest."""
    try:
        with manifest.open("rb") as file:
            layers = json.loads(file.read(_MAX_MANIFEST_BYTES))["layers"]
        digests = [str(layer["digest"]) for layer in layers if layer["mediaType"] == _MODEL_LAYER]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    match = _DIGEST.fullmatch(digests[0]) if len(digests) == 1 else None
    return match[1] if match else ""


def _name(manifest: Path) -> str:
    host, namespace, model, tag = manifest.parts[-4:]
    parts = (host, namespace, model) if host != _OWN_HOST else (namespace, model)
    return "/".join(parts).removeprefix(f"{_OWN_NAMESPACE}/") + f":{tag}"


def _repo(manifest: Path) -> str:
    host, namespace, model, _ = manifest.parts[-4:]
    return f"ollama/{model}" if (host, namespace) == (_OWN_HOST, _OWN_NAMESPACE) else f"{namespace}/{model}"
