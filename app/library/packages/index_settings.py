"""Where this person gets Python packages from: the indexes and folders that pip and uv are configured with.

Owns the files and the environment variables of both (source: pip's page on configuration, uv's references of settings
and environment variables), and which of them comes first. Nothing here contacts a server. Credentials stay in `Place`,
and never in a text that is shown.
"""

from __future__ import annotations

import base64
import configparser
import netrc
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import url2pathname

from platformdirs import site_config_path, user_config_path

from quantizer.system.errors import UsageError
from quantizer.system.files import explained, read_regular

_DEFAULT_INDEX = "https://pypi.org/simple"
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_SECTIONS = ("global", "download")  # the later one is more specific
_TRUE = {"1", "true", "yes", "on", "y", "t"}


@dataclass(frozen=True, slots=True)
class Place:
    """A server's page or a folder with packages: `url` without credentials, and the Authorization header that its
    server gets, empty for none. An index has a page for each package; other places are one list of files."""

    url: str
    authorization: str = field(default="", repr=False)
    is_index: bool = True

    @property
    def folder(self) -> Path | None:
        """The folder of a place on this machine, None for a server."""
        parts = urlsplit(self.url)
        return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """The places to look for packages, in no order of preference; and a file of certificates to trust besides the
    usual ones, empty for none."""

    places: tuple[Place, ...]
    ca_file: str = ""


def index_settings(environment: Mapping[str, str] = os.environ, files: Sequence[Path] | None = None) -> IndexSettings:
    """Return what the `environment` and pip's and uv's configuration `files` say, by default those of this user and
    this machine. Raises UsageError for an invalid file or address, StorageError for one that cannot be read."""
    pip, uv = _pip_options(environment, files), _uv_options(environment, files)
    index = pip.first("index-url") or uv.first("default") or _DEFAULT_INDEX
    has_index = not (pip.is_on("no-index") or uv.is_on("no-index"))
    urls = [index, *pip.all("extra-index-url"), *uv.all("extra")] if has_index else []
    trusted = {host.rpartition("://")[2] for host in (*pip.all("trusted-host"), *uv.all("insecure-host"))}
    places = [_place(url, trusted, environment, is_index=True) for url in dict.fromkeys(urls)]
    links = dict.fromkeys((*pip.all("find-links"), *uv.all("find-links")))
    places += [_place(url, trusted, environment, is_index=False) for url in links]
    return IndexSettings(tuple(places), pip.first("cert"))


@dataclass(frozen=True, slots=True)
class _Options:
    """Values by option, of which each has one or several."""

    values: Mapping[str, tuple[str, ...]]

    def first(self, name: str) -> str:
        return next(iter(self.values.get(name, ())), "")

    def all(self, name: str) -> tuple[str, ...]:
        return self.values.get(name, ())

    def is_on(self, name: str) -> bool:
        return self.first(name).lower() in _TRUE


_PIP_OPTIONS = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert")


def _pip_options(environment: Mapping[str, str], files: Sequence[Path] | None) -> _Options:
    """Return pip's options; a later file replaces the options of an earlier one, and the environment those of all."""
    values: dict[str, tuple[str, ...]] = {}
    chosen = environment.get("PIP_CONFIG_FILE", "")
    found = _pip_files(environment) if files is None else [path for path in files if path.suffix != ".toml"]
    if chosen == os.devnull:  # pip's way to read no file at all
        found = []
    elif chosen:
        found = [*found, Path(chosen)]
    for path in found:
        for section in _pip_sections(path):
            values |= {name: tuple(section[name].split()) for name in _PIP_OPTIONS if name in section}
    for name in _PIP_OPTIONS:
        if text := environment.get(f"PIP_{name.upper().replace('-', '_')}", ""):
            values[name] = tuple(text.split())
    return _Options(values)


def _pip_sections(path: Path) -> Iterator[Mapping[str, str]]:
    if not path.is_file():
        return
    parser = configparser.RawConfigParser()
    try:
        with explained(f"{path} cannot be read", "Check its permissions, or set PIP_CONFIG_FILE to another file."):
            parser.read_string(read_regular(path).decode("utf-8"))
    except (configparser.Error, UnicodeDecodeError) as error:
        cause = f"{path} is not a configuration of pip: {str(error).splitlines()[0]}."
        raise UsageError(cause, "Correct it: `pip config debug` shows what pip reads.") from error
    for name in _SECTIONS:
        if parser.has_section(name):
            # pip takes its options with underscores too
            yield {key.replace("_", "-"): value for key, value in parser.items(name)}


def _pip_files(environment: Mapping[str, str]) -> list[Path]:
    """Return pip's files, the most specific last: those of the machine, of the user, of this environment."""
    name = "pip.ini" if sys.platform == "win32" else "pip.conf"
    machine = [site_config_path("pip", appauthor=False, multipath=False) / name]
    user = [Path(home) / "pip" / name] if (home := environment.get("HOME")) and sys.platform == "win32" else []
    if sys.platform != "win32":
        machine += [Path("/etc/pip.conf")]
        user = [Path.home() / ".pip" / name, Path.home() / ".config" / "pip" / name]
    user += [user_config_path("pip", appauthor=False, roaming=True) / name]
    return [*machine, *user, Path(sys.prefix) / name]


def _uv_options(environment: Mapping[str, str], files: Sequence[Path] | None) -> _Options:
    """Return uv's indexes and folders; the environment replaces what its files say."""
    values: dict[str, tuple[str, ...]] = {}
    machine = [site_config_path("uv", appauthor=False) / "uv.toml", Path("/etc/uv/uv.toml")]
    user = [user_config_path("uv", appauthor=False) / "uv.toml", Path.home() / ".config" / "uv" / "uv.toml"]
    found = [*machine, *user] if files is None else [path for path in files if path.suffix == ".toml"]
    if environment.get("UV_NO_CONFIG", "").lower() in _TRUE:
        found = []
    if chosen := environment.get("UV_CONFIG_FILE", ""):
        found = [Path(chosen)]
    for path in found:
        values |= _uv_file(path, environment)
    named = environment.get("UV_INDEX", "").split()
    for option, texts in {
        "default": environment.get("UV_DEFAULT_INDEX", "").split() or environment.get("UV_INDEX_URL", "").split(),
        "extra": [*named, *environment.get("UV_EXTRA_INDEX_URL", "").split()],
        "find-links": [text for text in environment.get("UV_FIND_LINKS", "").replace(",", " ").split() if text],
        "no-index": environment.get("UV_NO_INDEX", "").split(),
        "insecure-host": environment.get("UV_INSECURE_HOST", "").split(),
    }.items():
        if texts:
            values[option] = tuple(_uv_url(text, environment) for text in texts)
    return _Options(values)


def _uv_file(path: Path, environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    if not path.is_file():
        return {}
    try:
        with explained(f"{path} cannot be read", "Check its permissions."):
            content = tomllib.loads(read_regular(path).decode("utf-8"))
        tables: list[dict[str, Any]] = [content.get("pip", {}), content]
        indexes = [entry for table in tables for entry in table.get("index", [])]
        found: dict[str, tuple[str, ...]] = {
            "default": tuple(_uv_index(entry, environment) for entry in indexes if entry.get("default")),
            "extra": tuple(_uv_index(entry, environment) for entry in indexes if not entry.get("default")),
        }
        for table in tables:
            found["default"] += (table["index-url"],) if "index-url" in table else ()
            found["extra"] += tuple(table.get("extra-index-url", ()))
            found["find-links"] = (*found.get("find-links", ()), *table.get("find-links", ()))
            found["insecure-host"] = (*found.get("insecure-host", ()), *table.get("allow-insecure-host", ()))
            if "no-index" in table:
                found["no-index"] = (str(table["no-index"]),)
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a configuration of uv: {error}.", "Correct it.") from error
    if not all(isinstance(text, str) for texts in found.values() for text in texts):
        raise UsageError(f"{path} is not a configuration of uv: an address is not a string.", "Correct it.")
    return {option: texts for option, texts in found.items() if texts}


def _uv_index(entry: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    return _uv_url(f"{entry['name']}={entry['url']}" if "name" in entry else str(entry["url"]), environment)


def _uv_url(text: str, environment: Mapping[str, str]) -> str:
    """Return the address in NAME=URL or URL, with the credentials that the environment has for the name."""
    name, equals, url = text.partition("=")
    if not equals or "/" in name or ":" in name:
        return text
    key = "".join(letter if letter.isalnum() else "_" for letter in name).upper()
    login = (environment.get(f"UV_INDEX_{key}_{part}", "") for part in ("USERNAME", "PASSWORD"))
    user, password = (quote(text, safe="") for text in login)
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{user}:{password}@{rest}" if user or password else url


def _place(text: str, trusted: set[str], environment: Mapping[str, str], *, is_index: bool) -> Place:
    if "://" not in text:
        return Place(Path(text).expanduser().absolute().as_uri(), is_index=is_index)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError("An address of a package index is invalid.", "Check index-url and extra-index-url.") from error
    shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if parts.scheme == "file":
        return Place(shown, is_index=is_index)
    if parts.scheme not in ("https", "http") or not host:
        raise UsageError(f"{shown} is not the address of a package index.", "Check index-url and extra-index-url.")
    is_trusted = host in trusted or f"{host}:{port}" in trusted or host in _LOOPBACK
    if parts.scheme == "http" and not is_trusted:
        cause = f"{shown} is not encrypted: packages could be modified in transit."
        raise UsageError(cause, f"Give an https URL, or set pip's trusted-host to {host}.")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if not user and not password:
        user, password = _netrc_login(host, environment)
    authorization = ""
    if user or password:
        authorization = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode('ascii')}"
    return Place(shown, authorization, is_index)


def _netrc_login(host: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the login that the user's netrc file has for a host, as pip uses it; empty without one."""
    try:
        found = netrc.netrc(environment.get("NETRC")).authenticators(host)
    except (OSError, netrc.NetrcParseError):  # pip ignores such a file too: it is of other programs as well
        return "", ""
    return (found[0], found[2] or "") if found else ("", "")
