"""Vectors and ranks of texts by the client."""

from __future__ import annotations

import math
import struct

import httpx
import pytest

from app.client.service_client import ServiceClient
from app.protocol.errors import RequestError, ServiceError
from tests.app.running import RunningService


async def test_texts_get_vectors_of_length_1_in_their_order_and_long_ones_are_cut(service: RunningService) -> None:
    async with ServiceClient(service.url) as client:
        together = await client.embed(["hello", "x" * 300, "other"], "tiny")
        alone = [(await client.embed([text], "tiny"))[0] for text in ("hello", "x" * 300, "other")]
    vectors = [struct.unpack(f"<{len(vector) // 4}f", vector) for vector in together]
    assert [math.hypot(*vector) for vector in vectors] == pytest.approx([1.0] * 3)
    for vector, same in zip(vectors, alone, strict=True):
        assert vector == pytest.approx(struct.unpack(f"<{len(same) // 4}f", same), abs=1e-6)


async def test_an_unknown_model_is_an_error(service: RunningService) -> None:
    async with ServiceClient(service.url) as client:
        with pytest.raises(Exception, match="There is no model 'nobody-has-this'"):
            await client.embed(["hello"], "nobody-has-this")
        with pytest.raises(RequestError, match="cannot rank"):
            await client.rerank("hello", ["other"], "tiny")


async def test_documents_get_their_scores_in_their_own_order() -> None:
    """The service sends them best first (`Ranking` of its routes)."""
    results = [{"index": index, "relevance_score": score} for index, score in ((2, 4.0), (0, 1.5), (1, -3.0))]
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, json={"model": "m", "results": results}))
    async with ServiceClient("http://127.0.0.1:1", transport=transport) as client:
        assert await client.rerank("soup", ["broth", "bicycle", "rain"], "m") == [1.5, -3.0, 4.0]


async def test_an_answer_without_a_score_for_each_document_is_an_error() -> None:
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, json={"results": []}))
    async with ServiceClient("http://127.0.0.1:1", transport=transport) as client:
        with pytest.raises(ServiceError):
            await client.rerank("soup", ["broth"], "m")
