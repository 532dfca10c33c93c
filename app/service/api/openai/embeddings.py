"""Vectors and ranks: /v1/embeddings as OpenAI has it, /v1/rerank as Jina and llama-server have it.

Owns these bodies and answers. Knows nothing of pooling or of how texts are computed.
"""

from __future__ import annotations

import base64
import struct
from typing import Annotated, Any, Literal, NotRequired

from fastapi import APIRouter, Request, Response
from pydantic import Field, NonNegativeInt, StrictInt, StrictStr
from typing_extensions import TypedDict

from app.engine.protocol.messages import Embedded, Reranked
from app.service.api.app_state import model_of
from app.service.api.fields import Body, IdleSeconds
from app.service.http.body import read_body
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import JsonResponse, while_connected
from quantizer.errors import RequestError

__all__ = ["EMBEDS", "EmbeddingsBody", "Ranking", "RerankBody", "Vectors", "as_floats", "check_dimensions", "router"]

router = APIRouter()

MAX_INPUTS = 2048  # OpenAI's limit
_FLOAT32 = struct.Struct("<f")

TokenIds = Annotated[list[StrictInt], Field(min_length=1)]
Inputs = Annotated[list[StrictStr] | list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS)]


class EmbeddingsBody(Body):
    """One text, one list of token ids, or a list of either."""

    input: StrictStr | TokenIds | Inputs
    model: StrictStr = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    ttl: IdleSeconds | None = None

    def inputs(self) -> list[str | tuple[int, ...]]:
        given: Any = self.input
        is_one = isinstance(given, str) or isinstance(given[0], int)
        return [item if isinstance(item, str) else tuple(item) for item in ([given] if is_one else given)]


class RerankBody(Body):
    """`documents` to be ordered by how well they answer `query`; the best `top_n` are told, all without it."""

    query: StrictStr
    documents: Annotated[list[StrictStr], Field(min_length=1, max_length=MAX_INPUTS)]
    model: StrictStr = ""
    top_n: Annotated[int, Field(ge=0)] | None = None
    return_documents: bool = False


class _Vector(TypedDict):
    """The vector of one input: numbers, or their bytes as base64."""

    object: Literal["embedding"]
    index: NonNegativeInt
    embedding: list[float] | str


class _InputUsage(TypedDict):
    """What computing took, in tokens."""

    prompt_tokens: NonNegativeInt
    total_tokens: NonNegativeInt


class Vectors(TypedDict):
    """A vector for each input."""

    object: Literal["list"]
    data: list[_Vector]
    model: str
    usage: _InputUsage


class _Document(TypedDict):
    text: str


class _Rank(TypedDict):
    """How well a document answers; its text where that is wanted."""

    index: NonNegativeInt
    relevance_score: float
    document: NotRequired[_Document]


class Ranking(TypedDict):
    """The documents, best first."""

    model: str
    object: Literal["list"]
    usage: _InputUsage
    results: list[_Rank]


EMBEDS = takes(EmbeddingsBody) | gives(Vectors) | refuses(404)
_RANKS = takes(RerankBody) | gives(Ranking) | refuses(404)


@router.post("/v1/embeddings", openapi_extra=EMBEDS)
async def embeddings(request: Request) -> Response:
    """A vector of length 1 for each input."""
    body = await read_body(request, EmbeddingsBody)
    model = await model_of(request, body.model, body.ttl)

    async def answer() -> Response:
        return JsonResponse(_embeddings(await model.embed(body.inputs()), body, model.ref.id))

    return await while_connected(request, answer())


@router.post("/v1/rerank", openapi_extra=_RANKS)
@router.post("/rerank", openapi_extra=_RANKS)
async def rerank(request: Request) -> Response:
    """The documents' scores, the best first."""
    body = await read_body(request, RerankBody)
    model = await model_of(request, body.model)

    async def answer() -> Response:
        return JsonResponse(_ranking(await model.rerank(body.query, body.documents), body, model.ref.id))

    return await while_connected(request, answer())


def _embeddings(embedded: Embedded, body: EmbeddingsBody, model_id: str) -> Vectors:
    check_dimensions(embedded, body.dimensions)
    encode = _as_base64 if body.encoding_format == "base64" else as_floats
    data: list[_Vector] = [
        {"object": "embedding", "index": index, "embedding": encode(vector)}
        for index, vector in enumerate(embedded.vectors)
    ]
    return {"object": "list", "data": data, "model": model_id, "usage": _usage(embedded.n_tokens)}


def _ranking(ranked: Reranked, body: RerankBody, model_id: str) -> Ranking:
    best = sorted(range(len(ranked.scores)), key=lambda index: -ranked.scores[index])[: body.top_n]
    results: list[_Rank] = [{"index": index, "relevance_score": ranked.scores[index]} for index in best]
    if body.return_documents:
        results = [{**result, "document": {"text": body.documents[result["index"]]}} for result in results]
    return {"model": model_id, "object": "list", "usage": _usage(ranked.n_tokens), "results": results}


def check_dimensions(embedded: Embedded, wanted: int | None) -> None:
    """Raise RequestError unless the vectors have as many dimensions as were `wanted`."""
    n_dimensions = len(embedded.vectors[0]) // _FLOAT32.size
    if wanted not in (None, n_dimensions):
        cause = f"This model's embeddings have {n_dimensions} dimensions, and {wanted} were asked for."
        raise RequestError(cause, "Leave `dimensions` out: the file does not say that shorter vectors are any good.")


def as_floats(vector: bytes) -> list[float]:
    """Return the numbers of a vector."""
    return [value for (value,) in _FLOAT32.iter_unpack(vector)]


def _as_base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode()


def _usage(n_tokens: int) -> _InputUsage:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
