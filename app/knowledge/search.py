"""Passages for a question: by words (bm25), by meaning (the cosine of vectors), both fused by reciprocal rank, and
ordered anew by a reranker where one is named.

Owns the FTS5 expression of a question, the search through all vectors, and what is said when a part of it is missing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from app.common.terminal import counted, printable_line
from app.knowledge.citation import has_changed
from app.knowledge.models import Connect, EmbedderIdentity, TextModels, marked_question
from app.knowledge.store import KnowledgeStore, StoredPassage
from app.protocol.chat import Source
from quantizer.system.errors import UsageError, UserError

MAX_QUERY_CHARACTERS = 2_000
_MAX_TERMS = 64
CANDIDATES = 50  # of each search
_RERANKED = 20
# Chosen by `tests/bench/knowledge/recall.py`: what words alone find has often a common word by chance, and passages of
# one long file crowd out the file that answers. Weights from 1.5 to 3 and shares from 0.7 to 0.9 find as much.
_MEANING_WEIGHT = 2.0  # beside 1 of words
_NEXT_OF_FILE = 0.8  # of its score counts, for each better passage of the same file
_RANK_CONSTANT = 60  # Cormack, Clarke and Büttcher 2009, "Reciprocal rank fusion outperforms Condorcet …"
_WEIGHTS = (2.0, 2.0, 1.0)  # of the words in the name of a file, its headings, and the text
# Words that nearly every passage has: scoring those passages costs time and finds nothing.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by can do does for from how i if in into is it its my of on or that the there this to"
        " was what when where which who why will with you your",
    )
)

# What a question begins with that goes on from the one before, and words for what was named there. A pronoun behind
# more words than these means one of them ("a directory with everything in it").
_GOES_ON = re.compile(r"\s*(and|or|but|then|also|what about|how about|what if)\b", re.IGNORECASE)
_REFERS = re.compile(
    r"\b(it|its|they|them|their|there|those|these|this|one|again|too|instead|that(?=\W*$))\b", re.IGNORECASE
)
_N_BEFORE_PRONOUN = 2


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found. `score` orders the hits; the ranks are those of both searches, from 1 on, None where
    one did not find it. `has_changed` tells that its file is no longer as it was read."""

    passage: StoredPassage
    score: float
    word_rank: int | None = None
    vector_rank: int | None = None
    has_changed: bool = False

    @property
    def source(self) -> Source:
        """The passage as an answer that it is given for cites it."""
        passage = self.passage.passage
        path = str(self.passage.path)
        return Source(path, passage.text, passage.begin, passage.end, passage.page, passage.heading)

    @property
    def place(self) -> str:
        """Where the passage is from, to be cited: "/home/me/soup.pdf, page 3 (Methods > Broth)"."""
        changed = " [changed since it was read]" if self.has_changed else ""
        return f"{printable_line(self.source.place)}{changed}"


@dataclass(frozen=True, slots=True)
class Found:
    """The hits, best first, and sentences about what was missing for a better search."""

    hits: tuple[Hit, ...]
    notices: tuple[str, ...] = ()


def word_expression(question: str) -> str:
    """Return the FTS5 expression for passages with any of the words of `question`, "" without a word."""
    words = _words(question)
    terms = _telling(words) or words
    return " OR ".join(f'"{term}"' for term in terms[:_MAX_TERMS])


def _words(text: str) -> list[str]:
    """Return the words of `text`, each once."""
    return list(dict.fromkeys(re.findall(r"\w+", text.lower())))


def _telling(words: Sequence[str]) -> list[str]:
    """Return those of `words` that not every passage has."""
    return [word for word in words if word not in _COMMON]


def searched_words(questions: Sequence[str]) -> str:
    """Return what is searched for the last of a chat's `questions`: its words, and behind them those of the questions
    that it goes on from, up to one that stands alone ("how do I read a CSV file?", "and write one?"). English only.

    `tests/bench/knowledge/follow_ups.py` has what it finds more, and that a change of the subject loses nothing.
    """
    words: list[str] = []
    for question in reversed(questions):
        words.append(question)
        pronoun = _REFERS.search(question)
        refers = pronoun is not None and len(_telling(_words(question[: pronoun.start()]))) <= _N_BEFORE_PRONOUN
        if not (refers or _GOES_ON.match(question)):
            break
    return " ".join(words)[:MAX_QUERY_CHARACTERS]


def fused(*rankings: tuple[float, Sequence[int]]) -> dict[int, float]:
    """Return the score of each id by its ranks in weighted rankings: the sum of weight / (60 + rank), best first."""
    scores: dict[int, float] = {}
    for weight, ranking in rankings:
        for rank, passage_id in enumerate(ranking, start=1):
            scores[passage_id] = scores.get(passage_id, 0.0) + weight / (_RANK_CONSTANT + rank)
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


async def search(
    data_dir: Path, question: str, models: TextModels | None = None, *, limit: int = 5, reranker: str = ""
) -> Found:
    """Return up to `limit` passages for `question`. Without `models`, and where they fail, words alone decide, which is
    said. Raises UsageError for a question without words and where no folder was added, StorageError."""
    question = question[:MAX_QUERY_CHARACTERS].strip()
    if not re.search(r"\w", question):
        raise UsageError("There are no words to search for.", "Ask a question, or give a few words.")
    embedder = await asyncio.to_thread(_embedder, data_dir)
    vector, notices = b"", []
    if embedder is None:
        notices.append("Found by words alone: no embedding model has read the folders (`localllm help knowledge`).")
    elif models is None:
        notices.append("Found by words alone: the embedding model cannot be reached.")
    else:
        try:
            (vector,) = await models.embed([marked_question(question, embedder.model)], embedder.model)
        except UserError as error:
            notices.append(f"Found by words alone: {error.cause}")

    def find() -> tuple[list[Hit], int]:
        with KnowledgeStore(data_dir) as store:
            n_without_vector = store.n_without_vector() if vector else 0
            return find_hits(store, question, vector, max(limit, _RERANKED)), n_without_vector

    hits, n_without_vector = await asyncio.to_thread(find)
    if vector and n_without_vector:
        waiting = counted(n_without_vector, "passage")
        notices.append(f"{waiting} without a vector, found by words alone: `localllm knowledge update` goes on.")
    if models is not None and reranker and len(hits) > 1:
        try:
            scores = await models.rerank(question, [hit.passage.passage.text for hit in hits], reranker)
            rated = [replace(hit, score=score) for hit, score in zip(hits, scores, strict=True)]
            hits = sorted(rated, key=lambda hit: -hit.score)
        except UserError as error:
            notices.append(f"Not reranked: {error.cause}")
    checked = await asyncio.to_thread(lambda: tuple(map(_checked, hits[:limit])))
    return Found(checked, tuple(notices))


async def connected_search(
    data_dir: Path, question: str, connect: Connect | None, *, limit: int = 5, reranker: str = ""
) -> Found:
    """Search with the models to which `connect` leads; by words alone, which is said, where it leads to none. Raises as
    `search`."""
    async with AsyncExitStack() as stack:
        models: TextModels | None = None
        if connect is not None:
            with suppress(UserError):  # no service runs
                models = await stack.enter_async_context(connect())
        return await search(data_dir, question, models, limit=limit, reranker=reranker)


def _embedder(data_dir: Path) -> EmbedderIdentity | None:
    with KnowledgeStore(data_dir) as store:
        if not store.folders():
            raise UsageError("No folder was added as knowledge.", "`localllm knowledge add FOLDER` adds one.")
        return store.embedder()


def find_hits(store: KnowledgeStore, question: str, vector: bytes, limit: int) -> list[Hit]:
    """Return the hits for a question, best first, no text twice; by words alone where its `vector` is empty."""
    by_words = ranked_by_words(store, question, CANDIDATES)
    by_meaning = ranked_by_meaning(store, vector, CANDIDATES) if vector else []
    scores = fused((1.0, by_words), (_MEANING_WEIGHT, by_meaning))
    word_ranks = {passage_id: rank for rank, passage_id in enumerate(by_words, start=1)}
    vector_ranks = {passage_id: rank for rank, passage_id in enumerate(by_meaning, start=1)}
    hits: dict[str, Hit] = {}
    n_of_file: dict[Path, int] = {}
    for passage_id, passage in store.passages(scores).items():
        if passage.passage.text in hits:
            continue
        n_better = n_of_file[passage.path] = n_of_file.get(passage.path, -1) + 1
        score = scores[passage_id] * _NEXT_OF_FILE**n_better
        hits[passage.passage.text] = Hit(passage, score, word_ranks.get(passage_id), vector_ranks.get(passage_id))
    return sorted(hits.values(), key=lambda hit: -hit.score)[:limit]


def ranked_by_words(store: KnowledgeStore, question: str, limit: int) -> list[int]:
    """Return the ids of the passages with words of `question`, best first by bm25."""
    expression = word_expression(question)
    return store.with_words(expression, _WEIGHTS, limit) if expression else []


def ranked_by_meaning(store: KnowledgeStore, vector: bytes, limit: int) -> list[int]:
    """Return the ids of the passages whose vectors have the largest product with `vector`, best first: the cosine,
    since all have length 1. Each vector is compared: 10,000 of 384 dimensions take less than 0.1 s."""
    import numpy as np  # no face needs it before

    sought = np.frombuffer(vector, "<f4")
    best_ids, best_scores = np.empty(0, np.int64), np.empty(0, np.float32)
    for ids, data in store.vectors():
        matrix = np.frombuffer(data, "<f4")
        if matrix.size != len(ids) * sought.size:
            continue  # of an embedder that has been exchanged meanwhile
        all_scores = np.concatenate((best_scores, matrix.reshape(len(ids), sought.size) @ sought))
        all_ids = np.concatenate((best_ids, np.asarray(ids, np.int64)))
        order = np.argsort(-all_scores, kind="stable")[:limit]
        best_ids, best_scores = all_ids[order], all_scores[order]
    return [int(passage_id) for passage_id in best_ids]


def _checked(hit: Hit) -> Hit:
    """Return a hit that knows whether its file is as it was read."""
    return replace(hit, has_changed=has_changed(hit.passage.path, hit.passage.n_bytes, hit.passage.mtime_ns))
