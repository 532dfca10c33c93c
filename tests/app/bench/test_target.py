from __future__ import annotations

import pytest

from app.bench.target import address


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:11434/v1/", "http://127.0.0.1:11434"),
        ("https://host/base/v1", "https://host/base"),
        ("guide", None),
        ("./http.gguf", None),
        ("publisher/repo", None),
    ],
)
def test_an_address_is_told_from_a_model(text: str, url: str | None) -> None:
    assert address(text) == url
