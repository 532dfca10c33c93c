from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine import embedding
from app.engine.backend import Chunk
from app.engine.embedding import EmbeddingQueue, Pooling, Vector, normalized, pooled
from app.engine.fake import FakeBackend, FakeEmbedder
from app.engine.messages import Embed, Embedded, Failed, Rerank, Reranked
from quantizer.system.errors import EngineError

PARTS = np.array([[1.0, 2.0], [3.0, 6.0], [8.0, 1.0]], np.float32)


@pytest.mark.parametrize(
    ("pooling", "whole"),
    [(Pooling.MEAN, PARTS.mean(axis=0)), (Pooling.CLS, PARTS[0]), (Pooling.LAST, PARTS[2]), (Pooling.RANK, PARTS[2])],
)
def test_a_text_in_two_chunks_pools_like_the_whole(pooling: Pooling, whole: np.ndarray) -> None:
    first = PARTS[:2].mean(axis=0) if pooling is Pooling.MEAN else PARTS[0 if pooling is Pooling.CLS else 1]
    before = pooled(pooling, np.zeros(0, np.float32), 0, first, 2)
    np.testing.assert_allclose(pooled(pooling, before, 2, PARTS[2], 1), whole, rtol=1e-6)


def test_a_vector_gets_length_one_and_zero_stays_zero() -> None:
    np.testing.assert_allclose(normalized(np.array([3.0, 4.0], np.float32)), [0.6, 0.8], rtol=1e-6)
    assert not normalized(np.zeros(3, np.float32)).any()


POOLINGS = [pooling for pooling in Pooling if pooling is not Pooling.RANK]


class RecordingQueue:
    """A queue over the fake embedder, and its events by call."""

    def __init__(self, embedder: FakeEmbedder) -> None:
        self.events: dict[str, Embedded | Reranked | Failed] = {}
        self.embedder = embedder
        self.queue = EmbeddingQueue(FakeBackend(), lambda: embedder, self._note)

    def _note(self, event: Embedded | Reranked | Failed) -> None:
        name = event.request_id if isinstance(event, Failed) else event.call_id
        assert name not in self.events, "a call ends once"
        self.events[name] = event

    def run(self) -> None:
        for _ in range(2000):
            if self.queue.is_idle:
                assert self.embedder.n_cells_used == 0, "finished calls leave nothing"
                return
            self.queue.step()
        raise AssertionError("the queue does not come to rest")

    def vectors(self, name: str) -> list[Vector]:
        event = self.events[name]
        assert isinstance(event, Embedded)
        return [np.frombuffer(vector, "<f4") for vector in event.vectors]


def alone(text: str, pooling: Pooling) -> Vector:
    """Return the vector of a text computed alone, in one piece."""
    embedder = FakeEmbedder(n_batch=4096, pooling=pooling)
    vector = embedder.compute([Chunk(0, 0, list(text.encode()), 1)])[0]
    return vector / np.linalg.norm(vector)


calls = st.lists(st.tuples(st.integers(0, 3), st.lists(st.text("abc é", min_size=1, max_size=60), min_size=1)))


@pytest.mark.slow
@settings(max_examples=60)
@given(calls, st.integers(1, 40), st.integers(1, 4), st.sampled_from(POOLINGS), st.booleans())
def test_batched_and_chunked_vectors_equal_those_of_texts_alone(
    rows: list[tuple[int, list[str]]], n_batch: int, n_sequences: int, pooling: Pooling, can_split: bool
) -> None:
    recorder = RecordingQueue(
        FakeEmbedder(n_batch=n_batch, n_sequences=n_sequences, pooling=pooling, can_split=can_split)
    )
    for index, (delay, texts) in enumerate(rows):
        for _ in range(delay):
            recorder.queue.step()
        recorder.queue.submit(Embed(str(index), tuple(texts)))
    recorder.run()
    for index, (_, texts) in enumerate(rows):
        for text, vector in zip(texts, recorder.vectors(str(index)), strict=True):
            np.testing.assert_allclose(vector, alone(text, pooling), rtol=1e-4, atol=1e-6)
        assert recorder.events[str(index)].n_tokens == sum(len(text.encode()) for text in texts)


def test_a_small_call_overtakes_the_rest_of_a_large_one() -> None:
    recorder = RecordingQueue(FakeEmbedder(n_batch=10))
    recorder.queue.submit(Embed("large", tuple(f"{number:010}" for number in range(50))))
    recorder.queue.submit(Embed("small", ("y",)))
    for _ in range(3):
        recorder.queue.step()
    assert set(recorder.events) == {"small"}


def test_equal_texts_of_a_call_are_computed_once_and_have_one_vector() -> None:
    """What stands beside a text in its batch changes its last digits."""
    embedder = FakeEmbedder()
    computed: list[int] = []
    compute = embedder.compute

    def counted(chunks: Sequence[Chunk]) -> Vector:
        computed.append(sum(len(chunk.tokens) for chunk in chunks))
        return compute(chunks)

    embedder.compute = counted  # type: ignore[method-assign]
    recorder = RecordingQueue(embedder)
    texts = ("same", "other", "same", "x" * 300, "same", "x" * 300)
    recorder.queue.submit(Embed("a", texts, cuts=True))
    recorder.run()
    vectors = [vector.tobytes() for vector in recorder.vectors("a")]
    assert [vectors.index(vector) for vector in vectors] == [texts.index(text) for text in texts]
    assert sum(computed) == len("same") + len("other") + 256
    event = recorder.events["a"]
    assert isinstance(event, Embedded)
    assert (event.n_tokens, event.n_cut) == (3 * len("same") + len("other") + 2 * 256, 2), "all count"


def test_an_aborted_call_frees_its_cells_and_emits_nothing() -> None:
    recorder = RecordingQueue(FakeEmbedder(n_batch=10))
    recorder.queue.submit(Embed("a", ("x" * 25,)))
    recorder.queue.step()
    assert recorder.embedder.n_cells_used == 10
    recorder.queue.abort("a")
    recorder.run()
    assert recorder.events == {}


@pytest.mark.parametrize(
    ("inputs", "kind", "details"),
    [
        (("fine", "x" * 300), "ContextOverflowError", {"n_prompt_tokens": 300, "n_ctx": 256}),
        (("fine", ""), "RequestError", {}),
        (("fine", (999,)), "RequestError", {}),
    ],
)
def test_one_bad_input_fails_its_call_with_the_numbers_and_no_other(
    inputs: tuple[str | tuple[int, ...], ...], kind: str, details: dict[str, int]
) -> None:
    recorder = RecordingQueue(FakeEmbedder())
    recorder.queue.submit(Embed("bad", inputs))
    recorder.queue.submit(Embed("good", ("fine",)))
    recorder.run()
    failed = recorder.events["bad"]
    assert isinstance(failed, Failed)
    assert (failed.error.kind, failed.error.details) == (kind, details)
    assert len(recorder.vectors("good")) == 1


def test_more_vectors_than_the_limit_of_a_call_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "MAX_VECTOR_BYTES", 3 * 8 * 4)
    recorder = RecordingQueue(FakeEmbedder())
    recorder.queue.submit(Embed("fits", ("x",) * 3))
    recorder.queue.submit(Embed("too many", ("x",) * 4))
    recorder.run()
    assert len(recorder.vectors("fits")) == 3
    assert isinstance(recorder.events["too many"], Failed)


class Broken(FakeEmbedder):
    """Its second batch fails."""

    n_batches = 0

    def compute(self, chunks: Sequence[Chunk]) -> Vector:
        self.n_batches += 1
        if self.n_batches == 2:
            self.close()
            raise EngineError("It broke.")
        return super().compute(chunks)


def test_a_failed_batch_ends_its_calls_and_the_next_one_succeeds() -> None:
    recorder = RecordingQueue(Broken(n_batch=10, n_sequences=2))
    recorder.queue.submit(Embed("a", ("x" * 25, "y")))
    recorder.run()
    assert isinstance(recorder.events["a"], Failed)
    recorder.queue.submit(Embed("b", ("x" * 25, "y", "z")))
    recorder.run()
    assert len(recorder.vectors("b")) == 3


class NotANumber(FakeEmbedder):
    def compute(self, chunks: Sequence[Chunk]) -> Vector:
        return super().compute(chunks) * np.float32("nan")


def test_a_result_that_is_not_a_number_is_an_error() -> None:
    recorder = RecordingQueue(NotANumber())
    recorder.queue.submit(Embed("a", ("x",)))
    recorder.run()
    assert isinstance(recorder.events["a"], Failed)


def test_a_model_without_a_ranking_head_cannot_rank_and_a_ranker_cannot_embed() -> None:
    plain, ranker = RecordingQueue(FakeEmbedder()), RecordingQueue(FakeEmbedder(pooling=Pooling.RANK))
    plain.queue.submit(Rerank("a", "query", ("document",)))
    ranker.queue.submit(Embed("a", ("text",)))
    for recorder in (plain, ranker):
        assert recorder.queue.is_idle
        failed = recorder.events["a"]
        assert isinstance(failed, Failed)
        assert failed.error.kind == "RequestError"


def test_a_ranker_scores_each_document() -> None:
    recorder = RecordingQueue(FakeEmbedder(pooling=Pooling.RANK, can_split=False))
    recorder.queue.submit(Rerank("a", "query", ("one", "two", "one")))
    recorder.run()
    ranked = recorder.events["a"]
    assert isinstance(ranked, Reranked)
    assert ranked.scores[0] == ranked.scores[2] != ranked.scores[1]
    assert ranked.n_tokens == 3 * len("query\none")


class _FramingBackend(FakeBackend):
    """A tokenizer that puts `begin` before every text and `end` behind it, as those of encoders do."""

    def __init__(self, begin: str, end: str) -> None:
        super().__init__()
        self._begin, self._end = begin, end

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return super().tokenize(f"{self._begin}{text}{self._end}" if add_special else text, add_special, parse_special)


@pytest.mark.parametrize(
    ("begin", "end", "kept"),
    [("", "", "x" * 256), ("[", "", "[" + "x" * 255), ("[", "]", "[" + "x" * 254 + "]"), ("", "]", "x" * 255 + "]")],
)
def test_a_long_text_is_cut_to_the_context_and_keeps_the_token_that_ends_it(begin: str, end: str, kept: str) -> None:
    """Models that pool the last token, such as Qwen3-Embedding, take it from the token that ends every text."""
    recorder = RecordingQueue(FakeEmbedder(pooling=Pooling.LAST))
    recorder.queue = EmbeddingQueue(_FramingBackend(begin, end), lambda: recorder.embedder, recorder._note)
    recorder.queue.submit(Embed("long", ("x" * 300, "y"), cuts=True))
    recorder.run()
    np.testing.assert_allclose(recorder.vectors("long")[0], alone(kept, Pooling.LAST), rtol=1e-4, atol=1e-6)
    event = recorder.events["long"]
    assert isinstance(event, Embedded)
    assert (event.n_cut, event.n_tokens) == (1, 256 + len(f"{begin}y{end}"))


def test_tokens_given_as_ids_are_cut_as_well() -> None:
    recorder = RecordingQueue(FakeEmbedder())
    recorder.queue.submit(Embed("ids", (tuple(b"x" * 300),), cuts=True))
    recorder.run()
    np.testing.assert_allclose(recorder.vectors("ids")[0], alone("x" * 256, Pooling.MEAN), rtol=1e-4, atol=1e-6)
