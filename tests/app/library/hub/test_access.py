from __future__ import annotations

import pytest

from app.library.hub.access import HubAccess, hub_access_from_environment
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
