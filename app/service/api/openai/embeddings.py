"""Embeddings and reranking: /v1/embeddings as OpenAI has it, /v1/rerank as Jina and llama-server have it."""

from __future__ import annotations

import base64
import struct
from typing import Annotated, Any, Literal, NotRequired

from fastapi import Request
from pydantic import Field, NonNegativeInt, StrictInt, StrictStr
from typing_extensions import TypedDict

from app.engine.messages import Embedded, Reranked
from app.protocol.errors import RequestError
from app.service.api.app_state import model_of
from app.service.api.fields import Body, TtlBody
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse, while_connected

router = Router()

MAX_INPUTS = 2048  # OpenAI's limit
_FLOAT32 = struct.Struct("<f")

TokenIds = Annotated[list[StrictInt], Field(min_length=1)]
Documents = Annotated[list[StrictStr], Field(min_length=1, max_length=MAX_INPUTS)]
Inputs = Annotated[list[StrictStr] | list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS)]


class EmbeddingsBody(TtlBody):
    """One text, one list of token ids, or a list of either."""

    input: StrictStr | TokenIds | Inputs
    model: StrictStr = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None

    def inputs(self) -> list[str | tuple[int, ...]]:
        value: Any = self.input
        is_one = isinstance(value, str) or isinstance(value[0], int)
        return [item if isinstance(item, str) else tuple(item) for item in ([value] if is_one else value)]


class RerankBody(Body):
    """`documents` to be ordered by how well they answer `query`; the best `top_n` are returned, all without it.

    With `texts` instead, which the Text Embeddings Inference API has, the answer is in its form too.
    """

    query: StrictStr
    documents: Documents | None = None
    texts: Documents | None = None
    model: StrictStr = ""
    top_n: Annotated[int, Field(ge=0)] | None = None
    return_documents: bool = False
    return_text: bool = False

    def ranked(self) -> list[str]:
        """Return the documents. Raises RequestError where there are none."""
        documents = self.texts or self.documents
        if not documents:
            raise RequestError("There are no documents.", "Send the texts to be ordered as `documents`.")
        return documents


class _Embedding(TypedDict):
    """The vector of one input: numbers, or their bytes as base64."""

    object: Literal["embedding"]
    index: NonNegativeInt
    embedding: list[float] | str


class _InputUsage(TypedDict):
    """The cost in tokens."""

    prompt_tokens: NonNegativeInt
    total_tokens: NonNegativeInt


class EmbeddingList(TypedDict):
    """A vector for each input."""

    object: Literal["list"]
    data: list[_Embedding]
    model: str
    usage: _InputUsage


class _Document(TypedDict):
    text: str


class _Rank(TypedDict):
    """The score of a document; its text where that is wanted."""

    index: NonNegativeInt
    relevance_score: float
    document: NotRequired[_Document]


class TextRank(TypedDict):
    """The score of a text; the text itself where that is wanted (source: llama-server's `format_response_rerank`)."""

    index: NonNegativeInt
    score: float
    text: NotRequired[str]


class Ranking(TypedDict):
    """The documents, best first."""

    model: str
    object: Literal["list"]
    usage: _InputUsage
    results: list[_Rank]


@router.post("/v1/embeddings", openapi_extra=errors(404))
async def embeddings(request: Request, body: EmbeddingsBody) -> JsonResponse[EmbeddingList]:
    """A vector of length 1 for each input."""
    model = await model_of(request, body.model, body.idle_limit, task="vectors")
    is_base64 = body.encoding_format == "base64"

    async def answer() -> JsonResponse[EmbeddingList]:
        embedded = await model.embed(body.inputs())
        check_dimensions(embedded, body.dimensions)
        data: list[_Embedding] = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(vector).decode() if is_base64 else as_floats(vector),
            }
            for index, vector in enumerate(embedded.vectors)
        ]
        return JsonResponse({"object": "list", "data": data, "model": model.ref.id, "usage": _usage(embedded.n_tokens)})

    return await while_connected(request, answer())


@router.post("/v1/rerank", openapi_extra=errors(404))
@router.post("/v1/reranking", openapi_extra=errors(404))
@router.post("/rerank", openapi_extra=errors(404))
@router.post("/reranking", openapi_extra=errors(404))
async def rerank(request: Request, body: RerankBody) -> JsonResponse[Ranking | list[TextRank]]:
    """The documents' scores, the best first."""
    documents = body.ranked()
    model = await model_of(request, body.model, task="ranking")

    async def answer() -> JsonResponse[Ranking | list[TextRank]]:
        ranked = await model.rerank(body.query, documents)
        return JsonResponse(_text_ranks(ranked, body) if body.texts else _ranking(ranked, body, model.ref.id))

    return await while_connected(request, answer())


def _best(ranked: Reranked, body: RerankBody) -> list[int]:
    return sorted(range(len(ranked.scores)), key=lambda index: -ranked.scores[index])[: body.top_n]


def _text_ranks(ranked: Reranked, body: RerankBody) -> list[TextRank]:
    ranks: list[TextRank] = [{"index": index, "score": ranked.scores[index]} for index in _best(ranked, body)]
    return [{**rank, "text": body.ranked()[rank["index"]]} for rank in ranks] if body.return_text else ranks


def _ranking(ranked: Reranked, body: RerankBody, model_id: str) -> Ranking:
    best = _best(ranked, body)
    results: list[_Rank] = [{"index": index, "relevance_score": ranked.scores[index]} for index in best]
    if body.return_documents:
        results = [{**result, "document": {"text": body.ranked()[result["index"]]}} for result in results]
    return {"model": model_id, "object": "list", "usage": _usage(ranked.n_tokens), "results": results}


def check_dimensions(embedded: Embedded, wanted: int | None) -> None:
    """Raise RequestError unless the vectors have `wanted` dimensions, or any where that is None."""
    n_dimensions = len(embedded.vectors[0]) // _FLOAT32.size
    if wanted not in (None, n_dimensions):
        cause = f"This model's embeddings have {n_dimensions} dimensions, not {wanted}."
        raise RequestError(cause, "Leave `dimensions` out: the model is not known to support shorter vectors.")


def as_floats(vector: bytes) -> list[float]:
    """Return the numbers of a vector."""
    return [value for (value,) in _FLOAT32.iter_unpack(vector)]


def _usage(n_tokens: int) -> _InputUsage:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
