from __future__ import annotations

from pathlib import Path

import pytest

from app.library.hub.access import HubAccess, hub_access_from_environment, unreachable_error
from quantizer.system.errors import UsageError


@pytest.mark.parametrize(
    ("url", "is_shown"),
    [
        ("https://hub.example/api/models", True),
        ("https://hub.example:443/a/b/resolve/main/file", True),
        ("https://HUB.example/", True),
        ("http://hub.example/", False),
        ("https://hub.example:8443/", False),
        ("https://cdn.hub.example/", False),
        ("https://hub.example.evil/", False),
        ("https://evil/hub.example", False),
        ("https://hub.example@evil/", False),
        ("no address", False),
    ],
)
def test_the_token_goes_to_the_hubs_own_origin_only(url: str, is_shown: bool) -> None:
    headers = HubAccess("https://hub.example", "secret").headers_for(url)
    assert headers == ({"Authorization": "Bearer secret"} if is_shown else {})


def test_names_with_signs_are_quoted() -> None:
    url = HubAccess("https://hub").file_url("a/b", "folder/c d#1?.gguf", "refs/pr/1")
    assert url == "https://hub/a/b/resolve/refs%2Fpr%2F1/folder/c%20d%231%3F.gguf"


def test_the_endpoint_of_the_environment_is_honoured() -> None:
    assert hub_access_from_environment({"HF_ENDPOINT": "http://mirror:8080/"}).endpoint == "http://mirror:8080"
    assert hub_access_from_environment({}).endpoint == "https://huggingface.co"


@pytest.mark.parametrize("endpoint", ["mirror", "ftp://mirror", "https://", "http://a:b"])
def test_an_endpoint_that_is_no_web_address_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="HF_ENDPOINT"):
        hub_access_from_environment({"HF_ENDPOINT": endpoint})


@pytest.mark.parametrize("token", ["hf_gehéim", "hf_a\tb", "hf_\u202eab", "hf_a b\x7f"])
@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_a_token_that_no_header_carries_names_its_variable_and_is_not_shown(
    name: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv(name, token)
    with pytest.raises(UsageError, match=f"^{name} has no token") as caught:
        hub_access_from_environment()
    assert token not in str(caught.value)


def test_newlines_around_a_token_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "\nhf_abc\r\n")
    assert hub_access_from_environment().token == "hf_abc"


def test_a_token_file_that_cannot_be_read_is_said_and_none_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder stands for a file of another user: tests may run as root, who reads everything."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path))
    access = hub_access_from_environment()
    assert access.token == ""
    assert str(tmp_path) in access.notice


def test_the_error_of_a_blocked_hub_names_a_mirror_and_the_import_of_files() -> None:
    error = unreachable_error("https://huggingface.co/api", "connection reset")
    assert "HF_ENDPOINT" in error.remedy
    assert "localllm import FILE" in error.remedy
    assert "HTTPS_PROXY" in error.remedy
