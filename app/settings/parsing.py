"""Parsers of what people write in settings and options: sizes, durations, RPC endpoints, names and addresses of hosts.

Owns these forms. Independent of which setting a value is for.
"""

from __future__ import annotations

import ipaddress
import math
import re
from pathlib import Path

from app.protocol.errors import RequestError
from quantizer.system.errors import UsageError

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([KMGT])(I?))?B?", re.IGNORECASE)
_PREFIXES = "KMGT"
_MAX_S = 1e9  # a clock has to be able to count them
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_PART = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(ns|us|µs|ms|s|m|h)")
_PLAIN = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)()")
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
    parts = _parts(text.removeprefix("-"))
    if not parts or (seconds := math.fsum(float(count) * _UNITS_S[unit] for count, unit in parts)) > _MAX_S:
        raise RequestError(f"{text[:40]!r} is not a duration.", 'Use seconds, "5m", "1h30m", or -1 for no end.')
    return None if text.startswith("-") else seconds


def _parts(text: str) -> list[tuple[str, str]]:
    if plain := _PLAIN.fullmatch(text):
        return [(plain.group(1), "")]
    parts = _PART.findall(text)
    return parts if "".join(f"{count}{unit}" for count, unit in parts) == text else []


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
