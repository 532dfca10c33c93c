"""Embeddings and ranking: the interface of a model that turns texts into vectors, and the queue of texts for it.

Two implementations ship: `app.engine.llama`, with a context of its own beside that of the answers, and
`app.engine.fake`. The queue computes one batch of waiting texts between the steps of running answers: calls take turns
by the text, and a long text is computed in chunks where the model allows that. Independent of native code and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Backend, Chunk
from app.engine.messages import Embed, Embedded, Failed, Rerank, Reranked
from app.protocol.errors import ContextOverflowError, RequestError
from quantizer.gguf.header import Header
from quantizer.system.errors import EngineError, ErrorInfo, UserError

MAX_VECTOR_BYTES = 8 << 20  # of one call; as JSON they are five times as much

Event = Embedded | Reranked | Failed
Vector = NDArray[np.float32]


class Pooling(IntEnum):
    """How the vectors of tokens become one; the values are llama.cpp's `llama_pooling_type`."""

    MEAN = 1
    CLS = 2  # the first token's
    LAST = 3
    RANK = 4  # a head that scores how well a document answers a query


@dataclass(frozen=True, slots=True)
class EmbedderFacts:
    """The sizes of an embedder: texts of at most `n_ctx` tokens, `n_batch` tokens of `n_sequences` texts at once.
    `n_dimensions` is the length of a vector; a ranker puts its score first. Without `can_split` a text must be computed
    as a whole, since its tokens attend to later ones."""

    n_ctx: int
    n_batch: int
    n_sequences: int
    n_dimensions: int
    pooling: Pooling
    can_split: bool


class Embedder(Protocol):
    """A model with a cache for unfinished texts. All calls come from one thread."""

    @property
    def facts(self) -> EmbedderFacts: ...

    def pair(self, query: str, document: str) -> list[int]:
        """Return the tokens of both in the form that the model was trained to rank."""

    def compute(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        """Compute `chunks` as one batch; return the pooled vector of each, shape (n_chunks, n_dimensions). Raises
        EngineError when the batch cannot be computed; then all unfinished texts are lost."""

    def set_threads(self, n_threads: int) -> None:
        """Compute with `n_threads` from the next batch on."""

    def forget(self, sequence_id: int) -> None:
        """Free the cells of an unfinished text."""

    def close(self) -> None: ...


def pooling_of(header: Header) -> Pooling:
    """Return the pooling of the model in this file by its metadata, the mean by default."""
    declared = header.integer(f"{header.architecture}.pooling_type") or 0
    return Pooling(declared) if declared in set(Pooling) else Pooling.MEAN


def pooled(pooling: Pooling, before: Vector, n_before: int, new: Vector, n_new: int) -> Vector:
    """Return the vector of `n_before` + `n_new` tokens from the pooled vectors of both parts."""
    if not n_before or pooling in (Pooling.LAST, Pooling.RANK):
        return new
    if pooling is Pooling.CLS:
        return before
    total = before * np.float32(n_before) + new * np.float32(n_new)
    return (total / np.float32(n_before + n_new)).astype(np.float32)


def normalized(vector: Vector) -> Vector:
    """Return `vector` with L2 norm 1; a zero vector is unchanged."""
    length = float(np.linalg.norm(vector))
    return vector if length == 0.0 else (vector / np.float32(length)).astype(np.float32)


@dataclass(slots=True, eq=False)
class _Call:
    """A request and its vectors so far, by the index of their text; the first `n_begun` texts were started.

    Of equal inputs one is computed: `texts` are the different ones, `places` says which of them each input is. What a
    text is computed beside changes its last digits, so equal ones would differ. `sizes` has the number of tokens of
    each begun text, and whether it was too long.
    """

    message: Embed | Rerank
    texts: Sequence[str | tuple[int, ...]]
    places: Sequence[int]
    n_begun: int = 0
    sizes: list[tuple[int, bool]] = field(default_factory=list)
    vectors: dict[int, Vector] = field(default_factory=dict)

    @classmethod
    def of(cls, message: Embed | Rerank) -> _Call:
        inputs = message.inputs if isinstance(message, Embed) else message.documents
        numbers = {text: number for number, text in enumerate(dict.fromkeys(inputs))}
        return cls(message, tuple(numbers), [numbers[text] for text in inputs])

    @property
    def n_tokens(self) -> int:
        return sum(self.sizes[place][0] for place in self.places)

    @property
    def n_cut(self) -> int:
        return sum(self.sizes[place][1] for place in self.places)


@dataclass(slots=True, eq=False)
class _Text:
    """Text number `index` of a call; `vector` pools the first `n_computed` of its tokens."""

    call: _Call
    index: int
    tokens: list[int]
    sequence_id: int
    n_computed: int = 0
    vector: Vector = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_computed

    def chunk(self, n_tokens: int) -> Chunk:
        end = self.n_computed + n_tokens
        return Chunk(self.sequence_id, self.n_computed, self.tokens[self.n_computed : end], n_tokens)


class EmbeddingQueue:
    """A queue of Embed and Rerank messages for an embedder that is made when it is first needed. Each submitted message
    ends with exactly one Embedded, Reranked or Failed, unless it is aborted."""

    def __init__(self, backend: Backend, new_embedder: Callable[[], Embedder], emit: Callable[[Event], None]) -> None:
        self._backend = backend
        self._new_embedder = new_embedder
        self._emit = emit
        self._made: Embedder | None = None
        self._n_threads = 0  # 0: those that the embedder is made with
        self._calls: list[_Call] = []  # the next one first
        self._carried: _Text | None = None  # unfinished, or too long for the rest of the last batch
        self._free_ids: list[int] = []

    def set_threads(self, n_threads: int) -> None:
        """Compute with `n_threads` from the next batch on, also with an embedder that is made later."""
        self._n_threads = n_threads
        if self._made is not None:
            self._made.set_threads(n_threads)

    @property
    def is_idle(self) -> bool:
        return not self._calls

    def submit(self, message: Embed | Rerank) -> None:
        """Queue `message`, or emit Failed when it is invalid."""
        try:
            self._check(message)
        except UserError as error:
            self._emit(Failed(message.call_id, ErrorInfo.of(error)))
            return
        self._calls.append(_Call.of(message))

    def abort(self, call_id: str) -> None:
        """Drop a call; nothing is emitted for it."""
        for call in [call for call in self._calls if call.message.call_id == call_id]:
            self._end(call)

    def step(self) -> None:
        """Compute one batch of the waiting texts."""
        batch = self._fill_batch()
        if not batch:
            return
        try:
            vectors = self._embedder.compute([text.chunk(n_tokens) for text, n_tokens in batch])
        except EngineError as error:
            for text, _ in batch:
                if text is not self._carried:  # that one is released with its call
                    self._release(text)
            for text, _ in batch:
                self._fail(text.call, error)
            return
        for (text, n_tokens), vector in zip(batch, vectors, strict=True):
            self._take(text, n_tokens, vector)

    def close(self) -> None:
        """Free the embedder; waiting calls get no result."""
        if self._made is not None:
            self._made.close()

    @property
    def _embedder(self) -> Embedder:
        if self._made is None:
            self._made = self._new_embedder()
            if self._n_threads:
                self._made.set_threads(self._n_threads)
            self._free_ids = list(range(self._made.facts.n_sequences))
        return self._made

    def _check(self, message: Embed | Rerank) -> None:
        facts = self._embedder.facts
        is_ranker = facts.pooling is Pooling.RANK
        if isinstance(message, Rerank) and not is_ranker:
            raise RequestError("This model cannot rank: it has no ranking head.", "Load a reranker model.")
        if isinstance(message, Embed) and is_ranker:
            raise RequestError("This model ranks documents and makes no embeddings.", "Use /v1/rerank with it.")
        n_max = MAX_VECTOR_BYTES // (4 * facts.n_dimensions)
        if isinstance(message, Embed) and len(message.inputs) > n_max:
            cause = f"{len(message.inputs)} inputs; a vector has {facts.n_dimensions} numbers."
            raise RequestError(cause, f"Send at most {n_max} at once.")

    # Filling a batch

    def _fill_batch(self) -> list[tuple[_Text, int]]:
        """Return texts and how many tokens of each to compute; one that does not fit is carried to the next batch."""
        batch: list[tuple[_Text, int]] = []
        n_left = self._embedder.facts.n_batch if self._calls else 0
        while n_left and (self._carried or self._free_ids) and (text := self._next_text()) is not None:
            n_tokens = min(text.n_pending, n_left)
            is_whole = n_tokens == text.n_pending
            if not is_whole:
                self._carried = text
                if not self._embedder.facts.can_split:
                    break
            batch.append((text, n_tokens))
            n_left -= n_tokens
        return batch

    def _next_text(self) -> _Text | None:
        if self._carried is not None:
            text, self._carried = self._carried, None
            return text
        while (call := next((call for call in self._calls if call.n_begun < len(call.texts)), None)) is not None:
            self._calls.remove(call)
            self._calls.append(call)  # the others come first next time
            try:
                return self._begin_text(call)
            except UserError as error:
                self._fail(call, error)
        return None

    def _begin_text(self, call: _Call) -> _Text:
        message, text = call.message, call.texts[call.n_begun]
        if isinstance(message, Rerank):
            tokens = self._embedder.pair(message.query, str(text))
        else:
            tokens = self._backend.tokenize(text, True, True) if isinstance(text, str) else list(text)
        if not tokens:
            raise RequestError("An input is empty.", "Give at least one token of text.")
        if any(not 0 <= token < self._backend.facts.n_vocab for token in tokens):
            raise RequestError("A token id of an input is not in the vocabulary.", "Tokenize with this model.")
        n_ctx = self._embedder.facts.n_ctx
        if is_cut := len(tokens) > n_ctx:
            if not (isinstance(message, Embed) and message.cuts):
                raise ContextOverflowError(len(tokens), n_ctx)
            around = self._backend.tokenize("", True, True)
            end = tokens[-1:] if around[-1:] == tokens[-1:] else []  # a token that ends every text of this model stays
            tokens = [*tokens[: n_ctx - len(end)], *end]
        call.n_begun += 1
        call.sizes.append((len(tokens), is_cut))
        return _Text(call, call.n_begun - 1, tokens, self._free_ids.pop())

    # Results of a batch

    def _take(self, text: _Text, n_tokens: int, vector: Vector) -> None:
        pooling = self._embedder.facts.pooling
        text.vector = pooled(pooling, text.vector, text.n_computed, vector, n_tokens)
        text.n_computed += n_tokens
        if text.n_pending:
            return
        self._release(text)
        text.call.vectors[text.index] = text.vector
        if len(text.call.vectors) == len(text.call.texts) and text.call in self._calls:
            self._finish(text.call)

    def _finish(self, call: _Call) -> None:
        vectors = [call.vectors[place] for place in call.places]
        if not all(np.isfinite(vector).all() for vector in vectors):
            self._fail(call, EngineError("The model's result is not a number.", "Download the model file again."))
            return
        self._end(call)
        if isinstance(call.message, Rerank):
            scores = tuple(float(vector[0]) for vector in vectors)
            self._emit(Reranked(call.message.call_id, scores, call.n_tokens))
        else:
            data = tuple(normalized(vector).astype("<f4").tobytes() for vector in vectors)
            self._emit(Embedded(call.message.call_id, data, call.n_tokens, call.n_cut))

    def _fail(self, call: _Call, error: UserError) -> None:
        if call in self._calls:
            self._end(call)
            self._emit(Failed(call.message.call_id, ErrorInfo.of(error)))

    def _end(self, call: _Call) -> None:
        self._calls.remove(call)
        if self._carried is not None and self._carried.call is call:
            self._release(self._carried)
            self._carried = None

    def _release(self, text: _Text) -> None:
        self._embedder.forget(text.sequence_id)
        self._free_ids.append(text.sequence_id)
