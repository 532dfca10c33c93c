from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.library.packages.index_settings import IndexSettings, index_settings
from quantizer.system.errors import UsageError

DEFAULT = "https://pypi.org/simple"


def _urls(settings: IndexSettings) -> list[str]:
    return [place.url for place in settings.places]


def _basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


B, C, U = "https://b.example/s", "https://c.example/s", "https://u.example/s"


@pytest.mark.parametrize(
    ("environment", "urls"),
    [
        ({}, [DEFAULT]),
        ({"PIP_INDEX_URL": B}, [B]),
        ({"PIP_EXTRA_INDEX_URL": f"{B} {C}"}, [DEFAULT, B, C]),
        ({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}, ["file:///wheels"]),
        ({"PIP_INDEX_URL": ""}, [DEFAULT]),
        ({"UV_DEFAULT_INDEX": U}, [U]),
        ({"UV_INDEX_URL": U, "PIP_INDEX_URL": B}, [B]),
        ({"UV_INDEX": f"one={B} {C}"}, [DEFAULT, B, C]),
        ({"UV_EXTRA_INDEX_URL": U, "UV_FIND_LINKS": "/x,/y"}, [DEFAULT, U, "file:///x", "file:///y"]),
        ({"UV_NO_INDEX": "true"}, []),
        ({"PIP_INDEX_URL": "http://127.0.0.1:1/simple"}, ["http://127.0.0.1:1/simple"]),
        ({"PIP_INDEX_URL": "http://a.example/s", "PIP_TRUSTED_HOST": "a.example"}, ["http://a.example/s"]),
        ({"PIP_EXTRA_INDEX_URL": f"{DEFAULT} {DEFAULT}"}, [DEFAULT]),
    ],
)
def test_the_environment_says_where_to_look(environment: Mapping[str, str], urls: list[str]) -> None:
    assert _urls(index_settings(environment, files=[])) == urls


def test_files_are_read_in_order_and_the_environment_wins(tmp_path: Path) -> None:
    machine, user, other = tmp_path / "a.conf", tmp_path / "b.conf", tmp_path / "c.conf"
    machine.write_text(f"[global]\nindex-url = {B}\ncert = /ca.pem\nextra_index_url = {C}\n")
    user.write_text(f"[global]\nindex-url = {U}\n[download]\nfind-links =\n  /one\n  /two\n[install]\nno-index = yes\n")
    other.write_text("[global]\nindex-url = https://chosen.example/s\n")
    files = [machine, user, tmp_path / "missing.conf"]
    settings = index_settings({}, files)
    assert _urls(settings) == [U, C, "file:///one", "file:///two"]
    assert settings.ca_file == "/ca.pem"
    assert _urls(index_settings({"PIP_CONFIG_FILE": str(other)}, files))[0] == "https://chosen.example/s"
    assert _urls(index_settings({"PIP_CONFIG_FILE": os.devnull}, files)) == [DEFAULT]
    assert _urls(index_settings({"PIP_INDEX_URL": "https://e.example/s"}, files))[0] == "https://e.example/s"


def test_uvs_file_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "uv.toml"
    path.write_text(
        'find-links = ["/wheels"]\n[[index]]\nname = "own-one"\nurl = "https://own.example/s"\ndefault = true\n'
        '[[index]]\nurl = "https://more.example/s"\n[pip]\nextra-index-url = ["https://pip.example/s"]\n'
    )
    environment = {"UV_INDEX_OWN_ONE_USERNAME": "me", "UV_INDEX_OWN_ONE_PASSWORD": "p@ss:w"}
    settings = index_settings(environment, [path])
    assert _urls(settings) == [
        "https://own.example/s",
        "https://more.example/s",
        "https://pip.example/s",
        "file:///wheels",
    ]
    assert settings.places[0].authorization == _basic("me:p@ss:w")


def test_logins_leave_the_address_for_a_header(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine n.example login you password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    urls = "https://me:p%40ss@a.example:8443/s https://token@b.example/s https://n.example/s https://c.example/s"
    environment = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": urls.split()[0], "NETRC": str(tmp_path / "netrc")}
    settings = index_settings(environment | {"PIP_EXTRA_INDEX_URL": " ".join(urls.split()[1:])}, [])
    assert [(place.url, place.authorization) for place in settings.places] == [
        ("https://a.example:8443/s", _basic("me:p@ss")),
        ("https://b.example/s", _basic("token:")),
        ("https://n.example/s", _basic("you:secret")),
        ("https://c.example/s", ""),
    ]
    assert "p@ss" not in repr(settings)
    assert _basic("me:p@ss") not in repr(settings)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"PIP_INDEX_URL": "http://a.example/s"}, "not encrypted.*trusted-host to a.example"),
        ({"PIP_INDEX_URL": "ftp://me:pw@a.example/s"}, "ftp://a.example/s is not the address"),
        ({"PIP_INDEX_URL": "https://me:pw@[::bad/s"}, "invalid"),
        ({"PIP_INDEX_URL": "https://me:pw@a.example:port/s"}, "invalid"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_login(
    environment: Mapping[str, str], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        index_settings(environment, files=[])
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pip.conf", b"index-url = https://a.example"),
        ("pip.conf", b"[global]\n\xff\xfe"),
        ("uv.toml", b"[[index]\n"),
        ("uv.toml", b"index = 3"),
        ("uv.toml", b'index = ["https://a.example"]'),
        ("uv.toml", b"[[index]]\nname = 'a'"),
        ("uv.toml", b"extra-index-url = [3]"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=name):
        index_settings({}, [tmp_path / name])
