"""Ollama's registry: what a reference such as `ollama:qwen3:0.6b` consists of, and where its parts are.

Owns the registry's address (OLLAMA_REGISTRY, or the host in the reference), its API, which is that of Docker's
registries (source: the OCI distribution specification), and the nearest tags where one does not exist. Manifests are
untrusted: only hashes and lengths of them are used, and each layer must have its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from app.library.download.http_session import HttpSession, RetryPolicy
from app.library.download.remote_file import Digest, RemoteFile
from app.library.external import BAD_LAYERS, LAYER, TEXT_LAYERS, ollama_recipe
from app.library.hub.access import HubAccess, HubError, NotOnHubError
from app.library.hub.reference import LOOPBACK_HOSTS, OllamaReference
from app.library.hub.repository import fetch_body
from app.library.local.model_files import listed
from app.library.local.recipe import MAX_RECIPE_BYTES, Recipe
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import UsageError

_REGISTRY = "https://registry.ollama.ai"
_PAGE = "https://ollama.com/library"
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_MAX_LAYERS = 64
_MAX_BYTES = 1 << 50
_N_NEAREST, _N_LISTED = 3, 12
_LOG_IN = "Give the login in OLLAMA_REGISTRY, as https://USER:PASSWORD@HOST, or pull a public model."
_REFUSALS = {
    (401, ""): ("may not be read without a login", _LOG_IN),
    (403, ""): ("may not be read with this login", _LOG_IN),
    (404, ""): ("is not in the registry", "Check the spelling."),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """A part of a model: its `kind` such as "model" or "params", its SHA-256 and its length."""

    kind: str
    sha256: str
    n_bytes: int


def registry_access(reference: OllamaReference, environment: Mapping[str, str] = os.environ) -> HubAccess:
    """Return the access to the registry of `reference`: the host that it names, or else OLLAMA_REGISTRY. Raises
    UsageError for an address that is not a URL, or not encrypted."""
    text = environment.get("OLLAMA_REGISTRY", "").rstrip("/") or _REGISTRY
    if reference.host:
        scheme = "http" if reference.host.partition(":")[0] in LOOPBACK_HOSTS else "https"
        text = f"{scheme}://{reference.host}"
    try:
        parts = urlsplit(text)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    endpoint = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if parts.scheme not in ("https", "http") or not host or parts.query or parts.fragment:
        cause = f"OLLAMA_REGISTRY is {endpoint!r}, which is not the URL of a registry."
        raise UsageError(cause, f"Set it to one such as {_REGISTRY}, or unset it.")
    if parts.scheme == "http" and host not in LOOPBACK_HOSTS:
        raise UsageError(f"{endpoint} is not encrypted: models could be modified in transit.", "Give an https URL.")
    login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    authorization = f"Basic {base64.b64encode(login.encode()).decode('ascii')}" if login != ":" else ""
    logins = {endpoint: authorization} if authorization else {}
    return HubAccess(endpoint, refusals=_REFUSALS, authorizations=logins)


async def fetch_layers(session: HttpSession, reference: OllamaReference, policy: RetryPolicy) -> tuple[Layer, ...]:
    """Return the layers of a model. Raises NotOnHubError that names similar tags, HubError, and ModelFileError for an
    invalid manifest."""
    url = f"{_base(session, reference)}/manifests/{quote(reference.tag)}"
    try:
        manifest = await _fetch_json(session, url, reference.id, policy, {"Accept": _MANIFEST})
    except NotOnHubError as error:
        raise NotOnHubError(error.cause, await _nearest(session, reference, policy) or error.remedy) from error
    try:
        layers = [_layer(entry) for entry in manifest["layers"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"The manifest of {reference.id} is invalid.", "Choose another model.") from error
    return tuple(layers[:_MAX_LAYERS])


def _layer(entry: Mapping[str, Any]) -> Layer:
    kind, _, sha256 = entry["digest"].partition(":")
    n_bytes = entry["size"]
    if kind != "sha256" or type(n_bytes) is not int or not 0 <= n_bytes < _MAX_BYTES:
        raise ValueError("a layer without SHA-256 or length")
    Digest("sha256", sha256 or "none")
    return Layer(str(entry["mediaType"]).removeprefix(f"{LAYER}."), sha256, n_bytes)


async def _nearest(session: HttpSession, reference: OllamaReference, policy: RetryPolicy) -> str:
    """Return a remedy for a tag that does not exist: those that do, the most similar ones first; "" if the registry
    does not list any."""
    try:
        tags = (await _fetch_json(session, f"{_base(session, reference)}/tags/list", reference.id, policy))["tags"]
        names = [str(tag) for tag in tags if isinstance(tag, str)]
    except (HubError, KeyError, TypeError):  # the public registry lists none
        is_public = session.access.endpoint == _REGISTRY and reference.namespace == "library"
        return f"Its tags are at {_PAGE}/{reference.model}/tags, if there is such a model." if is_public else ""
    near = get_close_matches(reference.tag, names, n=_N_NEAREST, cutoff=0.3)
    untagged = reference.id.rpartition(":")[0]
    likely = f"Did you mean {' or '.join(f'{untagged}:{tag}' for tag in near)}? " if near else ""
    return f"{likely}It has {listed(sorted(names), _N_LISTED)}."


def layer_file(session: HttpSession, reference: OllamaReference, layer: Layer, name: str) -> RemoteFile:
    """Return `layer` as a remote file called `name`."""
    url = f"{_base(session, reference)}/blobs/sha256:{layer.sha256}"
    return RemoteFile(name, url, layer.n_bytes, Digest("sha256", layer.sha256))


async def fetch_recipe(
    session: HttpSession, reference: OllamaReference, layers: tuple[Layer, ...], policy: RetryPolicy
) -> Recipe:
    """Return the settings that a model has beside its weights: system prompt, parameters, first messages, licence.
    Raises HubError, and ModelFileError for a layer that is invalid or has another hash."""
    texts: dict[str, list[str]] = {kind: [] for kind in TEXT_LAYERS}
    for layer in layers:
        if layer.kind not in texts:
            continue
        if layer.n_bytes > MAX_RECIPE_BYTES:
            raise _bad_layer(reference, layer, "it is larger than 1 MiB")
        url = layer_file(session, reference, layer, layer.kind).url
        body = await fetch_body(session, url, f"The {layer.kind} of {reference.id}", policy, bytes)
        if hashlib.sha256(body).hexdigest() != layer.sha256:
            raise _bad_layer(reference, layer, "its SHA-256 is wrong")
        try:
            texts[layer.kind].append(body.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise _bad_layer(reference, layer, "it is not text") from error
    try:
        return ollama_recipe(texts)
    except BAD_LAYERS as error:
        cause = f"The settings of {reference.id} are invalid: {str(error)[:200]}."
        raise ModelFileError(cause, "Choose another model.") from error


def _bad_layer(reference: OllamaReference, layer: Layer, why: str) -> ModelFileError:
    return ModelFileError(f"The {layer.kind} of {reference.id} cannot be used: {why}.", "Choose another model.")


def _base(session: HttpSession, reference: OllamaReference) -> str:
    return f"{session.access.endpoint}/v2/{quote(reference.namespace)}/{quote(reference.model)}"


async def _fetch_json(
    session: HttpSession, url: str, name: str, policy: RetryPolicy, headers: Mapping[str, str] | None = None
) -> Any:
    body = await fetch_body(session, url, name, policy, bytes, headers)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"The registry's answer for {name} is not JSON.", "Check OLLAMA_REGISTRY.") from error
