"""The list of models in the forms of OpenAI's, llama.cpp's and Anthropic's clients, at each address they ask."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from app.protocol.errors import RequestError
from app.service.api.openai.models import Page, anthropic_model, model_page
from tests.app.running import RunningService
from tests.app.service.api import sdk

# What Anthropic's clients send with every request (its SDK for Python 0.7x, and Claude Code 2.1 with `limit=1000`).
ANTHROPIC = {"anthropic-version": "2023-06-01", "x-api-key": "none"}
MODELS = [anthropic_model(name, 0, None) for name in "abcdefg"]


def _ids(**page: Any) -> tuple[str, bool]:
    listed = model_page(MODELS, Page(**page))
    return "".join(model["id"] for model in listed["data"]), listed["has_more"]


def test_an_anthropic_client_gets_its_list(service: RunningService) -> None:
    listed = service.http.get("/v1/models?limit=1000", headers=ANTHROPIC).json()
    ids = [model["id"] for model in listed["data"]]
    assert "tiny" in ids
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (ids[0], ids[-1], False)
    tiny = next(model for model in listed["data"] if model["id"] == "tiny")
    assert (tiny["type"], tiny["display_name"], tiny["max_input_tokens"]) == ("model", "tiny", 4096)
    assert datetime.fromisoformat(tiny["created_at"]).year >= 2024
    assert service.http.get("/v1/models/tiny", headers=ANTHROPIC).json() == tiny


def test_anthropics_own_client_lists_and_finds_models(service: RunningService) -> None:
    with sdk.anthropic.Anthropic(base_url=service.url, api_key="none") as client:
        assert "tiny" in [model.id for model in client.models.list(limit=1)], "a page each"
        assert client.models.retrieve("tiny").display_name == "tiny"
        with pytest.raises(sdk.anthropic.NotFoundError, match="nope"):
            client.models.retrieve("nope")


def test_errors_are_in_the_form_of_the_client(service: RunningService) -> None:
    theirs = service.http.get("/v1/models/nope", headers=ANTHROPIC)
    assert (theirs.status_code, theirs.json()["error"]["type"]) == (404, "not_found_error")
    refused = service.http.get("/v1/models", headers=ANTHROPIC | {"origin": "https://evil.example"})
    assert refused.json()["type"] == "error"
    others = service.http.get("/v1/models/nope")
    assert (others.status_code, others.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "limit=-1", "after_id=nope", "before_id=nope"])
def test_a_page_that_cannot_be_is_refused(service: RunningService, query: str) -> None:
    response = service.http.get(f"/v1/models?{query}", headers=ANTHROPIC)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert service.http.get(f"/v1/models?{query}").status_code == 200, "others have no pages"


def test_pages_follow_one_another_in_both_directions() -> None:
    assert _ids() == ("abcdefg", False)
    assert _ids(limit=3) == ("abc", True)
    assert _ids(limit=3, after_id="c") == ("def", True)
    assert _ids(limit=3, after_id="f") == ("g", False)
    assert _ids(limit=3, after_id="g") == ("", False)
    assert _ids(limit=3, before_id="g") == ("def", True)
    assert _ids(limit=3, before_id="d") == ("abc", False)
    with pytest.raises(RequestError, match="'z'"):
        _ids(after_id="z")
    assert model_page([], Page()) == {"data": [], "first_id": None, "last_id": None, "has_more": False}


def test_models_have_the_same_address_without_a_version(service: RunningService) -> None:
    """Continue 1.3 with `provider: llama.cpp` asks http://localhost:8000/models."""
    assert service.http.get("/models").json() == service.http.get("/v1/models").json()
    assert service.http.get("/models/tiny").json() == service.http.get("/v1/models/tiny").json()
