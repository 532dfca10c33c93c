from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from app.common.outbound import tls_context
from app.library.download.http_session import HttpSession
from app.library.hub.access import HubError, async_http_client
from app.library.packages import package_index
from app.library.packages.index_settings import IndexSettings, Place, index_settings
from app.library.packages.package_index import OfferedWheel, PackageNotFoundError, find_wheel, index_access
from quantizer.system.errors import UsageError
from tests.app.library.fetching import IMPATIENT
from tests.app.library.hub_server import CERTIFICATE
from tests.app.library.web_server import Page, WebServer
from tests.app.library.wheels import make_wheel

JSON = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
SHA = "a" * 64


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index, "QUICK_RETRIES", IMPATIENT)


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as web:
        yield web


async def _find(wanted: str, *places: Place) -> OfferedWheel:
    settings = IndexSettings(places)
    async with async_http_client(5.0) as http:
        return await find_wheel(HttpSession(http, index_access(settings)), settings, Requirement(wanted))


def _html(*files: str, tail: str = "") -> Page:
    links = "".join(f'<a href="../../files/{name}#sha256={SHA}"{tail}>{name}</a><br>' for name in files)
    return Page(f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), {"Content-Type": "text/html"})


def _json(*files: Mapping[str, Any]) -> Page:
    return Page(json.dumps({"meta": {"api-version": "1.1"}, "files": files}).encode(), JSON)


def _file(name: str, **more: Any) -> dict[str, Any]:
    return {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": SHA}, "size": 12, **more}


WHEEL_1 = "m-1-py3-none-any.whl"
WHEELS = ("my_model-1.0-py3-none-any.whl", "my_model-1.10-py3-none-any.whl", "my_model-1.9-py3-none-any.whl")


@pytest.mark.parametrize("kind", ["html", "json"])
@pytest.mark.parametrize(
    ("wanted", "version"), [("My.Model", "1.10"), ("my-model==1.9", "1.9"), ("my_model<1.5", "1.0")]
)
async def test_the_newest_release_that_is_wanted_is_found(web: WebServer, kind: str, wanted: str, version: str) -> None:
    page = _html(*WHEELS, "my_model-9.tar.gz") if kind == "html" else _json(*map(_file, (*WHEELS, "my_model-9.zip")))
    web.pages["/simple/my-model/"] = page
    found = await _find(wanted, Place(f"{web.url}/simple/"))
    assert str(found.version) == version
    assert found.url == f"{web.url}/files/{found.name}"
    assert (found.sha256, found.n_bytes) == (SHA, 12 if kind == "json" else None)


@pytest.mark.parametrize(
    ("files", "wanted", "name"),
    [
        ([_file(WHEEL_1), _file("m-2-py3-none-any.whl", yanked="bad")], "m", "m-1-py3-none-any.whl"),
        ([_file(WHEEL_1), _file("m-2-py3-none-any.whl", yanked=True)], "m==2", "m-2-py3-none-any.whl"),
        ([_file(WHEEL_1), _file("m-2rc1-py3-none-any.whl")], "m", "m-1-py3-none-any.whl"),
        ([_file("m-2rc1-py3-none-any.whl")], "m", "m-2rc1-py3-none-any.whl"),
        ([_file("m-1-py3-none-win_arm64.whl"), _file(WHEEL_1)], "m", "m-1-py3-none-any.whl"),
        ([_file("m-1-py3-none-win_arm64.whl")], "m", "m-1-py3-none-win_arm64.whl"),
        ([_file(WHEEL_1), _file("m-3.egg"), _file("../m-4-py3-none-any.whl")], "m", WHEEL_1),
        ([_file(WHEEL_1), _file("n-9-py3-none-any.whl")], "m", "m-1-py3-none-any.whl"),
    ],
)  # fmt: skip
async def test_one_wheel_of_several_is_chosen(
    web: WebServer, files: list[dict[str, Any]], wanted: str, name: str
) -> None:
    web.pages["/simple/m/"] = _json(*files)
    assert (await _find(wanted, Place(f"{web.url}/simple"))).name == name


async def test_all_places_count_and_one_that_fails_is_no_obstacle(web: WebServer, tmp_path: Path) -> None:
    web.pages["/simple/m/"] = _html(WHEEL_1)
    web.pages["/broken/m/"] = Page(b"{", JSON)
    web.pages["/list.html"] = _html("m-2-py3-none-any.whl", "n-4-py3-none-any.whl")
    wheel = make_wheel(tmp_path / "wheels", "m", {}, "3")
    page = tmp_path / "simple" / "m" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../wheels/{wheel.name}#sha256={SHA}">{wheel.name}</a>')
    index, broken = Place(f"{web.url}/simple"), Place(f"{web.url}/broken")
    listed = Place(f"{web.url}/list.html", is_index=False)
    folder = Place((tmp_path / "wheels").as_uri(), is_index=False)
    local_index = Place((tmp_path / "simple").as_uri())
    assert str((await _find("m", broken, index)).version) == "1"
    assert str((await _find("m", index, listed)).version) == "2"
    assert (await _find("m", index, listed, folder)).path == wheel
    assert (await _find("m", local_index)).path == wheel
    assert (await _find("m", local_index)).sha256 == SHA
    assert (await _find("m", local_index, Place((tmp_path / "missing").as_uri()))).path == wheel


async def test_a_page_on_a_server_leads_to_no_file_of_this_machine(web: WebServer, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "m", {}, "3")
    web.pages["/simple/m/"] = Page(f'<a href="{wheel.as_uri()}">{wheel.name}</a>'.encode())
    with pytest.raises(PackageNotFoundError):
        await _find("m", Place(f"{web.url}/simple"))


@pytest.mark.parametrize(
    ("page", "wanted", "reason"),
    [
        (_html(*WHEELS), "m", "There is no package m in http"),
        (_html("m-1-py3-none-any.whl", "m-2-py3-none-any.whl"), "m==3", "has the version 3. Name one of 2, 1."),
        (_html("m-1-py3-none-any.whl", tail=" data-yanked"), "m", "not withdrawn. Name one of 1."),
        (_html("m-1.tar.gz"), "m", "only source archives"),
        (Page(b"no", status=404), "m", "There is no package m"),
        (Page(b"no", status=401), "m", "may not be read without a login.*pip download"),
        (Page(b"no", status=403), "m", "may not be read with this login"),
        (Page(b"no", status=500), "m", "cannot be reached.*answers 500.*pip's index-url.*pip download"),
        (Page(b"[]", JSON), "m", "is not a page of a package index"),
        (Page(b"[" * 100_000, JSON), "m", "is not a page of a package index"),
        (Page(b'{"files": [{"filename": "a"}]}', JSON), "m", "is not a page of a package index"),
    ],
)
async def test_what_is_not_there_is_said(web: WebServer, page: Page, wanted: str, reason: str) -> None:
    web.pages["/simple/m/"] = page
    with pytest.raises(HubError, match=reason):
        await _find(wanted, Place(f"{web.url}/simple"))


async def test_certificates_of_pips_configuration_are_trusted_besides_the_usual_ones(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for name, reason in (("ca.pem", "no certificate"), ("missing.pem", "No such file")):
        with pytest.raises(UsageError, match=rf"{name} has no certificates.*{reason}.*PIP_CERT"):
            async_http_client(5.0, str(tmp_path / name))
    usual = len(tls_context().get_ca_certs())
    assert len(tls_context(str(CERTIFICATE)).get_ca_certs()) == usual + 1
    assert len(tls_context().get_ca_certs()) == usual


async def test_without_any_place_the_remedy_is_to_configure_one() -> None:
    with pytest.raises(PackageNotFoundError, match="no-index"):
        await _find("m")


async def test_a_login_is_sent_to_its_own_server_alone(web: WebServer) -> None:
    login = index_settings({"PIP_INDEX_URL": web.url.replace("//", "//me:pw@") + "/simple"}, files=[]).places[0]
    web.pages["/simple/m/"] = Page(
        status=302, headers={"Location": f"{web.other_url}/there/"}, login=login.authorization
    )
    web.pages["/there/"] = _html(WHEEL_1)
    found = await _find("m", login)
    assert found.url == f"{web.other_url}/../files/m-1-py3-none-any.whl".replace("/..", "")
    assert [headers.get("Authorization", "") for _path, headers in web.log] == [login.authorization, ""]


def test_hashes_of_a_page_are_those_of_sha256_alone() -> None:
    sums = {"sha256": hashlib.sha256(b"").hexdigest(), "md5": "d41d8cd98f00b204e9800998ecf8427e", "sha256=": "short"}
    text = "".join(f'<a href="m-{n}-py3-none-any.whl#{kind}={value}">' for n, (kind, value) in enumerate(sums.items()))
    links = package_index._html_links(text, "https://a.example/")
    assert [link.sha256 for link in links] == [sums["sha256"], "", ""]
