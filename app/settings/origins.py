"""Origins of web pages, as the setting `origins` names them and as browsers send them.

Owns the presets, the forms of an entry and which origins an entry allows. Independent of HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from quantizer.system.errors import UsageError

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
    """Return what comma-separated entries allow. Raises UsageError for one that is no origin or allows every page.

    An entry is a preset, an origin (`https://chat.example`), all ports of a host (`http://localhost:*`), or all
    origins of a scheme that web sites do not have (`app://`).
    """
    exact: set[str] = set()
    schemes: set[str] = set()
    hosts: set[str] = set()
    for entry in filter(None, (part.strip().lower() for part in text.split(","))):
        for form in PRESETS.get(entry, (entry,)):
            if (scheme := _SCHEME.fullmatch(form)) and scheme[1] not in _WEB:
                schemes.add(scheme[1])
            elif (origin := _ORIGIN.fullmatch(form.removesuffix("/"))) is None or not origin[2]:
                raise _invalid(entry)
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


def _invalid(entry: str) -> UsageError:
    cause = f"{entry[:_MOST_SHOWN]!r} is not the origin of a page."
    if entry in ("*", "null", "http://", "https://", "http://*", "https://*"):
        cause = f"{entry!r} would let every page of the web use the models."
    return UsageError(cause, f"Name origins such as https://chat.example, a scheme (app://), or {', '.join(PRESETS)}.")
