"""How requests leave this machine: which certificates TLS trusts, and which proxies the environment names.

Owns the variables of both (SSL_CERT_FILE … HTTPS_PROXY … NO_PROXY) and the error that names the one that is wrong. A
TLS context is only made where a request needs one: a broken certificate variable must not end a local chat.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from quantizer.system.errors import UsageError

# The first one that is set decides alone, as in httpx (the first two), requests and curl.
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_SCHEMES = ("http", "https", "all")
# `socks` is what GNOME writes into ALL_PROXY; its proxies speak version 5.
_PROXY_SCHEMES = {"http": "http", "https": "https", "socks5": "socks5", "socks5h": "socks5h", "socks": "socks5"}
_OWN_HOSTS = ("localhost", "127.0.0.1", "::1")  # a proxy could not reach this machine's servers
# Of the systems whose OpenSSL was built for another place (source: truststore's _openssl.py).
_SYSTEM_BUNDLES = (
    "/etc/ssl/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/ca-bundle.pem",
)

Transport = TypeVar("Transport")


def client_options(make_transport: Callable[..., Transport], url: str = "https:", ca_file: str = "") -> dict[str, Any]:
    """Return the options of a client of httpx or httpx2 for requests to `url`: certificates, also those in `ca_file`,
    and proxies. `make_transport` is the class of its transports. Raises UsageError for a variable or a file that cannot
    be used."""
    proxies = environment_proxies()
    needs_tls = url.startswith("https:") or any(proxy and proxy.startswith("https:") for proxy in proxies.values())
    verify = tls_context(ca_file) if needs_tls else no_tls()
    mounts = {
        pattern: None if proxy is None else make_transport(verify=verify, proxy=proxy)
        for pattern, proxy in proxies.items()
    }
    return {"verify": verify, "mounts": mounts, "trust_env": False}


def no_tls() -> ssl.SSLContext:
    """Return a context for addresses without TLS, which the clients demand all the same. It reads no file, and trusts
    nobody."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def tls_context(ca_file: str = "") -> ssl.SSLContext:
    """Return the context of TLS connections: what the environment names is trusted, else what the system trusts; and
    what `ca_file` has. Raises UsageError for certificates that cannot be read."""
    return _tls_context(tuple(os.environ.get(name, "") for name in CERTIFICATE_VARIABLES), ca_file)


@lru_cache(4)
def _tls_context(values: tuple[str, ...], ca_file: str) -> ssl.SSLContext:
    context = _usual_context(values)
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # SSLError is one
            cause = f"{ca_file} has no certificates that can be read: {error.strerror or error}."
            raise UsageError(cause, "Correct pip's `cert`, or PIP_CERT.") from error
    return context


def _usual_context(values: tuple[str, ...]) -> ssl.SSLContext:
    for name, value in zip(CERTIFICATE_VARIABLES, values, strict=True):
        if value:
            return _trusting(name, value)
    if sys.platform in ("darwin", "win32"):
        import truststore  # where a company's certificates are in the keychain or the store of Windows

        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # truststore would do the same on each handshake, which adds up before OpenSSL 3.4 (sethmlarson/truststore#212).
    context = no_tls()
    context.load_default_certs()
    folder = ssl.get_default_verify_paths().capath
    if not context.cert_store_stats()["x509_ca"] and not (folder and _has_certificates(Path(folder))):
        import certifi

        context.load_verify_locations(next(filter(os.path.isfile, _SYSTEM_BUNDLES), certifi.where()))
    return context


def _trusting(name: str, value: str) -> ssl.SSLContext:
    """Return a context that trusts the certificates at `value`, which the variable `name` has."""
    context, why = no_tls(), ""
    try:
        if name == "SSL_CERT_DIR" or Path(value).is_dir():
            # OpenSSL looks into folders later, and never says that there is nothing.
            folders = [Path(folder) for folder in value.split(os.pathsep) if folder]
            why = "" if any(map(_has_certificates, folders)) else "has no certificates named by their hash"
            context.load_verify_locations(capath=value)
        else:
            context.load_verify_locations(cafile=value)
    except ssl.SSLError:  # a kind of OSError
        why = "has no certificates"
    except (OSError, ValueError) as error:
        why = f"cannot be read ({getattr(error, 'strerror', None) or error})"
    if why:
        remedy = f"Set {name} to a PEM file of the certificates that you trust, or unset it: {_unset(name)}."
        raise UsageError(f"{name} is {value!r}, which {why}.", remedy)
    return context


def _has_certificates(folder: Path) -> bool:
    return any(len(path.stem) == 8 and path.suffix[1:].isdigit() for path in folder.iterdir())


def environment_proxies() -> dict[str, str | None]:
    """Return the proxy of each pattern of addresses, in the form of httpx's `mounts`; None means none. They come from
    the environment, or from the settings of macOS and Windows. Raises UsageError for a proxy that is not a URL."""
    from urllib.request import getproxies  # takes a while, and a local chat asks for none

    named = getproxies()
    if any(host.strip() == "*" for host in named.get("no", "").split(",")):
        return {}
    found = {f"{scheme}://": _proxy(scheme, named[scheme]) for scheme in _SCHEMES if named.get(scheme)}
    if not found:
        return {}
    exempt = [_pattern(host.strip()) for host in (*_OWN_HOSTS, *named.get("no", "").split(","))]
    return {**found, **dict.fromkeys(filter(None, exempt))}


def _proxy(scheme: str, value: str) -> str:
    given = value.strip() if "://" in value else f"http://{value.strip()}"
    try:
        parts = urlsplit(given)
        is_valid = bool(parts.scheme in _PROXY_SCHEMES and parts.hostname and parts.port != 0)
        is_valid = is_valid and not any(character.isspace() for character in given) and given.isprintable()
    except ValueError:  # a port that is not a number, or a bracket that is not closed
        is_valid = False
    if not is_valid:
        name = _variable(f"{scheme}_proxy")
        cause = f"{name} is {_without_password(value)!r}, which is not the address of a proxy."
        raise UsageError(cause, f"Set it to one such as http://proxy.example:3128, or unset it: {_unset(name)}.")
    return f"{_PROXY_SCHEMES[parts.scheme]}{given[len(parts.scheme) :]}"


def _pattern(host: str) -> str:
    """Return httpx's pattern of an entry of NO_PROXY; "" for one that names no host, which then exempts none."""
    if "://" in host:
        scheme, _, rest = host.partition("://")
        return f"{scheme}://{rest}" if scheme in _SCHEMES and _is_host(rest) else ""
    try:
        network = ip_network(host.strip("[]"), strict=False)
    except ValueError:
        name, _, port = host.partition(":")
        wildcard = "" if name == "localhost" else "*"
        is_plain = _is_host(name.lstrip("*")) and (not port or port.isdecimal())
        return f"all://{wildcard}{name.lstrip('*')}{':' + port if port else ''}" if is_plain else ""
    if network.num_addresses > 1:
        return ""  # httpx compares hosts as text
    return f"all://[{network.network_address}]" if network.version == 6 else f"all://{network.network_address}"


def _is_host(name: str) -> bool:
    try:
        return bool(name) and bool(urlsplit(f"http://{name}").hostname) and name.isprintable() and " " not in name
    except ValueError:
        return False


def _variable(name: str) -> str:
    """Return how the environment spells the variable, or whose settings it comes from."""
    spelled = next((each for each in (name, name.upper()) if os.environ.get(each)), "")
    return spelled or f"The system's {name.replace('_', ' ')}"


def _unset(name: str) -> str:
    return f"`set {name}=`" if sys.platform == "win32" else f"`unset {name}`"


def _without_password(value: str) -> str:
    """Return the address without what is before its last @."""
    scheme, mark, rest = value.rpartition("://")
    return f"{scheme}{mark}{'…@' if '@' in rest else ''}{rest.rpartition('@')[2]}"
