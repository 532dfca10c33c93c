"""A GGUF that is not here, as a model to plan for: the headers of all its files, read over HTTP and held to the gate.

Owns where the further files of a split model are. Knows nothing of verdicts.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx

from app.library.byte_range import RangeReader
from app.library.hub_access import HubAccess
from app.library.remote_source import RemoteSource
from offload.model import PlannedModel
from quantizer.gate import check, shard_paths
from quantizer.header import Header, parse_header

__all__ = ["read_remote_header", "read_remote_model"]


def read_remote_model(http: httpx.Client, url: str, access: HubAccess) -> PlannedModel:
    """Read the headers of the model whose first file is at `url`.

    Raises HubError for what cannot be had, ModelFileError for what llama.cpp could not survive.
    """
    header = read_remote_header(http, url, access)
    check(header)
    later = [read_remote_header(http, _sibling(url, path.name), access) for path in shard_paths(header)[1:]]
    return PlannedModel(header, (*header.tensors, *(tensor for part in later for tensor in part.tensors)))


def read_remote_header(http: httpx.Client, url: str, access: HubAccess) -> Header:
    """Read the header of the one file at `url`. Raises as `read_remote_model` does."""
    name = PurePosixPath(unquote(urlsplit(url).path)).name
    return parse_header(RemoteSource(RangeReader(http, url, access), name), Path(name))


def _sibling(url: str, name: str) -> str:
    """The address of the file `name` beside the one at `url`."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rpartition('/')[0]}/{quote(name)}"))
