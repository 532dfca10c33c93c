"""Parsers of values in settings and options: sizes, durations, hosts, RPC endpoints, projectors, what searches the web,
web origins."""

from __future__ import annotations

import ipaddress
import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from app.protocol.errors import RequestError
from quantizer.system.errors import UsageError

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([KMGT])(I?))?B?", re.IGNORECASE)
_PREFIXES = "KMGT"
_MAX_S = 1e9  # a clock has to be able to count them
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_PART = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(ns|us|µs|ms|s|m|h)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_()]*\*?")
_PLAIN = re.compile(r"\d{1,18}(?:\.\d{1,9})?")
_ENDPOINT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*):(\d{1,5})")
_MOST_PORT = 65_535
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")


def parse_byte_size(text: str) -> int:
    """Read a size such as 500M (decimal, as disks and llama.cpp count) or 2GiB. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size.", "Write it like 500M, 4.2GB or 2GiB.")
    power = _PREFIXES.index(match[2].upper()) + 1 if match[2] else 0
    n_bytes = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if n_bytes < 1:
        raise UsageError(f"{text!r} is not a size.", "Write it like 500M, 4.2GB or 2GiB.")
    return n_bytes


def parse_duration(duration: str | float) -> float | None:
    """Return a duration in seconds, None for a negative one, which means without end. Raises RequestError."""
    text = str(duration).strip() if isinstance(duration, str) else format(duration, "f")
    count = text.removeprefix("-")
    parts = [(count, "")] if _PLAIN.fullmatch(count) else _PART.findall(count)
    if "".join(map("".join, parts)) != count:
        parts = []
    if not parts or (seconds := math.fsum(float(n) * _UNITS_S[unit] for n, unit in parts)) > _MAX_S:
        raise RequestError(f"{text[:40]!r} is not a duration.", 'Use seconds, "5m", "1h30m", or -1 for no end.')
    return None if text.startswith("-") else seconds


def parse_rpc_endpoints(text: str) -> tuple[str, ...]:
    """Return the servers that a setting names, separated by commas. Raises UsageError for anything but HOST:PORT."""
    endpoints = tuple(part.strip() for part in text.split(",") if part.strip())
    for endpoint in endpoints:
        match = _ENDPOINT.fullmatch(endpoint)
        if match is None or not 1 <= int(match[2]) <= _MOST_PORT:
            raise UsageError(f"{endpoint!r} is not an RPC server.", "Write it like --rpc 192.168.1.7:50052.")
    return tuple(dict.fromkeys(endpoints))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server bound to `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_host_name(text: str) -> bool:
    """Return whether `text` is the name of a machine, in lower case and without a port."""
    return _HOST_NAME.fullmatch(text) is not None


def parse_variable_names(text: str) -> tuple[str, ...]:
    """Return the names that the setting lists, separated by commas. Raises UsageError for anything but names."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(
                f"{name[:100]!r} is not the name of a variable.",
                "Write names into command_variables, separated by commas: AWS_PROFILE, MYAPP_*.",
            )
    return names


def parse_host_names(text: str) -> tuple[str, ...]:
    """Return the names that a setting lists, separated by commas. Raises UsageError for anything but host names."""
    names = tuple(name for part in text.split(",") if (name := part.strip().lower()))
    for name in names:
        if not is_host_name(name):
            raise UsageError(f"{name[:100]!r} is not a host name.", "Write it without http:// and port: pc.local.")
    return tuple(dict.fromkeys(names))


def projector_file(choice: str) -> Path | None:
    """Return the file that the setting `projector` names; None for one that is to be found, or for none."""
    from quantizer.gguf.file_names import FOUND_TYPES, NO_PROJECTOR

    if choice.lower() in ("", "auto", NO_PROJECTOR) or choice.upper() in FOUND_TYPES:
        return None
    try:
        return Path(choice).expanduser().absolute()
    except RuntimeError:  # no such user, or no home
        return Path(choice).absolute()


BRAVE = "brave"


@dataclass(frozen=True, slots=True)
class WebSearch:
    """What searches the web: a SearXNG at `url`, a command `argv` that gets the query as one more argument, or Brave's
    service where both are empty."""

    url: str = ""
    argv: tuple[str, ...] = ()


def parse_web_search(text: str) -> WebSearch | None:
    """Return what the setting `web_search` names, None for nothing. Raises UsageError."""
    text = text.strip()
    if not text or text.lower() == BRAVE:
        return WebSearch() if text else None
    is_address = "://" in text.split(maxsplit=1)[0]
    # On Windows a backslash separates folders.
    is_posix = os.name != "nt"
    remedy = "Write brave, the URL of a SearXNG such as http://127.0.0.1:8888, or a command such as `ddgr --json`."
    try:
        argv = () if is_address else tuple(shlex.split(text, posix=is_posix))
        parts = urlsplit(text if is_address else "")
        is_web = parts.scheme in _WEB and parts.hostname and parts.port != 0 and not parts.query and not parts.fragment
    except ValueError:  # a quote that is not closed, or a port that is no number
        argv, is_web = (), False
    is_command = all(argv) and bool(argv) and "\0" not in text
    if not (is_web and text.isprintable() and " " not in text if is_address else is_command):
        raise UsageError("The setting web_search names nothing that searches the web.", remedy)
    if parts.username is not None:
        raise UsageError("The URL in web_search has a user or a password, which would not be sent.", remedy)
    if is_address:
        return WebSearch(url=text.rstrip("/"))
    return WebSearch(argv=argv if is_posix else tuple(part.strip('"') for part in argv))


_ANY = "*"
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_WEB = ("http", "https")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._~-]*|\[[0-9a-f:.]{2,45}\])(?::(\d{1,5}|\*))?")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://\*?")
_MOST_SHOWN = 100

# Pages of desktop programs have schemes of their own; on Windows and Android Tauri serves them from a host instead.
PRESETS: Mapping[str, tuple[str, ...]] = {
    "localhost": tuple(f"{scheme}://{host}:*" for scheme in _WEB for host in _LOCAL_HOSTS),
    "app": ("app://",),
    "tauri": ("tauri://", "http://tauri.localhost", "https://tauri.localhost"),
    "vscode": ("vscode-webview://", "vscode-file://"),
}


@dataclass(frozen=True, slots=True)
class Origins:
    """The origins that are allowed: exact ones, all of a scheme, and all ports of a host."""

    exact: frozenset[str] = frozenset()
    schemes: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()

    def allow(self, origin: str) -> bool:
        """Return whether a page of `origin`, as a browser sends it, may use the service."""
        match = _ORIGIN.fullmatch(origin.lower())
        if match is None or match[3] == _ANY:
            return False
        scheme, host = match[1], match[2]
        return match[0] in self.exact or scheme in self.schemes or f"{scheme}://{host}" in self.hosts


NO_ORIGINS = Origins()


def parse_origins(text: str) -> Origins:
    """Return what comma-separated entries allow. Raises UsageError for one that is no origin or allows every page. An
    entry is a preset, an origin (`https://chat.example`), all ports of a host (`http://localhost:*`), or all origins of
    a scheme that web sites do not have (`app://`)."""
    exact: set[str] = set()
    schemes: set[str] = set()
    hosts: set[str] = set()
    for entry in filter(None, (part.strip().lower() for part in text.split(","))):
        for form in PRESETS.get(entry, (entry,)):
            if (scheme := _SCHEME.fullmatch(form)) and scheme[1] not in _WEB:
                schemes.add(scheme[1])
            elif (origin := _ORIGIN.fullmatch(form.removesuffix("/"))) is None or not origin[2]:
                cause = f"{entry[:_MOST_SHOWN]!r} is not the origin of a page."
                if entry in ("*", "null", "http://", "https://", "http://*", "https://*"):
                    cause = f"{entry!r} would let every page of the web use the models."
                named = f"a scheme (app://), or {', '.join(PRESETS)}"
                raise UsageError(cause, f"Name origins such as https://chat.example, {named}.")
            elif origin[3] == _ANY:
                hosts.add(f"{origin[1]}://{origin[2]}")
            else:
                exact.add(origin[0])
    return Origins(frozenset(exact), frozenset(schemes), frozenset(hosts))


def entry_for(origin: str) -> str:
    """Return the entry of the setting that allows `origin`, "" where none can."""
    match = _ORIGIN.fullmatch(origin.lower())
    if match is None or len(origin) > _MOST_SHOWN:
        return ""
    own = (name for name in PRESETS if parse_origins(name).allow(origin))
    return next(own, match[0])
