from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.common_prefix import common_prefix, n_common_prefix
from app.engine.backend import Chunk, DecodeStatus
from app.engine.cache.state_store import StateStore
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.loop.counters import Counters
from app.engine.loop.read_ahead import ReadAheadCounter, is_in_the_way
from app.engine.request import IN_MEMORY, READ_AHEAD_PRIORITY, FinishReason, Request, SamplingParams
from tests.app.engine.recording import Record, answered, run
from tests.app.engine.sequences import new_sequence

GREEDY = SamplingParams(temperature=0.0)
DOCUMENT = "".join(chr(ord("a") + index % 23) for index in range(400))


def question(name: str, prompt: str, n_tokens: int = 5, **changes: object) -> Request:
    return replace(Request(request_id=name, prompt=prompt, sampling=GREEDY, max_tokens=n_tokens), **changes)


def reading(prompt: str, name: str = "reading", **changes: object) -> Request:
    return question(name, prompt, 0, priority=READ_AHEAD_PRIORITY, **changes)


class Interruptible(FakeBackend):
    """Is interrupted by what happens `while_computing`, and notes the size of each batch and whether it ended."""

    def __init__(self, **how: object) -> None:
        super().__init__(**how)  # type: ignore[arg-type]
        self.while_computing: Callable[[], None] = lambda: None
        self.batches: list[tuple[int, bool]] = []
        self._is_interrupted = False

    def interrupt(self) -> None:
        self._is_interrupted = True

    def decode(self, chunks: list[Chunk]) -> DecodeStatus:
        self._is_interrupted = False
        self.while_computing()
        self.batches.append((sum(len(chunk.tokens) for chunk in chunks), not self._is_interrupted))
        if self._is_interrupted:
            super().decode([replace(chunks[0], tokens=chunks[0].tokens[:1], n_logits=0)])
            return DecodeStatus.INTERRUPTED
        return super().decode(chunks)


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_a_common_prefix_is_the_longest_one(same: str, one: str, other: str) -> None:
    expected = len(
        [1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(same + one, same + other, strict=False))]
    )
    assert n_common_prefix(same + one, same + other) == expected
    assert n_common_prefix([*map(ord, same + one)], [*map(ord, same + other)]) == expected
    assert common_prefix(same + one, same + other) == (same + one)[:expected]


def test_a_question_computes_only_what_was_not_read_ahead() -> None:
    record = Record()
    engine = Engine(FakeBackend(), record)
    run(engine, reading(DOCUMENT))
    run(engine, question("asked", DOCUMENT + " and now?"))
    assert record.finished["reading"].usage.n_output_tokens == 0
    assert record.finished["asked"].usage.n_cached_tokens == len(DOCUMENT)


def test_a_question_goes_before_what_is_read_ahead_from_the_next_step_on() -> None:
    record = Record()
    engine = Engine(FakeBackend(n_batch=16), record)
    engine.submit(reading(DOCUMENT))
    engine.step()
    engine.submit(question("asked", "hello", 3))
    engine.step()
    assert [each.request_id for each in engine.running] == ["asked"], "no cells of what pauses are attended to"
    run(engine)
    assert list(record.finished) == ["asked", "reading"]


def test_a_batch_that_the_question_begins_with_is_computed_to_its_end() -> None:
    backend, record = Interruptible(n_batch=64), Record()
    engine = Engine(backend, record)
    engine.submit(reading(DOCUMENT))
    asked = question("asked", DOCUMENT + " and now?", 1)

    def enter() -> None:  # the service ends the reading and sends the question, in whichever order
        backend.while_computing = lambda: None
        engine.announce(asked)
        engine.abort("reading")

    backend.while_computing = enter
    engine.step()
    assert backend.batches == [(64, True)]
    engine.submit(asked)
    run(engine)
    assert record.finished["reading"].reason is FinishReason.ABORTED
    assert record.finished["asked"].usage.n_cached_tokens == 64
    assert sum(n_tokens for n_tokens, _ in backend.batches) == len(asked.prompt), "no token is computed twice"


@pytest.mark.parametrize(
    ("prompt", "n_batch", "is_interrupted"),
    [
        ("another chat", 64, True),
        (DOCUMENT[:50] + "?" * 300, 64, True),
        (DOCUMENT[:200] + "?" * 300, 64, False),
        (DOCUMENT, 64, False),
    ],
)
def test_a_batch_of_no_use_to_a_question_makes_way_at_once(prompt: str, n_batch: int, is_interrupted: bool) -> None:
    backend, record = Interruptible(n_batch=n_batch), Record()
    engine = Engine(backend, record)
    engine.submit(reading(DOCUMENT))
    asked = question("asked", prompt, 2)

    def enter() -> None:
        backend.while_computing = lambda: None
        engine.announce(asked)

    backend.while_computing = enter
    engine.step()
    assert backend.batches == [(n_batch, not is_interrupted)]
    engine.submit(asked)
    run(engine)
    assert list(record.finished) == ["asked", "reading"], "what made way is read later"
    assert record.text["asked"] == answered(FakeBackend(), asked).text["asked"]


def test_no_batch_of_a_lower_priority_begins_once_a_question_is_announced() -> None:
    backend, record = Interruptible(n_batch=64), Record()
    engine = Engine(backend, record)
    engine.submit(reading(DOCUMENT))
    asked = question("asked", "hello", 2)
    engine.announce(asked)
    engine.step()
    assert backend.batches == []
    engine.submit(asked)
    run(engine)
    assert backend.batches[0] == (5, True)


def test_a_batch_makes_way_for_a_chat_and_a_chat_for_nobody() -> None:
    backend = Interruptible(n_batch=64)
    engine = Engine(backend, Record())
    engine.submit(question("batch", DOCUMENT, 3, priority=-2))
    backend.while_computing = lambda: engine.announce(question("asked", "hello"))
    engine.step()
    assert backend.batches == [(64, False)]
    engine = Engine(other := Interruptible(n_batch=64), Record())
    engine.submit(question("chat", DOCUMENT, 3))
    other.while_computing = lambda: engine.announce(question("asked", "hello"))
    engine.step()
    assert other.batches == [(64, True)]


def test_states_go_back_to_where_the_batch_began_that_made_way() -> None:
    backend, record = Interruptible(n_batch=64, supports_truncation=False), Record()
    engine = Engine(backend, record)
    engine.submit(reading(DOCUMENT))
    engine.step()

    def enter() -> None:
        backend.while_computing = lambda: None
        engine.announce(asked)

    asked, backend.while_computing = question("asked", "hello", 2), enter
    engine.step()
    engine.submit(asked)
    run(engine)
    assert backend.batches[:2] == [(64, True), (64, False)]
    later = question("later", DOCUMENT + "?", 3)
    run(engine, later)
    assert record.text["later"] == answered(FakeBackend(), later).text["later"]


@pytest.mark.parametrize("how", [{"supports_truncation": False}, {"n_window": 64}], ids=["states", "windows"])
def test_models_that_cannot_go_back_anywhere_go_on_from_what_was_read(tmp_path: Path, how: dict[str, object]) -> None:
    """A draft that goes on continues, and another question about the same file goes on behind the file."""
    record = Record()
    engine = Engine(FakeBackend(**how), record, StateStore(tmp_path, 1 << 20, 1 << 20))  # type: ignore[arg-type]
    run(engine, reading(DOCUMENT))
    run(engine, reading(DOCUMENT + "What does", "longer"))
    run(engine, question("asked", DOCUMENT + "What does it say?", 3))
    assert record.finished["asked"].usage.n_cached_tokens == len(DOCUMENT + "What does")
    run(engine, question("other", DOCUMENT + "Sum it up.", 3))
    assert record.finished["other"].usage.n_cached_tokens >= len(DOCUMENT) - 1


def test_what_is_read_ahead_goes_before_a_batch_and_the_batch_goes_on_after_it() -> None:
    record = Record()
    engine = Engine(FakeBackend(n_sequences=1, n_batch=32), record)
    engine.submit(question("batch", "b" * 100, 3, priority=-2))
    engine.step()
    engine.submit(reading(DOCUMENT))
    run(engine)
    assert list(record.finished) == ["reading", "batch"]


class Paced(FakeBackend):
    """Takes 20 ms a token, by the clock `now_s`."""

    now_s = 0.0

    def decode(self, chunks: list[Chunk]) -> DecodeStatus:
        self.now_s += 0.02 * sum(len(chunk.tokens) for chunk in chunks)
        return super().decode(chunks)


@pytest.mark.parametrize(
    ("is_on_host", "fetches", "n_most"), [(True, False, 64), (False, False, 128), (True, True, 128)]
)
def test_steps_that_read_ahead_are_short(is_on_host: bool, fetches: bool, n_most: int) -> None:
    backend = Paced(n_ctx=8192, n_cells=8192)
    backend.facts = replace(backend.facts, is_on_host=is_on_host, fetches_weights=fetches)
    engine = Engine(backend, Record(), clock=lambda: backend.now_s)
    engine.submit(reading("a" * 3000))
    computed = [0]
    while not engine.is_idle:
        engine.step()
        computed += [each.n_computed_tokens for each in engine.running]
    sizes = [later - before for before, later in itertools.pairwise(computed)]
    assert max(sizes[1:]) == n_most  # the first shows how fast the machine is


def test_nothing_is_read_ahead_for_which_an_unsaved_chat_would_have_to_go() -> None:
    record = Record()
    engine = Engine(FakeBackend(n_ctx=500, n_cells=500), record)
    chat = question("chat", "c" * 200, 5, ignore_eos=True)
    run(engine, chat)
    run(engine, reading(DOCUMENT))
    assert record.finished["reading"].reason is FinishReason.ABORTED
    run(engine, replace(chat, request_id="again"))
    assert record.finished["again"].usage.n_cached_tokens == 199
    run(engine, reading("d" * 200, "short"))
    assert record.finished["short"].reason is FinishReason.LENGTH, "it fits beside the chat"


def test_what_can_come_back_from_the_store_makes_room(tmp_path: Path) -> None:
    record = Record()
    engine = Engine(FakeBackend(n_ctx=500, n_cells=500), record, StateStore(tmp_path, 1 << 20, 1 << 20))
    run(engine, question("chat", "c" * 200, 5, ignore_eos=True), reading(DOCUMENT))
    assert record.finished["reading"].reason is FinishReason.LENGTH
    run(engine, question("again", "c" * 200, 5))
    assert record.finished["again"].usage.n_cached_tokens == 199


def test_a_prompt_that_does_not_fit_waits_for_nothing() -> None:
    record = answered(FakeBackend(n_ctx=100, n_cells=100), reading(DOCUMENT))
    assert record.failed["reading"].kind == "ContextOverflowError"


# What is counted

CHAT = {"conversation": "chat"}


def counted(*wanted: Request) -> tuple[int, int]:
    engine = Engine(FakeBackend(), Record())
    for number, each in enumerate(wanted):
        run(engine, replace(each, request_id=str(number)))
    return engine.counters.n_read_ahead_tokens, engine.counters.n_vain_tokens


@pytest.mark.parametrize(
    ("wanted", "n_read", "n_in_vain"),
    [
        ([reading("abc" * 20, **CHAT)], 60, 0),  # nobody knows yet
        ([reading("abc" * 20, **CHAT), question("q", "abc" * 30, **CHAT)], 60, 0),
        ([reading("abc" * 20, **CHAT), question("q", "abc" * 10 + "x", **CHAT)], 60, 30),
        ([reading("a" * 30, **CHAT), reading("a" * 50, **CHAT), question("q", "a" * 60, **CHAT)], 50, 0),
        ([reading("a" * 30 + "b" * 9, **CHAT), reading("a" * 30 + "c" * 5, **CHAT)], 44, 9),
        ([reading("a" * 30, **CHAT), question("q", "b" * 9, conversation="other")], 30, 0),
        ([reading("a" * 30, conversation=IN_MEMORY), question("q", "a" * 40, **CHAT)], 30, 0),
        ([reading("a" * 30, conversation=IN_MEMORY), question("q", "b" * 40, **CHAT)], 30, 0),
        ([reading("a" * 30), question("q", "b" * 40)], 0, 0),  # nobody knows whose they are
        ([question("q", "a" * 20, **CHAT), reading("a" * 30, **CHAT), question("r", "a" * 20 + "b", **CHAT)], 10, 10),
    ],
)
def test_tokens_are_counted_that_no_question_began_with(wanted: list[Request], n_read: int, n_in_vain: int) -> None:
    assert counted(*wanted) == (n_read, n_in_vain)


@given(st.lists(st.tuples(st.booleans(), st.text("ab", min_size=1, max_size=6), st.sampled_from("xyz")), max_size=20))
def test_no_token_is_counted_in_vain_that_was_not_read(moves: list[tuple[bool, str, str]]) -> None:
    counters, known = Counters(), 0
    counter = ReadAheadCounter(counters)
    for is_question, text, conversation in moves:
        if is_question:
            counter.ask(conversation, text)
        else:
            counter.read(conversation, text, range(len(text) // 2, len(text)))
            known += len(text) - len(text) // 2
        assert counters.n_read_ahead_tokens == known
        assert 0 <= counters.n_vain_tokens <= known


def test_an_engine_of_batches_with_the_same_counters_changes_nothing() -> None:
    engine = Engine(FakeBackend(), Record())
    run(engine, reading("a" * 30, **CHAT))
    run(engine, question("q", "b" * 9, **CHAT))
    batches = Engine(FakeBackend(), Record(), counters=engine.counters)
    run(batches, question("batch", "c" * 9, priority=-2, **CHAT))
    assert (engine.counters.n_read_ahead_tokens, engine.counters.n_vain_tokens) == (30, 30)


def test_adapters_and_tokens_are_told_apart() -> None:
    batch = {new_sequence((1, 2, 3, 4), priority=-1): 4}
    asked = Request(request_id="q", prompt=(1, 2, 3, 4, 5))
    assert not is_in_the_way(batch, asked)
    assert is_in_the_way(batch, replace(asked, lora=(("style", 1.0),)))
    assert is_in_the_way(batch, replace(asked, prompt="text"))
    assert not is_in_the_way(batch, replace(asked, prompt=(9,), priority=-1))
