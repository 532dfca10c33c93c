"""What a repository of the hub holds, as its JSON says: files with their hashes, and the models they make up. Pure.

Owns the shape of /api/models/ORG/REPO?blobs=true, of which nothing is believed before it is checked, and which files
belong together. Knows nothing of HTTP or of what fits.

Which files of a repository make up a checkpoint that can be converted. Pure.

Owns that choice: weights once, in safetensors, and whatever small files the converter may read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from app.library.download.remote_file import Digest, RemoteFile
from app.library.hub.access import HubAccess, HubError
from app.library.local.naming import is_safe_name
from quantizer.errors import CheckpointError
from quantizer.gguf.shards import MAX_SHARDS, shard_index, unsplit_name

__all__ = ["RepoFile", "RepoModel", "Repository", "checkpoint_files", "parse_repository", "quant_of"]

_MAX_FILES = 20_000
_MAX_BYTES = 1 << 50
_COMMIT = re.compile(r"[0-9a-f]{40}")
_QUANT = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d{1,2}(?:_[A-Z0-9]{1,4}){0,4}|TQ\d_\d|MXFP4(?:_MOE)?|BF16|FP?16|FP?32))(?=$|[-._])",
    re.IGNORECASE,
)
_SPELLINGS = {"FP16": "F16", "FP32": "F32"}
_NO_MODELS = re.compile(r"mmproj|imatrix", re.IGNORECASE)  # projectors of images, and what quantizing was guided by


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file of a repository, by its path there."""

    path: str
    n_bytes: int
    digest: Digest

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


@dataclass(frozen=True, slots=True)
class RepoModel:
    """A GGUF model of a repository: all its files in order, and the quant that its name tells or empty."""

    name: str
    quant: str
    files: tuple[RepoFile, ...]

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit. `gated` is empty, "auto" or "manual"."""

    id: str
    commit: str
    gated: str
    files: tuple[RepoFile, ...]

    def remote(self, file: RepoFile, access: HubAccess, name: str = "") -> RemoteFile:
        """Where `file` of this very commit is had; here it is called `name`, or as it is there without its folder."""
        url = access.file_url(self.id, file.path, self.commit)
        return RemoteFile(name or file.name, url, file.n_bytes, file.digest)

    @property
    def models(self) -> tuple[RepoModel, ...]:
        """The whole GGUF models in it, the smallest first; a split one of which a part is missing is none."""
        groups: dict[str, list[RepoFile]] = {}
        for file in self.files:
            if file.path.endswith(".gguf") and file.n_bytes and not _NO_MODELS.search(file.name):
                whole = str(PurePosixPath(file.path).with_name(unsplit_name(file.name)))
                groups.setdefault(whole, []).append(file)
        models = (_model(PurePosixPath(path).name, files) for path, files in groups.items())
        return tuple(sorted((model for model in models if model), key=lambda model: (model.n_bytes, model.name)))


def parse_repository(said: Any) -> Repository:
    """Return what the hub `said`. Raises HubError for what it cannot mean."""
    try:
        gated = said.get("gated") or ""
        return Repository(_text(said["id"]), _commit(said["sha"]), _text(gated), tuple(_files(said["siblings"])))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HubError("The hub says of the repository what makes no sense.", "Try again later.") from error


def quant_of(name: str) -> str:
    """Return the quant that a file's name tells, such as Q4_K_M, in capitals; empty when it tells none."""
    found = [match[1].upper() for match in _QUANT.finditer(name.removesuffix(".gguf"))]
    return _SPELLINGS.get(found[-1], found[-1]) if found else ""


def _text(said: Any) -> str:
    if not isinstance(said, str):
        raise TypeError("a text")
    return said


def _commit(said: Any) -> str:
    if not _COMMIT.fullmatch(said):
        raise ValueError("a commit")
    return str(said)


def _files(siblings: Sequence[Mapping[str, Any]]) -> Iterator[RepoFile]:
    """The files that have names which can be used here; the others are as good as not there."""
    if len(siblings) > _MAX_FILES:
        raise ValueError("siblings")
    for sibling in siblings:
        path, n_bytes = sibling["rfilename"], sibling["size"]
        if type(n_bytes) is not int or not 0 <= n_bytes <= _MAX_BYTES:
            raise ValueError("size")
        lfs = sibling.get("lfs")
        if lfs is not None and lfs["size"] != n_bytes:
            raise ValueError("lfs")
        digest = Digest("git", sibling.get("blobId") or "") if lfs is None else Digest("sha256", lfs["sha256"])
        if all(map(is_safe_name, path.split("/"))):
            yield RepoFile(path, n_bytes, digest)


def _model(name: str, files: list[RepoFile]) -> RepoModel | None:
    files = sorted(files, key=lambda file: file.name)
    if name != files[0].name:
        indices = [shard_index(file.name) for file in files]
        if len(files) > MAX_SHARDS or indices != [(index, len(files)) for index in range(len(files))]:
            return None
    folder = PurePosixPath(files[0].path).parent.name  # large quants lie in a folder of their name
    return RepoModel(name, quant_of(name) or quant_of(folder), tuple(files))


_CONFIG = "config.json"
_WEIGHTS = re.compile(r"(gptq_)?model(-[\w.-]+)?\.safetensors")  # others, such as consolidated.*, are the same again
_SETTINGS = (".json", ".jinja", ".txt", ".model", ".md")
_MAX_SETTINGS_BYTES = 256 << 20
_MAX_DEPTH = 2


def checkpoint_files(repository: Repository) -> tuple[RepoFile, ...]:
    """Return the files, config.json first. Raises CheckpointError where there is none, or weights in pickles only."""
    wanted = [file for file in repository.files if _is_weights(file) or _is_settings(file)]
    config = next((file for file in wanted if file.path == _CONFIG), None)
    if config is None:
        raise CheckpointError(f"{repository.id} is no checkpoint: it has no {_CONFIG}.", "Look for the original model.")
    if not any(map(_is_weights, wanted)):
        raise CheckpointError(
            f"{repository.id} has no weights in safetensors.",
            "Pickles can run code when read, so they are not: look for one in safetensors, or a GGUF.",
        )
    return (config, *(file for file in wanted if file is not config))


def _is_weights(file: RepoFile) -> bool:
    return bool(_WEIGHTS.fullmatch(file.path))


def _is_settings(file: RepoFile) -> bool:
    is_near = file.path.count("/") < _MAX_DEPTH
    return is_near and file.path.endswith(_SETTINGS) and file.n_bytes <= _MAX_SETTINGS_BYTES
