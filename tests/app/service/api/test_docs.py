from __future__ import annotations

import re
from typing import Any

from app.service.api.docs import page
from tests.app.running import RunningService


def _document(service: RunningService) -> dict[str, Any]:
    return dict(service.http.get("/openapi.json").json())


def test_every_body_is_in_the_document(service: RunningService) -> None:
    document = _document(service)
    jobs = "/api/localllm/jobs/{job_id}"
    without = {
        "/api/push",
        f"{jobs}/cancel",
        f"{jobs}/retry",
        "/v1/responses/{response_id}/cancel",
        *(f"{version}/batches/{{batch_id}}/cancel" for version in ("", "/v1")),
        "/api/localllm/requests/{response_id}/end-thought",
        "/api/localllm/metered-keys",
        "/lora-adapters",
        "/props",
        "/slots/{slot_id}",
    }  # the first and the last three are refused, the others need none
    posts = {path: operations["post"] for path, operations in document["paths"].items() if "post" in operations}
    assert len(posts) > 25
    assert {path for path, operation in posts.items() if "requestBody" not in operation} == without
    for operation in posts.values():
        assert operation["summary"].endswith((".", ";"))


def test_every_reference_in_the_document_leads_somewhere(service: RunningService) -> None:
    response = service.http.get("/openapi.json")
    schemas = response.json()["components"]["schemas"]
    names = set(re.findall(r"#/components/schemas/([^\"]+)", response.text))
    assert names
    assert names <= set(schemas)


def test_the_page_loads_nothing(service: RunningService) -> None:
    response = service.http.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert not re.search(r"<script|<link|<img|https?:|@import|url\(", response.text)
    assert "POST /v1/chat/completions" in response.text
    assert "<code>messages</code> *" in response.text
    assert "<code>choices</code> *" in response.text
    assert "Errors <code>400</code>, <code>401</code>" in response.text


def test_the_page_escapes_the_document() -> None:
    operation = {"summary": "<script>", "responses": {}}
    document = {"info": {"title": "a", "version": "1"}, "paths": {"/<b>": {"get": operation}}, "components": {}}
    assert "<script>" not in page(document)
    assert "/&lt;b&gt;" in page(document)
