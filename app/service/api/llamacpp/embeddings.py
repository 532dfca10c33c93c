"""llama-server's /embedding and /embeddings: vectors of texts in a list.

Owns this form, and that a body of OpenAI's gets OpenAI's answer: clients that were given no /v1 send it to /embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from fastapi import Request
from pydantic import Field, NonNegativeInt, StrictInt, StrictStr
from typing_extensions import TypedDict

from app.protocol.errors import RequestError
from app.service.api.app_state import model_of
from app.service.api.fields import Body, TtlBody
from app.service.api.openai.embeddings import (
    MAX_INPUTS,
    EmbeddingList,
    EmbeddingsBody,
    as_floats,
    embeddings,
)
from app.service.http.openapi import errors
from app.service.http.routing import Router
from app.service.http.streaming import JsonResponse, while_connected

router = Router()

_EUCLIDEAN = 2
_MOST_NORM = 100
_INT16_SCALE = 32760.0  # of the greatest number, where vectors are to fit into 16 bits

TokenIds = Annotated[list[StrictInt], Field(min_length=1)]
Contents = StrictStr | TokenIds | Annotated[list[StrictStr | TokenIds], Field(min_length=1, max_length=MAX_INPUTS)]


class EmbeddingBody(Body):
    """`content`, or OpenAI's `input`: a text, token ids, or a list of either.

    `embd_normalize` is the norm by which vectors are divided: 0 the greatest number, 1 the sum, 2 the length, or p.
    """

    content: Contents | None = None
    input: Contents | None = None
    model: StrictStr = ""
    embd_normalize: Annotated[StrictInt, Field(ge=-1, le=_MOST_NORM)] = _EUCLIDEAN

    def inputs(self) -> list[str | tuple[int, ...]]:
        """Return the texts. Raises RequestError where there are none."""
        value: Any = self.input if self.content is None else self.content
        if value is None:
            raise RequestError("There is no content.", "Send the text as `content`.")
        is_one = isinstance(value, str) or isinstance(value[0], int)
        return [item if isinstance(item, str) else tuple(item) for item in ([value] if is_one else value)]


class EmbeddingsOfEitherBody(EmbeddingBody, TtlBody):
    """The body of /embeddings, with OpenAI's fields."""

    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None

    def in_openai_form(self) -> EmbeddingsBody:
        """Return the body of /v1/embeddings with the same fields."""
        names = ("input", "model", "encoding_format", "dimensions", "ttl")
        return EmbeddingsBody.model_construct(**{name: getattr(self, name) for name in names})


class LlamaCppEmbedding(TypedDict):
    """The vectors of one text: one, as llama-server gives it for every pooling but "none"."""

    index: NonNegativeInt
    embedding: list[list[float]]


@router.post("/embedding", openapi_extra=errors(404))
async def embedding(request: Request, body: EmbeddingBody) -> JsonResponse[list[LlamaCppEmbedding]]:
    """A vector for each text, in llama-server's form."""
    inputs, norm = body.inputs(), body.embd_normalize
    if norm < 0:
        raise RequestError("embd_normalize is -1, but vectors have the length 1.", "Leave it out, or use 0, 1 or 2.")
    model = await model_of(request, body.model, task="vectors")

    async def answer() -> JsonResponse[list[LlamaCppEmbedding]]:
        vectors = [_normalized(as_floats(vector), norm) for vector in (await model.embed(inputs)).vectors]
        return JsonResponse([{"index": index, "embedding": [vector]} for index, vector in enumerate(vectors)])

    return await while_connected(request, answer())


@router.post("/embeddings", openapi_extra=errors(404))
async def embeddings_of_either(
    request: Request, body: EmbeddingsOfEitherBody
) -> JsonResponse[EmbeddingList | list[LlamaCppEmbedding]]:
    """Vectors in the form of the body: llama-server's for `content`, OpenAI's for `input`."""
    is_openai = body.input is not None and body.content is None
    answer = await (embeddings(request, body.in_openai_form()) if is_openai else embedding(request, body))
    return cast("JsonResponse[EmbeddingList | list[LlamaCppEmbedding]]", answer)


_NORMS: Mapping[int, Callable[[Sequence[float]], float]] = {
    0: lambda vector: max(map(abs, vector)) / _INT16_SCALE,
    1: lambda vector: math.fsum(map(abs, vector)),
}


def _normalized(vector: list[float], norm: int) -> list[float]:
    """Return `vector`, whose length is 1, divided by another norm (source: llama-server's README, `embd_normalize`)."""
    if norm == _EUCLIDEAN:
        return vector
    size = _NORMS[norm](vector) if norm in _NORMS else math.fsum(abs(value) ** norm for value in vector) ** (1 / norm)
    return [value / size if size else 0.0 for value in vector]
