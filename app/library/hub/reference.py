"""What a person may ask for: `org/repo`, `org/repo:Q4_K_M`, `org/repo/file.gguf`, a URL, or a name of the catalogue.

Owns that grammar. Knows nothing of what there is: whether a hub has it is found out by asking.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from app.library.local.naming import is_safe_name
from quantizer.errors import UsageError

__all__ = ["CatalogueReference", "FileReference", "Reference", "RepoReference", "UrlReference", "parse_reference"]

_HUB_HOSTS = {"huggingface.co", "www.huggingface.co", "hf.co"}
_LOOPBACK_HOSTS = {"localhost", "127.0.0.1", "::1"}
_PLACES_OF_FILES = {"resolve", "blob", "raw"}
_REPO_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_QUANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}")
_FORMS = "Write org/repo, org/repo:Q4_K_M, org/repo/file.gguf, an https URL, or a name of the catalogue."


@dataclass(frozen=True, slots=True)
class RepoReference:
    """A repository of the hub, `org/name`; `quant` is empty where the machine shall decide."""

    repo: str
    quant: str = ""


@dataclass(frozen=True, slots=True)
class FileReference:
    """One file of a repository, or the model that it is a part of. `revision` is empty for the newest."""

    repo: str
    path: str
    revision: str = ""


@dataclass(frozen=True, slots=True)
class UrlReference:
    """A GGUF anywhere; `host` and `name` say where it lies here."""

    url: str
    host: str
    name: str


@dataclass(frozen=True, slots=True)
class CatalogueReference:
    """A name without a slash, which the catalogue has or has not."""

    name: str


Reference: TypeAlias = RepoReference | FileReference | UrlReference | CatalogueReference


def parse_reference(text: str, endpoint: str = "") -> Reference:
    """Return what `text` refers to; URLs of the hub at `endpoint`, and of the public one, are its repositories.

    Raises UsageError for what refers to nothing.
    """
    if "://" in text:
        return _of_url(text, endpoint)
    first, *rest = text.split("/")
    if first.lower() in _HUB_HOSTS and rest:
        first, *rest = rest
    if not rest:
        return CatalogueReference(_checked(first, text))
    return _of_repo([first, *rest], text)


def _of_repo(parts: Sequence[str], text: str) -> Reference:
    if len(parts) > 2:
        return FileReference(_repo(parts[:2], text), _path(parts[2:], text))
    name, colon, quant = parts[1].partition(":")
    if (colon and not _QUANT.fullmatch(quant)) or name.endswith(".gguf"):  # a file that is not there, more likely
        raise _no_reference(text)
    return RepoReference(_repo([parts[0], name], text), quant)


def _of_url(text: str, endpoint: str) -> Reference:
    try:
        url = urlsplit(text)
        host = (url.hostname or "").lower()
        url.port  # noqa: B018  (it is read to be checked)
    except ValueError as error:
        raise _no_reference(text) from error
    if url.scheme not in ("https", "http") or not host or url.username or url.password:
        raise _no_reference(text)
    if host in _HUB_HOSTS or (endpoint and text.startswith(f"{endpoint}/")):
        return _of_hub_page(unquote(text.partition(f"{url.netloc}/")[2].partition("?")[0]), text)
    if url.scheme == "http" and host not in _LOOPBACK_HOSTS:
        raise UsageError(f"{text} is not encrypted: anyone on the way may change it.", "Give an https URL.")
    name = PurePosixPath(unquote(url.path)).name
    if not name.endswith(".gguf"):
        raise UsageError(f"{text} is not the URL of a .gguf file.", _FORMS)
    return UrlReference(text, _checked(host.replace(":", "."), text), _checked(name, text))


def _of_hub_page(path: str, text: str) -> Reference:
    """What a page of the hub shows: a repository, or a file of it in some revision."""
    parts = path.rstrip("/").split("/")
    if len(parts) > 4 and parts[2] in _PLACES_OF_FILES:
        return FileReference(_repo(parts[:2], text), _path(parts[4:], text), _checked(parts[3], text))
    if len(parts) == 2 or (len(parts) == 4 and parts[2:] == ["tree", "main"]):
        return RepoReference(_repo(parts[:2], text))
    raise _no_reference(text)


def _repo(parts: Sequence[str], text: str) -> str:
    if not all(_REPO_PART.fullmatch(part) and is_safe_name(part) and ".." not in part for part in parts):
        raise _no_reference(text)
    return "/".join(parts)


def _path(parts: Sequence[str], text: str) -> str:
    path = "/".join(_checked(part, text) for part in parts)
    if not path.endswith(".gguf"):
        raise UsageError(f"{text} is not a .gguf file.", _FORMS)
    return path


def _checked(name: str, text: str) -> str:
    if not is_safe_name(name):
        raise _no_reference(text)
    return name


def _no_reference(text: str) -> UsageError:
    return UsageError(f"{text[:200]!r} refers to no model.", _FORMS)
