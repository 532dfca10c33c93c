"""Prompts that are echoed before their answers, with log probabilities."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.backend import Chunk
from app.engine.cache.state_store import StateStore
from app.engine.fake import END, FakeBackend
from app.engine.loop.core import Engine
from app.engine.loop.output import EchoedText
from app.engine.request import Request, SamplingParams, TokenLogprob
from tests.app.engine.recording import Record, answered, run

TEXT = "the text of a prompt €"


def request(name: str = "a", prompt: str | tuple[int, ...] = TEXT, n_tokens: int = 0, **changes: Any) -> Request:
    greedy = SamplingParams(temperature=0.0)
    return Request(request_id=name, prompt=prompt, sampling=greedy, max_tokens=n_tokens, **changes)


def _serial(text: str) -> list[float | None]:
    """Return the probabilities of a prompt's tokens, computed one by one without an engine."""
    backend = FakeBackend()
    logprobs: list[float | None] = [None]
    tokens = list(text.encode())
    for position, (token, following) in enumerate(pairwise(tokens)):
        backend.decode([Chunk(0, position, [token], 1)])
        logits = backend.logits(0).astype(np.float64)
        logprobs.append(float(logits[following] - np.log(np.exp(logits).sum())))
    return logprobs


def _prompt_of(entries: list[TokenLogprob], text: str = TEXT) -> list[TokenLogprob]:
    return entries[: len(text.encode())]


def _assert_scored(entries: list[TokenLogprob], text: str = TEXT) -> None:
    echoed = [entry.logprob for entry in _prompt_of(entries, text)]
    assert echoed[0] is None
    assert echoed[1:] == pytest.approx(_serial(text)[1:], abs=1e-5)


@pytest.mark.parametrize("n_batch", [4, 16, 512])
@pytest.mark.parametrize("supports_truncation", [True, False])
def test_a_prompt_is_echoed_with_log_probabilities_for_any_batch_size(n_batch: int, supports_truncation: bool) -> None:
    record = answered(
        FakeBackend(n_batch=n_batch, supports_truncation=supports_truncation),
        request(prompt=TEXT, n_tokens=5, echo=True, n_logprobs=2, ignore_eos=True),
    )
    entries = record.logprobs["a"]
    _assert_scored(entries)
    assert record.text["a"].startswith(TEXT)
    assert len(record.text["a"]) == len(TEXT) + 5
    assert len(entries) == len(TEXT.encode()) + 5
    assert [entry.offset for entry in entries[-6:]] == [len(TEXT) - 1, *range(len(TEXT), len(TEXT) + 5)]
    assert (entries[0].top, {len(entry.top) for entry in entries[1:]}) == ((), {2})
    assert record.finished["a"].usage.n_output_tokens == 5


def test_with_max_tokens_0_only_the_prompt_is_echoed() -> None:
    record = answered(
        FakeBackend(),
        request(prompt=TEXT, n_tokens=0, echo=True, n_logprobs=0),
        request("one", prompt="x", n_tokens=0, echo=True, n_logprobs=1),
    )
    assert record.text["a"] == TEXT
    _assert_scored(record.logprobs["a"])
    assert len(record.logprobs["a"]) == len(TEXT.encode())
    assert record.logprobs["one"] == [TokenLogprob(b"x", None, (), 0, ord("x"))]


def test_what_is_cached_is_computed_again_only_for_a_prompt_that_is_scored() -> None:
    record = Record()
    engine = Engine(FakeBackend(), record)
    changes_of: dict[str, dict[str, Any]] = {
        "first": {},
        "plain": {},
        "echoed": {"echo": True},
        "scored": {"echo": True, "n_logprobs": 0},
    }
    for name, changes in changes_of.items():
        run(engine, request(name, TEXT, 3, **changes))
    n_cached = {name: end.usage.n_cached_tokens for name, end in record.finished.items()}
    n_tokens = len(TEXT.encode())
    assert n_cached == {"first": 0, "plain": n_tokens - 1, "echoed": n_tokens - 1, "scored": 0}
    _assert_scored(record.logprobs["scored"])
    assert len({record.text[name].removeprefix(TEXT) for name in n_cached}) == 1, "all answers are equal"


def test_a_prompt_that_is_scored_while_nothing_runs_has_the_cache_for_itself(tmp_path: Path) -> None:
    record, store = Record(), StateStore(tmp_path)
    engine = Engine(FakeBackend(), record, store)
    answered = {"first": "f" * 60, "second": "s" * 40}
    for name, prompt in answered.items():
        run(engine, request(name, prompt))
    run(engine, request("scored", TEXT, echo=True, n_logprobs=0))
    assert engine.occupancy.n_cells_used == len(TEXT.encode())
    _assert_scored(record.logprobs["scored"])
    for name, prompt in answered.items():
        run(engine, request(f"{name} again", f"{prompt}!"))
        assert record.finished[f"{name} again"].usage.n_cached_tokens == len(prompt), "it is back from the store"
    store.close()


def test_scoring_evicts_nothing_that_would_be_lost_or_while_another_runs(tmp_path: Path) -> None:
    scored = request("scored", TEXT, echo=True, n_logprobs=0)
    n_scored = len(TEXT.encode())
    without_store = Engine(FakeBackend(), Record())
    for each in (request("idle", "i" * 60), scored):
        without_store.submit(each)
        run(without_store)
    assert without_store.occupancy.n_cells_used == 60 + n_scored
    record, store = Record(), StateStore(tmp_path)
    engine = Engine(FakeBackend(), record, store)
    run(engine, request("idle", "i" * 60))
    engine.submit(request("runs", "r" * 20, 200, ignore_eos=True))
    engine.step()
    engine.submit(scored)
    while "scored" not in record.finished:
        engine.step()
    assert "runs" not in record.finished
    assert engine.occupancy.n_cells_used > 60 + 20 + n_scored
    _assert_scored(record.logprobs["scored"])
    run(engine)
    store.close()


def test_the_end_of_an_answer_counts_as_a_token_of_a_text_that_is_scored() -> None:
    record = answered(FakeBackend(end_every=1), request(prompt=TEXT, n_tokens=1, echo=True, n_logprobs=1))
    *prompt, end = record.logprobs["a"]
    assert (len(prompt), end.piece, end.offset) == (len(TEXT.encode()), b"<end>", len(TEXT))
    assert record.text["a"] == TEXT


@pytest.mark.parametrize("seed", range(20))
def test_prompts_are_scored_alike_beside_others_that_take_their_cells(seed: int) -> None:
    chance = random.Random(seed)
    record = Record()
    backend = FakeBackend(n_ctx=128, n_cells=160, n_batch=chance.choice([7, 32]))
    engine = Engine(backend, record)
    texts = {str(number): TEXT[: chance.randrange(1, len(TEXT))] * chance.randrange(1, 4) for number in range(12)}
    for name, text in texts.items():
        is_scored = chance.random() < 0.6
        changes: dict[str, Any] = {"echo": True, "n_logprobs": 1} if is_scored else {}
        engine.submit(request(name, text, chance.randrange(30), priority=chance.randrange(3), **changes))
        for _ in range(chance.randrange(4)):
            engine.step()
            engine.check_integrity()
    run(engine)
    assert record.finished.keys() == texts.keys()
    for name, entries in record.logprobs.items():
        if entries:
            _assert_scored(entries, texts[name])
            assert record.text[name].startswith(texts[name])


def test_a_step_scores_no_more_than_memory_is_set_aside_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.engine.loop.core.SCORED_BYTES", 4 * (END + 1) * 8)

    class Counting(FakeBackend):
        most = 0

        def decode(self, chunks):  # type: ignore[no-untyped-def]
            self.most = max(self.most, sum(chunk.n_logits for chunk in chunks))
            return super().decode(chunks)

    backend, record = Counting(), Record()
    engine = Engine(backend, record)
    for name in "abc":
        engine.submit(request(name, f"{name} {TEXT}", 0, echo=True, n_logprobs=0))
    run(engine)
    assert backend.most == 8
    _assert_scored(record.logprobs["b"], f"b {TEXT}")


def test_a_prompt_of_tokens_reads_as_they_do() -> None:
    record = answered(FakeBackend(), request(prompt=(72, END, 0xE2, 0x82, 0xAC, 0xFF, 105), echo=True, n_logprobs=0))
    assert record.text["a"] == "H€\ufffdi"
    assert [entry.offset for entry in record.logprobs["a"]] == [0, 1, 1, 1, 1, 2, 3]
    assert record.logprobs["a"][1].piece == b"<end>"


def _echoed(prompt: str, *pieces: tuple[bytes, bytes]) -> tuple[list[int], str]:
    text, offsets, echoed = EchoedText(prompt), [], ""
    for piece, label in pieces:
        offsets.append(text.n_characters)
        echoed += text.push(piece, label)
    return offsets, echoed + text.finish()


def test_what_a_tokenizer_adds_or_names_is_found_in_the_text_as_it_came() -> None:
    pieces = ((b"", b"<s>"), (b" Hi", b" Hi"), (b"", b"<|x|>"), (b" you", b" you"))
    assert _echoed("Hi<|x|>you", *pieces) == ([0, 0, 2, 7], "Hi<|x|>you")


def test_a_tokenizer_that_changes_letters_loses_none_of_the_text() -> None:
    assert _echoed("ÀB", (b"ab", b"ab"), (b"xyz", b"xyz"))[1] == "ÀB"
    assert _echoed("ABC", (b"a", b"a"))[1] == "ABC"


@given(st.text(), st.lists(st.binary(max_size=4)))
def test_a_text_is_echoed_exactly_whatever_its_tokens_are(text: str, pieces: list[bytes]) -> None:
    offsets, echoed = _echoed(text, *((piece, piece) for piece in pieces))
    assert echoed == text.encode("utf-8", "replace").decode()
    assert offsets == sorted(offsets)
