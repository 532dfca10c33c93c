"""Folders of other programs as they lay them out, with models of a hundred bytes."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.small_models import small_model
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_projectors import tiny_projector

__all__ = ["add_ollama_layers", "hugging_face_model", "ollama_model", "ollama_model_that_sees", "take_rights"]


def take_rights(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the system refuse to list `folder` and to look at anything in it, as one of another user with mode 0700.
    Modes would not do: tests may run as root."""
    begin = f"{folder}{os.sep}"

    def refusing(function: Callable[..., Any], *, also_itself: bool) -> Callable[..., Any]:
        def call(path: object = ".", *arguments: Any, **options: Any) -> Any:
            text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
            if text.startswith(begin) or (also_itself and text == str(folder)):
                raise PermissionError(errno.EACCES, "Permission denied", text)
            return function(path, *arguments, **options)

        return call

    for name, also_itself in (("stat", False), ("lstat", False), ("scandir", True), ("open", False)):
        patch.setattr(os, name, refusing(getattr(os, name), also_itself=also_itself))
    patch.setattr(io, "open", refusing(io.open, also_itself=True))
    access = os.access
    patch.setattr(os, "access", lambda path, mode: not f"{path}{os.sep}".startswith(begin) and access(path, mode))


def ollama_model(folder: Path, manifest: str, name: str = "small") -> Path:
    """Write a model and its `manifest` (host/namespace/model/tag) into a folder of Ollama's; returns the blob."""
    blob = _blob(folder / "blobs", "sha256-", name)
    digest = blob.name.replace("-", ":")
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{64 * '0'}"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": blob.stat().st_size},
    ]
    path = folder / "manifests" / manifest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blob


def add_ollama_layers(folder: Path, manifest: str, model: Path, **layers: object) -> None:
    """Write a `manifest` over the blob `model`, as `ollama create` does, with layers by kind: a file, a text, or what
    becomes JSON."""
    whole = [("model", model)]
    for kind, content in layers.items():
        if isinstance(content, Path):
            data = content.read_bytes()
        else:
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
        blob = folder / "blobs" / f"sha256-{hashlib.sha256(data).hexdigest()}"
        blob.write_bytes(data)
        whole.append((kind, blob))
    entries = [
        {
            "mediaType": f"application/vnd.ollama.image.{kind}",
            "digest": blob.name.replace("-", ":"),
            "size": blob.stat().st_size,
        }
        for kind, blob in whole
    ]
    path = folder / "manifests" / manifest
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"}
    path.write_text(json.dumps({**kinds, "config": {"digest": f"sha256:{64 * '0'}"}, "layers": entries}))


def ollama_model_that_sees(folder: Path, manifest: str) -> tuple[Path, Path]:
    """Write a model with its projector and their `manifest` into a folder of Ollama's; returns the two blobs."""
    blobs = folder / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    made = (tiny_llama(blobs / "new"), tiny_projector(blobs / "new projector"))
    model, projector = (
        path.replace(blobs / f"sha256-{hashlib.sha256(path.read_bytes()).hexdigest()}") for path in made
    )
    kinds = (("model", model), ("projector", projector))
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": blob.name.replace("-", ":")}
        for kind, blob in kinds
    ]
    path = folder / "manifests" / manifest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return model, projector


def hugging_face_model(cache: Path, repo: str, file: str, commit: str = "c1") -> Path:
    """Write a model of a repository into the cache of huggingface-hub; returns its path in the commit."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    blob = _blob(folder / "blobs", "", file)
    path = folder / "snapshots" / commit / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(blob)
    return path


def _blob(folder: Path, prefix: str, name: str) -> Path:
    made = small_model(folder / "new", name)
    return made.replace(folder / f"{prefix}{hashlib.sha256(made.read_bytes()).hexdigest()}")
