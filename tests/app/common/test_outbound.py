from __future__ import annotations

import os
import ssl
from pathlib import Path

import httpx
import httpx2
import pytest

from app.client.remote_engine import RemoteEngine
from app.client.service_client import ServiceClient
from app.common.outbound import CERTIFICATE_VARIABLES, client_options, environment_proxies, tls_context
from app.common.public_web import FetchLimits, PublicWeb
from app.library.hub.access import async_http_client
from app.protocol.errors import ServiceError
from quantizer.system.errors import UsageError
from tests.app.library.hub_server import CERTIFICATE, HubServer

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*CERTIFICATE_VARIABLES, *PROXY_VARIABLES, "NO_PROXY", "SSLKEYLOGFILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def _broken(tmp_path: Path, kind: str) -> str:
    """Return a value of a certificate variable that is broken in this way."""
    if kind == "missing":
        return str(tmp_path / "nope.pem")
    if kind == "empty folder":
        return str(tmp_path)
    (tmp_path / "text").write_text("no certificate")
    return str(tmp_path / "text")


@pytest.mark.parametrize("name", CERTIFICATE_VARIABLES)
@pytest.mark.parametrize("kind", ["missing", "text", "empty folder"])
async def test_broken_certificates_name_their_variable_where_tls_is_used_and_nowhere_else(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = _broken(tmp_path, kind)
    monkeypatch.setenv(name, value)
    for use in (
        lambda: tls_context(),
        lambda: async_http_client(1.0),
        lambda: RemoteEngine("https://engine.example"),
        lambda: ServiceClient("https://engine.example"),
    ):
        with pytest.raises(UsageError) as caught:
            use()
        assert name in caught.value.cause
        assert value in caught.value.cause
        assert name in caught.value.remedy
    async with ServiceClient("http://127.0.0.1:1") as service, RemoteEngine("http://127.0.0.1:1") as engine:
        for client in (service, engine):
            with pytest.raises(ServiceError):
                await client.status()


async def test_a_page_without_tls_is_fetched_beside_broken_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nope.pem")
    with HubServer() as hub:
        hub.plain["page.txt"] = (b"text", {})
        web = PublicWeb(FetchLimits(), "", is_allowed=lambda _: True)
        assert (await web.fetch(f"{hub.stranger_url}/plain/page.txt")).data == b"text"
    with pytest.raises(UsageError, match=r"SSL_CERT_FILE is '/nope\.pem'"):
        await web.fetch("https://127.0.0.1:1/page.txt")


def test_a_key_log_that_cannot_be_written_ends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", "/nope/keys.log")
    tls_context()
    ServiceClient("http://127.0.0.1:1")


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
async def test_the_certificate_of_a_company_is_trusted_by_each_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubServer(is_tls=True) as hub:
        async with async_http_client(5.0) as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(hub.url)
        monkeypatch.setenv(name, str(CERTIFICATE))
        async with async_http_client(5.0) as http:
            assert (await http.get(f"{hub.url}/nothing")).status_code == 404


def test_the_store_of_the_system_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the company's certificate were installed: OpenSSL's own folder is another one here."""
    found: list[str] = []

    def load(context: ssl.SSLContext, *_purpose: object) -> None:
        found.append("system")
        context.load_verify_locations(CERTIFICATE)

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)
    tls_context.__globals__["_tls_context"].cache_clear()
    assert tls_context().cert_store_stats()["x509"] == 1
    assert found == ["system"]
    tls_context.__globals__["_tls_context"].cache_clear()


@pytest.mark.parametrize("name", PROXY_VARIABLES)
@pytest.mark.parametrize(
    "value",
    [
        "http://[::1",
        "ftp://proxy:1",
        "http://",
        "http://proxy:port",
        "http://proxy:99999",
        "not a url",
        "http://a\x00b",
    ],
)
def test_a_proxy_that_is_not_a_url_names_its_variable(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, name: value})  # putenv refuses a NUL
    with pytest.raises(UsageError, match=f"^{name} is ") as caught:
        client_options(httpx.AsyncHTTPTransport)
    assert name in caught.value.remedy


def test_the_password_of_a_proxy_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy:port")
    with pytest.raises(UsageError) as caught:
        environment_proxies()
    assert "secret" not in str(caught.value)
    assert "proxy:port" in caught.value.cause


@pytest.mark.parametrize(
    "value", ["socks5://127.0.0.1:9", "socks5h://u:p@127.0.0.1:9", "socks://127.0.0.1:9/", "127.0.0.1:9", "https://p:9"]
)
def test_clients_of_both_libraries_take_each_kind_of_proxy(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    httpx.AsyncClient(**client_options(httpx.AsyncHTTPTransport))
    httpx2.Client(**client_options(httpx2.HTTPTransport)).close()


@pytest.mark.parametrize(
    "value", ["[::1]", "::1", "10.0.0.0/8", "foo:bar", "http://a b", "*.x.y", "a,,b", ".corp", "[", "localhost:80", " "]
)
async def test_no_entry_of_no_proxy_ends_a_request(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", f"{value},example.org")
    with HubServer() as hub:
        async with async_http_client(5.0) as http:  # this machine is reached without the proxy
            assert (await http.get(f"{hub.url}/nothing")).status_code == 404
    assert environment_proxies()["all://*example.org"] is None


def test_a_star_in_no_proxy_turns_all_proxies_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "not a url")
    monkeypatch.setenv("NO_PROXY", "a.b, *")
    assert environment_proxies() == {}
