"""What knowledge needs of models: vectors of texts, and the order of passages for a question. `app.client` implements
it over the service.

Owns how the families of embedding models want questions and passages to be marked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias


class TextModels(Protocol):
    """Models of a service by their names, loaded where needed. Each method raises UserError."""

    async def embed(self, texts: Sequence[str], model: str) -> list[bytes]:
        """Return the vector of each text, of length 1, as little-endian float32; what is too long is cut."""

    async def rerank(self, query: str, documents: Sequence[str], model: str) -> list[float]:
        """Return how well each document answers `query`; higher is better."""


Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[TextModels]]


@dataclass(frozen=True, slots=True)
class EmbedderIdentity:
    """An embedding model: its name in the library, and the size of its files, which tells another one of that name."""

    model: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class _Marks:
    """What precedes a question and a passage."""

    question: str = ""
    passage: str = ""


_RETRIEVAL = "Represent this sentence for searching relevant passages: "
# Sources: the model cards of nomic-ai/nomic-embed-text-v1.5, google/embeddinggemma-300m, intfloat/multilingual-e5-base,
# Snowflake/snowflake-arctic-embed-l-v2.0 and -m-v1.5, BAAI/bge-base-en-v1.5, mixedbread-ai/mxbai-embed-large-v1,
# Qwen/Qwen3-Embedding-0.6B. all-MiniLM, GTE, BGE-M3 and Jina want none.
_MARKS = tuple(
    (re.compile(pattern, re.IGNORECASE), marks)
    for pattern, marks in (
        ("nomic-embed", _Marks("search_query: ", "search_document: ")),
        ("embedding-?gemma", _Marks("task: search result | query: ", "title: none | text: ")),
        (r"(^|[/\-_])e5-", _Marks("query: ", "passage: ")),
        ("arctic-embed.*v2", _Marks("query: ")),
        ("arctic-embed|bge-.*-en|mxbai-embed", _Marks(_RETRIEVAL)),
        (
            "qwen3-embedding",
            _Marks("Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"),
        ),
    )
)


def marked_question(question: str, model: str) -> str:
    return f"{_marks_of(model).question}{question}"


def marked_passage(text: str, model: str) -> str:
    return f"{_marks_of(model).passage}{text}"


def _marks_of(model: str) -> _Marks:
    return next((marks for pattern, marks in _MARKS if pattern.search(model)), _Marks())
