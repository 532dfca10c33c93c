"""The content of a hub repository: files with their hashes, GGUF models, and the files of a checkpoint.

Owns the requests for metadata (a repository or a config.json of the hub, the size of a file on any server) and their
retries, the parsing and validation of /api/models/ORG/REPO?blobs=true, and which files belong together. Does not choose
anything.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from app.common.event_log import log_event
from app.library.download.http_session import (
    HttpSession,
    Retries,
    RetryPolicy,
    TransientError,
    content_mark,
    retry_after_s,
)
from app.library.download.remote_file import Digest, RemoteFile
from app.library.hub.access import HubAccess, HubError, unreachable_error
from app.library.local.model_files import is_safe_name
from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.file_names import (
    FOUND_TYPES,
    MAX_SHARDS,
    head_rank,
    is_projector,
    is_sidecar,
    names_model,
    projector_owner,
    shard_index,
    unsplit_name,
)
from quantizer.gguf.sampling_keys import GENERATION_CONFIG

_MAX_FILES = 20_000
_MAX_BYTES = 1 << 50
_MAX_BASES = 8
REPO_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_QUANT = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d{1,2}(?:_[A-Z0-9]{1,4}){0,4}|TQ\d_\d|MXFP4(?:_MOE)?|BF16|FP?16|FP?32))(?=$|[-._])",
    re.IGNORECASE,
)
_SPELLINGS = {"FP16": "F16", "FP32": "F32"}
_BITS = re.compile(r"\d+")
_NO_MODELS = re.compile(r"mmproj|imatrix", re.IGNORECASE)  # image projectors and importance matrices
_CONFIG = "config.json"
_WEIGHTS = re.compile(r"(gptq_)?model(-[\w.-]+)?\.safetensors")  # others, such as consolidated.*, are duplicates
_DENSE_MODULE = re.compile(r"\d{1,2}_Dense/model\.safetensors")  # of sentence-transformers
_SETTINGS = (".json", ".jinja", ".txt", ".model", ".md")
_MAX_SETTINGS_BYTES = 256 << 20
_MAX_DEPTH = 2
_MAX_BODY_BYTES = 32 << 20
_TOTAL = re.compile(r"bytes 0-0/(\d{1,15})")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RepoFile:
    path: str
    n_bytes: int
    digest: Digest

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


@dataclass(frozen=True, slots=True)
class RepoModel:
    """A GGUF model of a repository: all its files in order, and the quant in its name, or empty."""

    name: str
    quant: str
    files: tuple[RepoFile, ...]

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at a commit; `base_models` are what its card says that it was made of, the nearest first."""

    id: str
    commit: str
    files: tuple[RepoFile, ...]
    base_models: tuple[str, ...] = ()

    def remote(self, file: RepoFile, access: HubAccess, name: str = "") -> RemoteFile:
        """Return `file` at this commit as a remote file, called `name` or its own name without the folder."""
        url = access.file_url(self.id, file.path, self.commit)
        return RemoteFile(name or file.name, url, file.n_bytes, file.digest)

    @property
    def models(self) -> tuple[RepoModel, ...]:
        """The complete GGUF models, smallest first; a split model with a missing part is left out."""
        return _models(file for file in self.files if not is_sidecar(file.name))

    @property
    def sidecars(self) -> tuple[RepoModel, ...]:
        """The draft heads of the models, of all kinds; they can be fetched by their names."""
        return _models(file for file in self.files if is_sidecar(file.name))

    def head_of(self, model: RepoModel) -> RepoFile | None:
        """Return the draft head for `model`: of the best kind, nearest at or above its folder, nearest in its bits."""
        folder = PurePosixPath(model.files[0].path).parent
        ranks = {
            (rank, -head.path.count("/"), abs(_n_bits(quant_of(head.name)) - _n_bits(model.quant)), head.path): head
            for head in self._single_files_above(folder)
            if (rank := head_rank(head.name)) is not None
        }
        return ranks[min(ranks)] if ranks and not is_sidecar(model.name) else None

    def projectors_of(self, model: RepoModel, preferred: str = "") -> tuple[RepoFile, ...]:
        """Return the projectors for `model`, the best first: one that names it, at or above its folder as near as can
        be, of the `preferred` type, then F16, BF16, Q8_0, F32."""
        folder = PurePosixPath(model.files[0].path).parent
        stem = PurePosixPath(unsplit_name(model.name)).stem
        types = sorted(FOUND_TYPES, key=lambda name: name != preferred.upper())

        def rank(file: RepoFile) -> tuple[bool, int, int, str]:
            owner, kind = projector_owner(file.name), quant_of(file.name)
            is_another = bool(owner) and not names_model(owner, stem)
            return is_another, -file.path.count("/"), types.index(kind) if kind in types else len(types), file.path

        found = (file for file in self._single_files_above(folder) if is_projector(file.name))
        return () if is_sidecar(model.name) else tuple(sorted(found, key=rank))

    def _single_files_above(self, folder: PurePosixPath) -> Iterator[RepoFile]:
        for file in self.files:
            is_whole = file.n_bytes and shard_index(file.name) is None
            if is_whole and folder.is_relative_to(PurePosixPath(file.path).parent):
                yield file


def parse_repository(data: Any) -> Repository:
    """Parse the hub's JSON. Raises HubError if it is invalid."""
    try:
        name, commit, files = data["id"], data["sha"], tuple(_files(data["siblings"]))
        is_valid = isinstance(name, str) and _COMMIT.fullmatch(commit) is not None
    except (KeyError, TypeError, ValueError, AttributeError):
        is_valid = False
    if not is_valid:
        raise HubError("The hub's description of the repository is invalid.", "Try again later.")
    return Repository(name, commit, files, _base_models(data.get("cardData")))


def _base_models(card: Any) -> tuple[str, ...]:
    """Return the repositories that a card names as its base; nothing where it says that differently."""
    named = card.get("base_model") if isinstance(card, dict) else None
    names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    return tuple(name for name in names[:_MAX_BASES] if isinstance(name, str) and REPO_NAME.fullmatch(name))


def quant_of(name: str) -> str:
    """Return the quant in a file's name, such as Q4_K_M, in capitals; empty without one."""
    found = [match[1].upper() for match in _QUANT.finditer(name.removesuffix(".gguf"))]
    return _SPELLINGS.get(found[-1], found[-1]) if found else ""


def _files(siblings: Sequence[Mapping[str, Any]]) -> Iterator[RepoFile]:
    """Yield the files whose names are safe on this machine; others are ignored."""
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


def _models(candidates: Iterable[RepoFile]) -> tuple[RepoModel, ...]:
    """Return the complete models among the files, smallest first."""
    groups: dict[str, list[RepoFile]] = {}
    for file in candidates:
        if file.path.endswith(".gguf") and file.n_bytes and not _NO_MODELS.search(file.name):
            whole = str(PurePosixPath(file.path).with_name(unsplit_name(file.name)))
            groups.setdefault(whole, []).append(file)
    models = []
    for path, unsorted in groups.items():
        name, files = PurePosixPath(path).name, sorted(unsorted, key=lambda file: file.name)
        indices = [shard_index(file.name) for file in files]
        has_all_parts = len(files) <= MAX_SHARDS and indices == [(index, len(files)) for index in range(len(files))]
        if has_all_parts or name == files[0].name:
            folder = PurePosixPath(files[0].path).parent.name  # large quants are in a folder of their name
            models.append(RepoModel(name, quant_of(name) or quant_of(folder), tuple(files)))
    return tuple(sorted(models, key=lambda model: (model.n_bytes, model.name)))


def _n_bits(quant: str) -> int:
    """Return the bits in the name of a quant, 0 without one."""
    match = _BITS.search(quant)
    return int(match[0]) if match else 0


def checkpoint_files(repository: Repository) -> tuple[RepoFile, ...]:
    """Return the files of a convertible checkpoint, config.json first: its weights once, and small files. Raises
    CheckpointError if there is no config.json, or no weights in safetensors."""
    wanted = [file for file in repository.files if _is_weights(file) or _is_small(file)]
    config = next((file for file in wanted if file.path == _CONFIG), None)
    if config is None:
        raise CheckpointError(f"{repository.id} is not a checkpoint: no {_CONFIG}.", "Look for the original model.")
    if not any(map(_is_weights, wanted)):
        raise CheckpointError(
            f"{repository.id} has no weights in safetensors.",
            "Pickles can run code when read, so they are not supported: look for safetensors or a GGUF.",
        )
    return (config, *(file for file in wanted if file is not config))


def _is_weights(file: RepoFile) -> bool:
    return bool(_WEIGHTS.fullmatch(file.path))


def _is_small(file: RepoFile) -> bool:
    """Return whether a file has settings, a tokenizer or the weights of a small module."""
    is_wanted = file.path.endswith(_SETTINGS) or _DENSE_MODULE.fullmatch(file.path) is not None
    return is_wanted and file.path.count("/") < _MAX_DEPTH and file.n_bytes <= _MAX_SETTINGS_BYTES


async def fetch_repository(session: HttpSession, repo: str, revision: str, policy: RetryPolicy) -> Repository:
    """Return the content of `repo` at `revision`; empty is the latest. Raises HubError if it does not exist, may not be
    read, or the hub does not answer."""
    place = f"{repo}/revision/{revision}" if revision else repo
    url = f"{session.access.endpoint}/api/models/{quote(place)}?blobs=true"
    return await _fetch_json(session, url, repo, policy, parse_repository)


async def fetch_config(session: HttpSession, repo: str, policy: RetryPolicy) -> dict[str, Any]:
    """Return the config.json of the checkpoint `repo`. Raises HubError as `fetch_repository` does."""

    def parse(config: Any) -> dict[str, Any]:
        if not isinstance(config, dict):
            raise HubError(f"The config.json of {repo} is invalid.", "Choose another checkpoint.")
        return config

    url = session.access.file_url(repo, "config.json")
    return await _fetch_json(session, url, f"config.json of {repo}", policy, parse)


async def fetch_generation_config(session: HttpSession, repository: Repository, policy: RetryPolicy) -> bytes:
    """Return the generation_config.json of a repository, or, where it has none, of the one model that it was made of;
    empty where neither can be had: a model can be used without."""
    if any(file.path == GENERATION_CONFIG for file in repository.files):
        repo, revision = repository.id, repository.commit
    elif len(repository.base_models) == 1:
        repo, revision = repository.base_models[0], "main"
    else:  # a merge of several
        return b""
    url = session.access.file_url(repo, GENERATION_CONFIG, revision)
    try:
        return await fetch_body(session, url, f"{GENERATION_CONFIG} of {repo}", policy, lambda body: body)
    except HubError as error:
        log_event("library", str(error))
        return b""


async def _fetch_json(
    session: HttpSession, url: str, name: str, policy: RetryPolicy, parse: Callable[[Any], _Result]
) -> _Result:
    def parse_json(body: bytes) -> _Result:
        try:
            data = json.loads(body)
            if b"\\ud" in body.lower():  # a pair of surrogates is a character, half of one is none, and can't be shown
                json.dumps(data, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as fault:
            raise TransientError("it sends invalid JSON") from fault
        return parse(data)

    return await fetch_body(session, url, name, policy, parse_json)


async def fetch_body(
    session: HttpSession,
    url: str,
    name: str,
    policy: RetryPolicy,
    parse: Callable[[bytes], _Result],
    headers: Mapping[str, str] | None = None,
) -> _Result:
    """Return what `parse` makes of the page at `url`, which is that of `name`; it may raise TransientError. Raises
    HubError where the server refuses or does not answer."""

    async def attempt() -> _Result:
        async with session.get(url, dict(headers or {})) as reply:
            error = session.access.refusal(url, reply.status_code, reply.headers, name)
            if error is not None:
                raise error
            if reply.status_code != 200:
                raise TransientError(f"it answers {reply.status_code}", wait_s=retry_after_s(reply.headers))
            if reply.headers.get("Content-Encoding", "identity") != "identity":
                raise TransientError("it encodes the reply, which was not requested")
            return parse(await read_body(reply))

    return await with_retries(attempt, url, policy)


async def read_body(reply: httpx.Response) -> bytes:
    """Return the body of a reply. Raises HubError for one that is too large."""
    body = bytearray()
    async for piece in reply.aiter_raw():
        body += piece
        if len(body) > _MAX_BODY_BYTES:
            raise HubError(f"The response of {reply.url.host} is too large.", "Try again later.")
    return bytes(body)


async def fetch_file_info(session: HttpSession, url: str, name: str, policy: RetryPolicy) -> RemoteFile:
    """Return size and mark of the file at `url`. Raises HubError as `fetch_repository` does."""

    async def attempt() -> RemoteFile:
        async with session.get(url, {"Range": "bytes=0-0"}) as reply:
            if reply.status_code in (401, 403, 404, 410):
                raise HubError(f"{name} is not available: the server answers {reply.status_code}.", "Check the URL.")
            n_bytes = _length(reply)
            if n_bytes is None:
                cause = f"it answers {reply.status_code} without a length"
                raise TransientError(cause, wait_s=retry_after_s(reply.headers))
            return RemoteFile(name, url, n_bytes, mark=content_mark(reply.headers))

    return await with_retries(attempt, url, policy)


async def with_retries(attempt: Callable[[], Awaitable[_Result]], url: str, policy: RetryPolicy) -> _Result:
    """Return the result of `attempt`, made again after each TransientError. Raises HubError after the last."""
    retries = Retries(policy)
    while True:
        try:
            return await attempt()
        except TransientError as fault:
            try:
                wait_s = retries.wait_s(fault)
            except TransientError as last:
                raise unreachable_error(url, str(last)) from last
            await asyncio.sleep(wait_s)


def _length(reply: httpx.Response) -> int | None:
    if reply.status_code == 206:
        match = _TOTAL.fullmatch(reply.headers.get("Content-Range", ""))
        return int(match[1]) if match else None
    length = reply.headers.get("Content-Length", "")
    is_valid = length.isascii() and length.isdecimal() and len(length) < 16
    return int(length) if reply.status_code == 200 and is_valid else None
