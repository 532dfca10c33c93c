from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.cache.state_store import StateStore
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.media.chunks import Embeddings, MediaChunk, MediaLayout
from app.engine.media.fake import FakeEncoder
from app.engine.request import FinishReason, MediaInput, Request, SamplingParams
from app.engine.speculative.cost_model import StepCost
from app.protocol.errors import ContextOverflowError, RequestError
from tests.app.engine.recording import Record, run

GREEDY = SamplingParams(temperature=0.0)
CAT, DOG, FAILING = (MediaInput(f"<{name}>", b64encode(name.encode()).decode()) for name in ("cat", "dog", "failing"))


@dataclass(slots=True)
class Embedded:
    """A `MediaEmbeddings` that has a chunk `n_delays` calls after the first that asks for it."""

    encoder: FakeEncoder = field(default_factory=FakeEncoder)
    n_delays: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    n_given: int = 0

    def layouts(self, *media: MediaInput) -> dict[str, MediaLayout]:
        return {each.marker: self.encoder.layout(each) for each in media}

    def get(self, chunk: MediaChunk) -> Embeddings | None:
        n_asked = self.asked[chunk.content_id] = self.asked.get(chunk.content_id, -1) + 1
        if n_asked < self.n_delays:
            return None
        self.n_given += 1
        return self.encoder.encode(chunk)


class CountingBackend(FakeBackend):
    """A fake model that records the sizes of its batches of text and of media."""

    n_text: tuple[int, ...] = ()
    n_media: tuple[int, ...] = ()

    def decode(self, chunks):  # type: ignore[no-untyped-def]
        n_tokens = sum(len(chunk.tokens) for chunk in chunks)
        if chunks[0].media is None:
            self.n_text += (n_tokens,)
        else:
            self.n_media += (n_tokens,)
        return super().decode(chunks)


def question(name: str, prompt: str, *media: MediaInput, n_tokens: int = 20, **changes: object) -> Request:
    wanted = Request(request_id=name, prompt=prompt, media=media, sampling=GREEDY, max_tokens=n_tokens)
    return replace(wanted, **changes)  # type: ignore[arg-type]


def answer_alone(wanted: Request, encoder: FakeEncoder | None = None) -> str:
    """Return the answer of an engine of its own, in one batch of each kind."""
    record, media = Record(), Embedded(encoder or FakeEncoder())
    engine = Engine(FakeBackend(n_sequences=1, n_batch=4096), record, media=media)
    engine.submit(wanted, media.layouts(*wanted.media))
    run(engine)
    return record.text[wanted.request_id]


def test_the_answer_depends_on_the_picture_and_not_on_when_its_embeddings_come() -> None:
    texts = {}
    for n_delays in (0, 3):
        for picture in (CAT, DOG):
            record, media = Record(), Embedded(n_delays=n_delays)
            engine = Engine(FakeBackend(), record, media=media)
            engine.submit(question("a", f"what is {picture.marker} here", picture), media.layouts(picture))
            run(engine)
            assert record.finished["a"].usage.n_prompt_tokens == len("what is  here") + 6
            texts[picture.marker, n_delays] = record.text["a"]
    assert texts["<cat>", 0] == texts["<cat>", 3] != texts["<dog>", 0] == texts["<dog>", 3]


def test_the_second_question_about_a_picture_computes_and_encodes_only_what_is_new() -> None:
    record, media = Record(), Embedded()
    engine = Engine(FakeBackend(), record, media=media)
    for name, prompt in (("a", "look: <cat> what?"), ("b", "look: <cat> where?")):
        engine.submit(question(name, prompt, CAT), media.layouts(CAT))
        run(engine)
    assert media.n_given == 1
    assert record.finished["b"].usage.n_cached_tokens == len("look: < > wh") - 1 + 4
    assert record.text["b"] == answer_alone(question("b", "look: <cat> where?", CAT))


def test_another_picture_at_the_same_place_is_not_taken_for_it() -> None:
    record, media = Record(), Embedded()
    engine = Engine(FakeBackend(), record, media=media)
    for picture in (CAT, DOG):
        engine.submit(question(picture.marker, f"look: {picture.marker} what?", picture), media.layouts(picture))
        run(engine)
    assert record.finished["<dog>"].usage.n_cached_tokens == len("look: <")
    assert record.text["<dog>"] == answer_alone(question("<dog>", "look: <dog> what?", DOG))


def test_a_chat_with_pictures_continues_after_a_restart_without_encoding(tmp_path: Path) -> None:
    prompt = "a long beginning of a chat <cat> and more of it"
    for n_expected in (1, 0):
        record, media = Record(), Embedded()
        store = StateStore(tmp_path, 1 << 20, 1 << 20)
        engine = Engine(FakeBackend(), record, store, media=media)
        engine.submit(question("a", prompt, CAT), media.layouts(CAT))
        run(engine)
        while engine.save_idle_sequence():
            pass
        store.close()
        assert media.n_given == n_expected
        assert record.text["a"] == answer_alone(question("a", prompt, CAT))


def test_running_answers_continue_while_a_picture_is_encoded() -> None:
    record, media = Record(), Embedded(n_delays=15)
    engine = Engine(FakeBackend(), record, media=media)
    engine.submit(question("text", "a prompt", n_tokens=10, ignore_eos=True))
    engine.submit(question("picture", "<cat> what?", CAT), media.layouts(CAT))
    for _ in range(12):
        engine.step()
        assert not (engine.is_stalled and "text" not in record.finished)
    assert "text" in record.finished
    assert not record.text["picture"]
    run(engine)
    assert record.text["picture"] == answer_alone(question("picture", "<cat> what?", CAT))


def test_the_engine_is_stalled_while_all_that_runs_waits_for_embeddings() -> None:
    record, media = Record(), Embedded(n_delays=3)
    engine = Engine(FakeBackend(), record, media=media)
    engine.submit(question("a", "<cat> what?", CAT), media.layouts(CAT))
    stalled = []
    while not engine.is_idle:
        engine.step()
        stalled.append(engine.is_stalled)
    assert stalled[:5] == [False, True, True, True, False], "the mark before the picture is computed first"
    assert not any(stalled[5:])


def test_a_picture_that_waits_can_be_aborted() -> None:
    record, media = Record(), Embedded(n_delays=10**9)
    engine = Engine(FakeBackend(), record, media=media)
    engine.submit(question("a", "<cat> what?", CAT), media.layouts(CAT))
    for _ in range(3):
        engine.step()
    engine.abort("a")
    run(engine)
    assert record.finished["a"].reason is FinishReason.ABORTED


def test_a_failure_of_encoding_ends_its_own_request_only() -> None:
    record, media = Record(), Embedded()
    engine = Engine(FakeBackend(), record, media=media)
    engine.submit(question("bad", "<failing> what?", FAILING), media.layouts(FAILING))
    engine.submit(question("good", "<cat> what?", CAT), media.layouts(CAT))
    run(engine)
    assert "could not be encoded" in record.failed["bad"].cause
    assert record.text["good"] == answer_alone(question("good", "<cat> what?", CAT))
    assert not engine.is_stalled


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_causal_picture_is_computed_in_parts_beside_answers_and_any_other_as_a_whole(is_causal: bool) -> None:
    encoder = FakeEncoder(n_tokens=100, is_causal=is_causal)
    record, media, backend = Record(), Embedded(encoder), CountingBackend(n_batch=128)
    engine = Engine(backend, record, media=media)
    engine.submit(question("text", "a prompt", n_tokens=50, ignore_eos=True))
    engine.step()
    engine.submit(question("picture", "<cat> what?", CAT), media.layouts(CAT))
    run(engine)
    assert backend.n_media == ((32, 32, 32, 4) if is_causal else (100,))
    assert record.text["picture"] == answer_alone(question("picture", "<cat> what?", CAT), encoder)


@pytest.mark.parametrize(
    ("backend", "encoder", "asked", "kind", "words"),
    [
        ({"n_batch": 64}, {"n_tokens": 100, "is_causal": False}, {}, RequestError, "has 100 tokens"),
        ({"n_ctx": 64}, {"n_tokens": 100}, {}, ContextOverflowError, ""),
        ({}, {}, {"echo": True}, RequestError, ""),
        ({}, {}, {"context_shift": True}, RequestError, ""),
    ],
    ids=["more than is computed at once", "more than the context", "printed", "cut"],
)
def test_a_picture_that_the_engine_cannot_take_is_refused(
    backend: dict[str, int], encoder: dict[str, Any], asked: dict[str, bool], kind: type[Exception], words: str
) -> None:
    record, media = Record(), Embedded(FakeEncoder(**encoder))
    Engine(FakeBackend(**backend), record, media=media).submit(question("a", "<cat>", CAT, **asked), media.layouts(CAT))
    assert record.failed["a"].kind == kind.__name__
    assert words in record.failed["a"].cause


def test_an_engine_that_shifts_contexts_ends_an_answer_about_a_picture_where_the_context_ends() -> None:
    record, media = Record(), Embedded()
    engine = Engine(FakeBackend(n_ctx=64), record, media=media, shifts_context=True)
    engine.submit(question("a", "<cat>", CAT, n_tokens=200, ignore_eos=True), media.layouts(CAT))
    run(engine)
    assert record.finished["a"].reason is FinishReason.LENGTH
    assert record.finished["a"].usage.n_dropped_tokens == 0


class FreeDrafts(StepCost):
    """Costs of steps in which every draft pays."""

    def ratio(self, n_tokens: int, n_answers: int = 1) -> float:
        return 1.0


arrivals = st.lists(
    st.tuples(
        st.integers(0, 12),  # steps before it arrives
        st.lists(st.sampled_from(["x", "yy ", "<cat>", "<dog>", "abcabcabc"]), min_size=1, max_size=6),
        st.integers(0, 20),  # max_tokens
        st.sampled_from([None, 1, 3, 9]),  # aborted after this many steps
    ),
    max_size=7,
)
MODELS = [{}, {"supports_truncation": False}, {"supports_truncation": False, "n_rollback": 3}, {"n_window": 20}]


@pytest.mark.slow
@settings(max_examples=60)
@given(
    arrivals,
    st.integers(1, 3),
    st.integers(8, 40),
    st.integers(120, 240),
    st.sampled_from(MODELS),
    st.integers(0, 3),
    st.sampled_from([(4, 0), (6, 3)]),
    st.booleans(),
)
def test_answers_about_pictures_equal_serial_ones_under_random_arrivals_and_aborts(
    rows: list[tuple[int, list[str], int, int | None]],
    n_sequences: int,
    n_batch: int,
    n_cells: int,
    model: dict[str, int],
    n_delays: int,
    shape: tuple[int, int],
    is_causal: bool,
) -> None:
    def encoder() -> FakeEncoder:
        return FakeEncoder(n_tokens=shape[0], n_columns=shape[1], is_causal=is_causal)

    record, media = Record(), Embedded(encoder(), n_delays)
    layouts = media.layouts(CAT, DOG)
    backend = FakeBackend(n_ctx=100, n_cells=n_cells, n_sequences=n_sequences, n_batch=n_batch, **model)  # type: ignore[arg-type]
    engine = Engine(backend, record, step_cost=FreeDrafts(), media=media)
    wanted: dict[str, Request] = {}
    for index, (delay, parts, n_tokens, abort_after) in enumerate(rows):
        for _ in range(delay):
            engine.step()
        name, prompt = str(index), "".join(parts)
        used = [each for each in (CAT, DOG) if each.marker in prompt]
        wanted[name] = question(name, prompt, *used, n_tokens=n_tokens)
        engine.submit(wanted[name], layouts)
        if abort_after is not None:
            for _ in range(abort_after):
                engine.step()
            engine.abort(name)
    run(engine)
    assert not record.failed
    for name, item in wanted.items():
        text = answer_alone(item, encoder())
        if record.finished[name].reason is FinishReason.ABORTED:
            assert text.startswith(record.text[name])
        else:
            assert record.text[name] == text
