from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.engine.backend import Chunk, DecodeStatus
from app.engine.cache.state_store import StateStore
from app.engine.fake import END, FakeBackend
from app.engine.loop.core import Engine
from app.engine.request import FinishReason, Request, SamplingParams
from app.engine.speculative.cost_model import MAX_DRAFT_TOKENS, StepCost
from app.engine.speculative.draft_heads import AutoregressiveHeadSource
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.draft_source import DraftSource
from app.protocol.errors import RequestError
from offload.footprint.weights import SCORED_BYTES, most_outputs
from quantizer.system.errors import EngineError
from tests.app.engine.fake_head import FakeHead
from tests.app.engine.recording import Record, answered, run

GREEDY = SamplingParams(temperature=0.0)


def request(name: str = "a", prompt: str = "a prompt", n_tokens: int | None = 20, **changes: object) -> Request:
    return replace(Request(request_id=name, prompt=prompt, sampling=GREEDY, max_tokens=n_tokens), **changes)


def answer_alone(wanted: Request) -> tuple[str, FinishReason]:
    """Return the model's own answer: token by token, without engine, batch, cache reuse or drafts."""
    backend = FakeBackend(n_sequences=1, n_batch=4096)
    sampler = backend.new_sampler(wanted.sampling, wanted.ignore_eos)
    new = backend.tokenize(str(wanted.prompt), True, True)
    output, n_computed = b"", 0
    n_most = 100 - len(new) if wanted.max_tokens is None else wanted.max_tokens
    for _ in range(n_most):
        backend.decode([Chunk(0, n_computed, new, 1)])
        token = sampler.sample(len(new) - 1)
        n_computed += len(new)
        if backend.is_eog(token):
            return output.decode(), FinishReason.STOP
        output, new = output + backend.piece(token), [token]
        for stop in wanted.stop:
            if stop in output.decode():
                return output.decode()[: output.decode().index(stop)], FinishReason.STOP
    return output.decode(), FinishReason.LENGTH


def test_an_answer_ends_at_max_tokens_with_reason_length() -> None:
    record = answered(FakeBackend(end_every=10**9), request(n_tokens=7))
    assert record.finished["a"].reason is FinishReason.LENGTH
    assert record.finished["a"].usage.n_output_tokens == 7
    assert len(record.text["a"]) == 7


def test_an_answer_ends_where_the_model_ends_it() -> None:
    record = answered(FakeBackend(end_every=5), request(n_tokens=None))
    assert record.finished["a"].reason is FinishReason.STOP


def test_ignore_eos_continues_to_the_end_of_the_context() -> None:
    record = answered(FakeBackend(end_every=2, n_ctx=64, n_cells=64), request(n_tokens=None, ignore_eos=True))
    assert record.finished["a"].reason is FinishReason.LENGTH
    assert record.finished["a"].usage.n_prompt_tokens + record.finished["a"].usage.n_output_tokens == 64


def test_a_request_of_no_tokens_computes_its_prompt_only() -> None:
    record = answered(FakeBackend(), request(n_tokens=0))
    assert record.text["a"] == ""
    assert record.finished["a"].usage.n_prompt_tokens == len("a prompt")


def test_a_stop_string_is_not_part_of_the_answer() -> None:
    whole, _ = answer_alone(request(n_tokens=60, ignore_eos=True))
    stop = whole[30:34]
    cut, reason = answer_alone(request(n_tokens=60, ignore_eos=True, stop=(stop,)))
    assert reason is FinishReason.STOP
    assert cut == whole[: whole.index(stop)]


def test_an_answer_of_nothing_has_the_probability_of_its_end() -> None:
    """Classifiers ask for one token; else the end is no part of an answer."""
    record = answered(FakeBackend(), request(prompt="<noise>0</noise>", n_tokens=1, n_logprobs=2))
    (entry,) = record.logprobs["a"]
    assert (record.text["a"], entry.token, len(entry.top)) == ("", END, 2)
    longer = answered(FakeBackend(), request(prompt="<noise>3</noise>", n_tokens=9, n_logprobs=0))
    assert len(longer.text["a"]) == len(longer.logprobs["a"]) == 3


def test_each_output_token_has_its_log_probability() -> None:
    record = answered(FakeBackend(), request(n_tokens=100, ignore_eos=True, n_logprobs=3))
    entries = record.logprobs["a"]
    assert record.finished["a"].usage.n_accepted_tokens > 0, "drafted rows have log probabilities too"
    assert b"".join(entry.piece for entry in entries).decode() == record.text["a"]
    assert [entry.offset for entry in entries] == list(range(100))
    for entry in entries:
        assert len(entry.top) == 3
        assert entry.logprob == max(logprob for _, _, logprob in entry.top)
        assert entry.logprob < 0


def test_the_ids_of_all_sampled_tokens_come_on_request_only() -> None:
    record = answered(
        FakeBackend(),
        request("plain", n_tokens=60, ignore_eos=True),
        request("a", n_tokens=60, ignore_eos=True, returns_tokens=True, n_logprobs=1),
    )
    assert not record.tokens["plain"]
    assert bytes(record.tokens["a"]).decode() == record.text["a"] == record.text["plain"]
    assert [entry.token for entry in record.logprobs["a"]] == record.tokens["a"]
    label = FakeBackend().label
    assert all(label(token) == piece for entry in record.logprobs["a"] for token, piece, _ in entry.top)


def test_the_ids_of_a_stop_string_and_of_the_end_come_too() -> None:
    whole, _ = answer_alone(request(n_tokens=60, ignore_eos=True))
    stop = whole[30:36]
    record = answered(
        FakeBackend(), request("stopped", n_tokens=60, ignore_eos=True, stop=(stop,), returns_tokens=True)
    )
    n_shown = len(record.text["stopped"])
    assert bytes(record.tokens["stopped"]).decode() == whole[: n_shown + len(stop)]


def test_a_running_answer_reports_its_tokens() -> None:
    engine = Engine(FakeBackend(), lambda _: None)
    assert engine.running == ()
    engine.submit(request(n_tokens=60, ignore_eos=True))
    for _ in range(5):
        engine.step()
    (running,) = engine.running
    assert running.request_id == "a"
    assert running.n_output_tokens >= 1
    assert running.n_computed_tokens >= running.n_prompt_tokens > 0
    run(engine)
    assert engine.running == ()


def test_probabilities_are_the_models_own_whatever_the_sampler_prefers() -> None:
    record = answered(
        FakeBackend(), request(n_tokens=20, ignore_eos=True, n_logprobs=1, sampling=SamplingParams(seed=5))
    )
    assert any(entry.logprob < entry.top[0][2] for entry in record.logprobs["a"])


def test_tokens_of_a_stop_string_have_no_log_probabilities() -> None:
    whole, _ = answer_alone(request(n_tokens=60, ignore_eos=True))
    stop = whole[30:36]
    record = answered(FakeBackend(), request(n_tokens=60, ignore_eos=True, stop=(stop,), n_logprobs=0))
    text = b"".join(entry.piece for entry in record.logprobs["a"]).decode()
    assert text == record.text["a"] == whole[: whole.index(stop)]


def test_log_probabilities_are_computed_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeBackend, "logits")
    assert answer_alone(request())[0]
    record = answered(FakeBackend(), request())
    assert record.logprobs == {"a": []}


def test_a_prompt_longer_than_the_context_is_an_error_with_both_numbers() -> None:
    record = Record()
    engine = Engine(FakeBackend(n_ctx=64), record)
    engine.submit(request(prompt="x" * 64))
    assert engine.is_idle
    assert record.failed["a"].kind == "ContextOverflowError"
    assert record.failed["a"].details == {"n_prompt_tokens": 64, "n_ctx": 64}


@pytest.mark.parametrize("prompt", ["", (999,), (-1,)])
def test_a_prompt_without_valid_tokens_is_refused(prompt: str | tuple[int, ...]) -> None:
    record = Record()
    Engine(FakeBackend(), record).submit(replace(request(), prompt=prompt))
    assert record.failed["a"].kind == "RequestError"


class TaggedBackend(FakeBackend):
    """Has one special token, <call>, which replaces the letter e."""

    CALL = ord("e")

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return [self.CALL] if text == "<call>" else super().tokenize(text, add_special, parse_special)

    def piece(self, token: int) -> bytes:
        return b"" if token == self.CALL else super().piece(token)


@pytest.mark.parametrize(("tags", "text"), [((), "hr"), (("<call>", "<other>"), "h<call>r<call>")])
def test_visible_tags_are_text(tags: tuple[str, ...], text: str) -> None:
    record = answered(TaggedBackend(), replace(request(prompt="<say>here</say>"), visible_tags=tags, n_logprobs=0))
    assert record.text["a"] == text
    assert b"".join(entry.piece for entry in record.logprobs["a"]).decode() == text


def test_an_abort_leaves_the_computed_tokens_cached() -> None:
    record = Record()
    engine = Engine(FakeBackend(end_every=10**9, n_ctx=64, n_cells=64), record)
    engine.submit(request(n_tokens=None))
    for _ in range(5):
        engine.step()
    engine.abort("a")
    engine.step()
    assert record.finished["a"].reason is FinishReason.ABORTED
    assert len(record.text["a"]) >= 5
    assert engine.is_idle
    run(engine, request("b", prompt="x" * 60, n_tokens=3))
    assert record.finished["b"].usage.n_output_tokens == 3


def test_an_abort_of_a_waiting_request_ends_it_before_it_begins() -> None:
    record = Record()
    engine = Engine(FakeBackend(n_sequences=1), record)
    engine.submit(request("a"))
    engine.submit(request("b"))
    engine.step()
    engine.abort("b")
    run(engine)
    assert record.finished["b"].usage.n_output_tokens == 0
    assert record.finished["a"].reason is not FinishReason.ABORTED


class InterruptedOnce(FakeBackend):
    """Its second decode is interrupted with half of the batch computed, as llama.cpp leaves it."""

    n_decodes = 0

    def decode(self, chunks: list[Chunk]) -> DecodeStatus:
        self.n_decodes += 1
        if self.n_decodes == 2:
            super().decode([replace(chunks[0], tokens=chunks[0].tokens[:1], n_logits=0)])
            return DecodeStatus.INTERRUPTED
        return super().decode(chunks)


def test_an_interrupted_batch_is_computed_again() -> None:
    record = answered(InterruptedOnce(n_batch=8), request(prompt="a prompt of several batches"))
    assert (record.text["a"], record.finished["a"].reason) == answer_alone(
        request(prompt="a prompt of several batches")
    )


class InterruptedStates(FakeBackend):
    """Its second decode is interrupted; the states go back to where they were held, or are lost."""

    n_decodes = 0
    positions: tuple[int, ...] = ()

    def decode(self, chunks: list[Chunk]) -> DecodeStatus:
        self.n_decodes += 1
        (chunk,) = chunks
        if self.n_decodes == 2:
            super().decode([replace(chunk, tokens=chunk.tokens[:1], n_logits=0)])
            self.truncate(chunk.sequence_id, chunk.position)
            return DecodeStatus.INTERRUPTED
        self.positions = (*self.positions, chunk.position)
        return super().decode(chunks)


def test_after_an_interrupted_batch_a_model_with_states_goes_on_where_that_began() -> None:
    wanted = request(prompt="p" * 120)
    record = Record()
    backend = InterruptedStates(n_batch=32, supports_truncation=False)
    engine = Engine(backend, record)
    run(engine, wanted)
    assert record.text["a"] == answer_alone(wanted)[0]
    assert backend.positions[:3] == (0, 32, 64), "nothing is computed again"


class NotInterrupted(FakeBackend):
    def interrupt(self) -> None:
        raise AssertionError("the states would be lost")


def test_a_step_of_an_answer_with_states_is_not_interrupted() -> None:
    engine = Engine(NotInterrupted(supports_truncation=False), Record())
    engine.submit(request("a", ignore_eos=True))
    engine.step()
    decode = engine._backend.decode
    engine._backend.decode = lambda chunks: (engine.abort("a"), decode(chunks))[1]  # type: ignore[method-assign]
    run(engine)


def test_a_running_answer_is_put_back_and_not_lost_when_cells_run_out() -> None:
    wanted = [request(name, prompt=name * 20, n_tokens=60, ignore_eos=True) for name in "abc"]
    record = answered(FakeBackend(n_ctx=100, n_cells=120), *wanted)
    for item in wanted:
        assert record.text[item.request_id] == answer_alone(item)[0]
        assert record.finished[item.request_id].usage.n_output_tokens == 60


class BrokenBackend(FakeBackend):
    def decode(self, chunks: list[Chunk]) -> DecodeStatus:
        raise EngineError("It broke.", "Load it again.")


def test_a_fatal_batch_fails_its_requests_and_the_engine_continues() -> None:
    record = Record()
    engine = Engine(BrokenBackend(), record)
    run(engine, request("a"))
    assert record.failed["a"].cause == "It broke."
    assert engine.is_idle


def test_a_higher_priority_request_overtakes_the_queue() -> None:
    record = answered(
        FakeBackend(n_sequences=1),
        request("slow", n_tokens=5),
        request("later", n_tokens=5),
        request("urgent", n_tokens=5, priority=1),
    )
    assert list(record.finished) == ["urgent", "slow", "later"]


def test_a_request_of_a_higher_priority_takes_a_slot_and_the_others_pause_until_it_has_ended() -> None:
    record = Record()
    engine = Engine(FakeBackend(n_sequences=2, n_ctx=200, n_cells=400), record)
    batch = [request(name, f"batch {name}", 30, priority=-2, ignore_eos=True) for name in "abc"]
    for item in batch:
        engine.submit(item)
    for _ in range(5):
        engine.step()
    before = dict(record.text)
    chat = request("chat", "hello", 10, ignore_eos=True)
    engine.submit(chat)
    n_steps = 0
    while "chat" not in record.finished:
        engine.step()
        n_steps += 1
    assert n_steps <= 11  # as alone: one for its prompt, one for each further token
    assert {name: record.text[name] for name in before} == before
    run(engine)
    for item in [*batch, chat]:
        assert record.text[item.request_id] == answer_alone(item)[0]
    engine.check_integrity()


def test_a_higher_priority_takes_the_cells_of_a_lower_one() -> None:
    record = Record()
    engine = Engine(FakeBackend(n_sequences=4, n_ctx=100, n_cells=110), record)
    engine.submit(request("batch", "b" * 60, 30, priority=-2, ignore_eos=True))
    for _ in range(3):
        engine.step()
    engine.submit(request("chat", "c" * 70, 5, ignore_eos=True))
    run(engine)
    assert list(record.finished) == ["chat", "batch"]
    assert record.text["batch"] == answer_alone(request("batch", "b" * 60, 30, ignore_eos=True))[0]


@pytest.mark.parametrize(("priority", "n_cached"), [(0, 64), (-2, 100)])
def test_what_nobody_waits_for_waits_for_more_of_a_shared_prefix(priority: int, n_cached: int) -> None:
    record = Record()
    engine = Engine(FakeBackend(n_sequences=4, n_batch=64, n_ctx=400, n_cells=1200), record)
    for name in "abc":
        engine.submit(request(name, "s" * 100 + name * 20, 3, priority=priority))
    run(engine)
    assert [end.usage.n_cached_tokens for end in record.finished.values()] == [0, n_cached, n_cached]


def test_nobody_waits_for_a_prefix_that_is_computed_at_a_lower_priority() -> None:
    record = Record()
    engine = Engine(FakeBackend(n_sequences=4, n_batch=16, n_ctx=400, n_cells=1200), record)
    shared = "s" * 200
    engine.submit(request("batch", shared + "batch", 5, priority=-2))
    engine.step()
    engine.submit(request("other", "o" * 50, 100, ignore_eos=True))
    engine.submit(request("chat", shared + "chat", 5, ignore_eos=True))
    run(engine)
    assert list(record.finished) == ["chat", "other", "batch"]


def test_close_ends_every_request() -> None:
    record = Record()
    engine = Engine(FakeBackend(n_sequences=1), record)
    engine.submit(request("a"))
    engine.submit(request("b"))
    engine.step()
    engine.close()
    assert {event.reason for event in record.finished.values()} == {FinishReason.ABORTED}
    assert set(record.finished) == {"a", "b"}


def test_the_next_turn_of_a_conversation_computes_only_what_is_new() -> None:
    record = Record()
    engine = Engine(FakeBackend(), record)
    run(engine, request("a", prompt="x" * 50, n_tokens=10, ignore_eos=True))
    run(engine, request("b", prompt="x" * 50 + record.text["a"] + " and then", n_tokens=1))
    assert record.finished["b"].usage.n_cached_tokens == 59  # the last token of the answer was never computed


def test_an_edited_turn_reuses_the_begin_and_leaves_the_old_branch_to_be_taken_up_again() -> None:
    record = Record()
    engine = Engine(FakeBackend(), record)
    for name, prompt in (("a", "s" * 40 + "old turn"), ("b", "s" * 40 + "new turn"), ("c", "s" * 40 + "old turn, on")):
        run(engine, request(name, prompt=prompt, n_tokens=1))
    assert record.finished["b"].usage.n_cached_tokens == 40
    assert record.finished["c"].usage.n_cached_tokens == 48


def test_concurrent_requests_compute_their_shared_prefix_once() -> None:
    record = Record()
    backend = FakeBackend()
    engine = Engine(backend, record)
    for name in "abcd":
        engine.submit(request(name, prompt="s" * 300 + name, n_tokens=2, ignore_eos=True))
    run(engine)
    assert [record.finished[name].usage.n_cached_tokens for name in "abcd"] == [0, 300, 300, 300]
    assert backend.n_cells_used < 300 + 4 * 4


def test_a_full_cache_evicts_the_least_recently_used_prefix() -> None:
    record = Record()
    engine = Engine(FakeBackend(n_ctx=100, n_cells=200), record)
    for name, prompt in (("a", "a" * 80), ("b", "b" * 80), ("a2", "a" * 81), ("c", "c" * 80), ("a3", "a" * 82)):
        run(engine, request(name, prompt=prompt, n_tokens=1))
    run(engine, request("b2", prompt="b" * 81, n_tokens=1))
    assert record.finished["a3"].usage.n_cached_tokens == 81
    assert record.finished["b2"].usage.n_cached_tokens == 0


def test_a_model_without_truncation_reuses_whole_sequences_and_what_it_saved_of_its_states(tmp_path: Path) -> None:
    record = Record()
    store = StateStore(tmp_path)
    engine = Engine(FakeBackend(supports_truncation=False), record, store)
    run(engine, request("a", prompt="x" * 50, n_tokens=4, ignore_eos=True))
    run(
        engine,
        request("b", prompt="x" * 50 + record.text["a"] + "!", n_tokens=1),
        request("c", prompt="x" * 50 + "?", n_tokens=1),
    )
    assert record.finished["b"].usage.n_cached_tokens == 53
    assert record.finished["c"].usage.n_cached_tokens == 50  # from the checkpoint at the end of the prompt
    store.close()


@pytest.mark.parametrize("n_rollback", [0, 3, 15])
def test_a_model_with_states_drafts_and_returns_to_an_earlier_state_when_a_draft_is_rejected(n_rollback: int) -> None:
    record = Record()
    backend = FakeBackend(supports_truncation=False, n_rollback=n_rollback)
    engine = Engine(backend, record, step_cost=free_steps())
    wanted = [request(name, prompt=name * 9, n_tokens=200, ignore_eos=True) for name in ("a", "b")]
    run(engine, *wanted)
    for item in wanted:
        usage = record.finished[item.request_id].usage
        assert 0 < usage.n_accepted_tokens < usage.n_drafted_tokens
        assert usage.n_passes < 200
        assert record.text[item.request_id] == answer_alone(item)[0]
    run(engine, request("c", prompt="a" * 9 + record.text["a"] + "!", n_tokens=1))
    assert record.finished["c"].usage.n_cached_tokens > 150


@pytest.mark.parametrize(("stop", "is_fast"), [((), True), (("never said",), False)])
def test_a_model_with_states_runs_several_steps_at_once_unless_its_text_may_end_the_answer_midway(
    stop: tuple[str, ...], is_fast: bool
) -> None:
    record = Record()
    cost = StepCost({n_tokens: float(n_tokens) for n_tokens in (1, 64)}, single_s=0.001)
    engine = Engine(FakeBackend(supports_truncation=False), record, step_cost=cost, clock=lambda: 0.0)
    engine.submit(request("a", n_tokens=60, ignore_eos=True, stop=stop))
    n_scheduled = 0
    while not engine.is_idle:
        engine.step()
        n_scheduled += 1
    assert (n_scheduled < 30) is is_fast
    whole = "a prompt" + record.text["a"]
    run(engine, request("b", prompt=whole + "!", n_tokens=1))
    assert record.finished["b"].usage.n_cached_tokens == len(whole) - 1


def test_a_model_with_a_window_drafts_and_continues_where_the_window_is_still_held() -> None:
    record = Record()
    backend = FakeBackend(n_window=20)
    engine = Engine(backend, record, step_cost=free_steps())
    run(engine, request("a", prompt="x" * 50, n_tokens=40, ignore_eos=True))
    assert record.finished["a"].usage.n_accepted_tokens > 0
    whole = "x" * 50 + record.text["a"]
    cached = {}
    for name, prompt in (("b", whole + "!"), ("c", whole[:-9] + "?"), ("other", "y" * 9), ("d", "x" * 30 + "?")):
        run(engine, request(name, prompt=prompt, n_tokens=1))
        cached[name] = record.finished[name].usage.n_cached_tokens
    assert cached["b"] >= 89
    assert (cached["c"], cached["d"]) == (0, 0), "the window before what is new is lost"


def test_drafts_are_accepted_where_the_text_repeats() -> None:
    record = Record()
    engine = Engine(FakeBackend(), record)
    wanted = request("a", n_tokens=400, ignore_eos=True)
    run(engine, wanted)
    usage = record.finished["a"].usage
    assert 0 < usage.n_accepted_tokens <= usage.n_drafted_tokens
    assert record.text["a"] == answer_alone(wanted)[0]


class RefusesAt(FakeBackend):
    """Its samplers refuse the n-th token, as a grammar does that allows none; a draft is being verified then."""

    n_taken = 0

    def choose(self, row: int, salt: str, ignore_eos: bool) -> int:
        self.n_taken += 1
        if self.n_taken == 60:
            raise RequestError("No token is allowed.")
        return super().choose(row, salt, ignore_eos)


def test_a_request_that_fails_during_verification_leaves_a_clean_slot() -> None:
    record = Record()
    engine = Engine(RefusesAt(), record, step_cost=free_steps())
    run(engine, request("a", n_tokens=200, ignore_eos=True))
    assert record.failed["a"].cause == "No token is allowed."
    again = request("b", prompt="a prompt" + record.text["a"], n_tokens=5, ignore_eos=True)
    run(engine, again)
    assert record.text["b"] == answer_alone(again)[0]


def test_an_evicted_sequence_is_restored_from_the_store(tmp_path: Path) -> None:
    record, store = Record(), StateStore(tmp_path)
    engine = Engine(FakeBackend(n_ctx=200, n_cells=200), record, store)
    for name, prompt in (("a", "a" * 150), ("b", "b" * 150), ("a2", "a" * 151)):
        run(engine, request(name, prompt=prompt, n_tokens=1))
    assert record.finished["a2"].usage.n_cached_tokens == 150
    store.close()


def test_idle_sequences_are_offloaded_before_another_and_restored_later(tmp_path: Path) -> None:
    record, store = Record(), StateStore(tmp_path)
    backend = FakeBackend()
    engine = Engine(backend, record, store)
    for name, prompt in (("a", "a" * 1500), ("b", "b" * 500), ("a2", "a" * 1500 + "!"), ("b2", "b" * 500 + "!")):
        run(engine, request(name, prompt=prompt, n_tokens=1))
        assert backend.n_cells_used <= len(prompt) * 9 / 8 + 2
    assert record.finished["a2"].usage.n_cached_tokens == 1500
    assert record.finished["b2"].usage.n_cached_tokens == 500
    store.close()


def test_idle_sequences_leave_the_cache_while_others_run_and_what_runs_stays(tmp_path: Path) -> None:
    record, store = Record(), StateStore(tmp_path)
    backend = FakeBackend()
    engine = Engine(backend, record, store)
    run(engine, request("idle", prompt="i" * 900, n_tokens=1))
    engine.submit(request("runs", prompt="r" * 100, n_tokens=100, ignore_eos=True))
    engine.step()
    for name, n_most in (("short", 500), ("next", 200)):
        engine.submit(request(name, prompt=name[0] * n_most, n_tokens=1))
        while name not in record.finished:
            engine.step()
        assert "runs" not in record.finished
        assert backend.n_cells_used < 200 + n_most
    run(engine)
    assert record.text["runs"] == answer_alone(request("runs", prompt="r" * 100, n_tokens=100, ignore_eos=True))[0]
    store.close()


def test_idle_sequences_stay_in_the_cache_of_a_gpu(tmp_path: Path) -> None:
    record, store = Record(), StateStore(tmp_path)
    backend = FakeBackend()
    backend.facts = replace(backend.facts, is_on_host=False)
    engine = Engine(backend, record, store)
    for name in "ab":
        run(engine, request(name, prompt=name * 1500, n_tokens=1))
    assert backend.n_cells_used == 3000
    store.close()


def test_a_conversation_continues_after_a_restart_from_its_saved_state(tmp_path: Path) -> None:
    for n_start, n_cached in ((0, 0), (1, 120)):
        record, store = Record(), StateStore(tmp_path)
        engine = Engine(FakeBackend(), record, store)
        run(engine, request("a", prompt="p" * 120 + "!" * n_start, n_tokens=1))
        assert record.finished["a"].usage.n_cached_tokens == n_cached
        while engine.save_idle_sequence():
            pass
        store.close()


def test_the_states_at_the_end_of_a_prompt_are_saved_after_its_first_token(tmp_path: Path) -> None:
    record, store = Record(), StateStore(tmp_path)
    engine = Engine(FakeBackend(supports_truncation=False), record, store)
    engine.submit(request("a", prompt="p" * 120, n_tokens=9, ignore_eos=True))
    engine.step()
    assert record.text["a"]
    assert not store.checkpoints([*b"p" * 120])
    engine.save_checkpoints()
    assert [match.n_tokens for match in store.checkpoints([*b"p" * 120])] == [120]
    store.close()


def test_idle_saving_ends(tmp_path: Path) -> None:
    record, store = Record(), StateStore(tmp_path)
    engine = Engine(FakeBackend(), record, store)
    for name in "abc":
        engine.submit(request(name, prompt=name * 100, n_tokens=1))
    run(engine)
    assert [engine.save_idle_sequence() for _ in range(5)] == [True, True, True, False, False]
    store.close()


class FreeDrafts(StepCost):
    """Every draft pays, also one that splits the batch of a model with states."""

    def observe(self, n_tokens: int, duration_s: float, n_answers: int = 1) -> None:
        pass

    def ratios_from(self, n_step: int, n_answers: int = 1, *, is_lasting: bool = False) -> Iterator[float]:
        return repeat(1.0, MAX_DRAFT_TOKENS + 1)

    def ratio(self, n_tokens: int, n_answers: int = 1) -> float:
        return 0.0


def free_steps() -> StepCost:
    """A batch costs hardly more than a token, so whatever can be drafted pays."""
    return StepCost({1: 1.0, 64: 1.01})


class CertainBackend(FakeBackend):
    """A draft model that is certain of every token: right except for one in `wrong_every`."""

    wrong_every = 10**9
    ignores_eos = False

    def logits(self, row: int) -> NDArray[np.float32]:
        logits = np.zeros(self.facts.n_vocab, np.float32)
        is_wrong = len(self._rows[row]) % self.wrong_every == 0
        logits[ord("#") if is_wrong else self.choose(row, "", self.ignores_eos)] = 20.0
        return logits


def draft_model(backend: FakeBackend, wrong_every: int = 10**9) -> DraftModel:
    drafting = CertainBackend()
    drafting.wrong_every, drafting.ignores_eos = wrong_every, True
    return DraftModel(drafting, backend.facts, StepCost(), clock=lambda: 0.0)


def head_drafts(backend: FakeBackend, wrong_every: int = 10**9, *, ignore_eos: bool = True) -> AutoregressiveHeadSource:
    head = FakeHead(backend, wrong_every, ignore_eos=ignore_eos)
    return AutoregressiveHeadSource("mtp head", head, 0.01, StepCost(), clock=lambda: 0.0)


@pytest.mark.parametrize("new_source", [draft_model, head_drafts])
def test_computed_drafts_that_are_right_are_accepted_whole(new_source: Callable[..., DraftSource]) -> None:
    record, backend, wanted = Record(), FakeBackend(), request("a", n_tokens=200, ignore_eos=True)
    source = new_source(backend)
    engine = Engine(backend, record, step_cost=free_steps(), draft_sources=[source])
    run(engine, wanted)
    assert record.text["a"] == answer_alone(wanted)[0]
    assert record.finished["a"].usage.n_passes < 60
    drafted = engine.counters.drafts[source.name]
    assert 0.9 * drafted.n_drafted < drafted.n_accepted


@pytest.mark.parametrize(("limit", "n_passes"), [(0, range(200, 201)), (1, range(100, 111))])
def test_a_request_limits_its_drafts(limit: int, n_passes: range) -> None:
    record, backend = Record(), FakeBackend()
    wanted = replace(request("a", n_tokens=200, ignore_eos=True), max_draft_tokens=limit)
    engine = Engine(backend, record, step_cost=free_steps(), draft_sources=[head_drafts(backend)])
    run(engine, wanted)
    assert record.text["a"] == answer_alone(wanted)[0]
    assert record.finished["a"].usage.n_passes in n_passes
    assert bool(record.finished["a"].usage.n_drafted_tokens) == bool(limit)


@pytest.mark.parametrize("new_source", [draft_model, head_drafts])
def test_a_source_that_is_always_wrong_is_hardly_used(new_source: Callable[..., DraftSource]) -> None:
    record, backend = Record(), FakeBackend()
    source = new_source(backend, wrong_every=1)
    engine = Engine(backend, record, draft_sources=[source], clock=lambda: 0.0)
    for name in "ab":
        run(engine, request(name, prompt=name, n_tokens=400, ignore_eos=True))
    assert engine.counters.drafts[source.name].n_drafted < 60


def test_a_source_that_costs_more_than_it_gains_does_not_keep_steps_from_running_at_once() -> None:
    n_scheduled = []
    for has_source in (False, True):
        cost = StepCost({1: 1.0, 64: 32.5}, single_s=0.001)
        backend = FakeBackend()
        head = FakeHead(backend, 10**9, ignore_eos=True)
        dear = AutoregressiveHeadSource("mtp head", head, 1.0, cost, clock=lambda: 0.0)
        sources: list[DraftSource] = [dear] if has_source else []
        engine = Engine(backend, Record(), step_cost=cost, draft_sources=sources, clock=lambda: 0.0)
        engine.submit(request("a", n_tokens=40, ignore_eos=True))
        n_scheduled.append(0)
        while not engine.is_idle:
            engine.step()
            n_scheduled[-1] += 1
    assert n_scheduled[0] == n_scheduled[1]


@pytest.mark.parametrize("n_window", [0, 20])
def test_a_fast_model_runs_steps_at_once_with_a_window_too(n_window: int) -> None:
    record, cost = Record(), StepCost({1: 1.0, 2: 100.0}, single_s=0.001)
    engine = Engine(FakeBackend(n_window=n_window), record, step_cost=cost, clock=lambda: 0.0)
    wanted = request("a", n_tokens=41, ignore_eos=True)
    engine.submit(wanted)
    n_scheduled = 0
    while not engine.is_idle:
        engine.step()
        n_scheduled += 1
    assert n_scheduled <= 16
    assert engine.counters.n_steps == 41
    assert record.text["a"] == answer_alone(wanted)[0]


@pytest.mark.parametrize(("step_s", "n_at_once"), [(0.001, 8), (0.015, 3), (0.030, 2), (0.041, 1)])
def test_as_many_steps_run_at_once_as_pass_until_text_is_sent(step_s: float, n_at_once: int) -> None:
    cost = StepCost({1: 1.0, 2: 100.0}, single_s=step_s)
    engine = Engine(FakeBackend(), Record(), step_cost=cost, clock=lambda: 0.0)
    engine.submit(request("a", n_tokens=41, ignore_eos=True))
    while not engine.is_decoding:
        engine.step()
    n_steps = engine.counters.n_steps
    engine.step()
    assert engine.counters.n_steps - n_steps == n_at_once


def test_steps_run_at_once_only_while_there_are_cells() -> None:
    clock = itertools.count(0.0, 0.001)
    backend = FakeBackend(n_ctx=60, n_cells=64, supports_truncation=False, has_attention=False)
    engine = Engine(backend, lambda _event: None, clock=lambda: float(next(clock)))
    for name in ("a", "b"):
        run(engine, request(name, prompt=f"{name} begins", n_tokens=40, ignore_eos=True, max_draft_tokens=0))


def test_an_earlier_answer_is_drafted_for_one_that_begins_like_it() -> None:
    record = Record()
    engine = Engine(FakeBackend(), record)
    run(engine, request("a", prompt="one", n_tokens=150, ignore_eos=True))
    run(engine, request("b", prompt="two", n_tokens=150, ignore_eos=True))
    drafted = engine.counters.drafts["cross-request lookup"]
    assert 0 < drafted.n_accepted <= drafted.n_drafted
    assert record.text["b"] == answer_alone(request(prompt="two", n_tokens=150, ignore_eos=True))[0]


STATES: list[dict[str, Any]] = [{"supports_truncation": False, "n_rollback": n_tokens} for n_tokens in (0, 2, 15)]

arrivals = st.lists(
    st.tuples(
        st.integers(0, 12),  # steps before it arrives
        st.text("xyz é", min_size=1, max_size=40),
        st.integers(0, 30),  # max_tokens
        st.sampled_from([None, 1, 3, 9]),  # aborted after this many steps
        st.integers(0, 1),
        st.sampled_from([GREEDY, SamplingParams(seed=7)]),
    ),
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=75)
@given(
    arrivals,
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(100, 200),
    st.sampled_from([{}, *STATES, {"n_window": 3}, {"n_window": 20}]),
    st.sampled_from([None, 2, 10**9]),  # how often a draft model is wrong
    st.sampled_from([None, 2, 10**9]),  # and an MTP head
)
def test_batched_reused_and_drafted_answers_equal_serial_ones_under_random_arrivals_and_aborts(
    rows: list[tuple[int, str, int, int | None, int, SamplingParams]],
    n_sequences: int,
    n_batch: int,
    n_cells: int,
    truncation: dict[str, Any],
    wrong_every: int | None,
    head_wrong_every: int | None,
) -> None:
    record = Record()
    backend = FakeBackend(
        n_ctx=100, n_cells=n_cells, n_sequences=n_sequences, n_batch=max(n_batch, n_sequences), **truncation
    )
    drafting = CertainBackend(
        n_ctx=90, n_cells=n_cells, n_sequences=n_sequences, n_batch=max(n_batch, n_sequences), **truncation
    )
    drafting.wrong_every = wrong_every or 1
    drafts = DraftModel(drafting, backend.facts, StepCost(), clock=lambda: 0.0)
    sources: list[DraftSource] = [drafts] if wrong_every else []
    if head_wrong_every:
        sources.insert(0, head_drafts(backend, head_wrong_every, ignore_eos=False))
    engine = Engine(backend, record, step_cost=FreeDrafts(), draft_sources=sources)
    wanted: dict[str, Request] = {}
    aborts: list[tuple[int, str]] = []
    for index, (delay, prompt, n_tokens, abort_after, priority, sampling) in enumerate(rows):
        for _ in range(delay):
            engine.step()
        for due in [item for item in aborts if item[0] <= 0]:
            engine.abort(due[1])
        name = str(index)
        wanted[name] = request(name, prompt, n_tokens, priority=priority, sampling=sampling)
        engine.submit(wanted[name])
        aborts = [(steps - delay, other) for steps, other in aborts]
        if abort_after is not None:
            aborts.append((abort_after, name))
    for _, name in aborts:
        engine.abort(name)
    run(engine)
    assert not record.failed
    for name, item in wanted.items():
        text, reason = answer_alone(item)
        if record.finished[name].reason is FinishReason.ABORTED:
            assert text.startswith(record.text[name])
        else:
            assert (record.text[name], record.finished[name].reason) == (text, reason)


class PacedBackend(FakeBackend):
    """Takes as long as attention does: each token longer than those before it, by the clock `now_s`."""

    now_s = 0.0

    def __init__(self, **facts: Any) -> None:
        super().__init__(**facts)
        self.steps: list[list[Chunk]] = []

    def decode(self, chunks: list[Chunk]) -> DecodeStatus:
        self.steps.append(list(chunks))
        for chunk in chunks:
            n = len(chunk.tokens)
            self.now_s += n * 0.01 * (1 + 0.002 * (chunk.position + n / 2))
        return super().decode(chunks)


def test_the_progress_of_a_slow_prompt_is_seen_every_second_with_the_rest_of_its_time() -> None:
    backend = PacedBackend(n_ctx=8192, n_cells=8192)
    engine = Engine(backend, Record(), clock=lambda: backend.now_s)
    engine.submit(request(prompt="a" * 6000, n_tokens=1))
    seen = []
    while not engine.is_idle:
        engine.step()
        seen += [(backend.now_s, progress) for progress in engine.running]
    reading = [(now_s, each) for now_s, each in seen if each.n_computed_tokens < 6000]
    gaps_s = [later - before for (before, _), (later, _) in itertools.pairwise(reading[1:])]
    slowest_s = 64 * 0.01 * (1 + 0.002 * 6000)  # a step has 64 tokens at least
    assert max(gaps_s) < slowest_s
    assert all(each.n_prompt_tokens == 6000 and each.prompt_s == now_s for now_s, each in reading)
    for now_s, each in reading:
        if each.n_computed_tokens >= 600:
            assert each.prompt_left_s == pytest.approx(backend.now_s - now_s, rel=0.25)


@pytest.mark.parametrize("has_states", [True, False])
def test_no_slow_prompt_of_a_model_with_states_is_cut_beside_another(has_states: bool) -> None:
    backend = PacedBackend(supports_truncation=not has_states)
    engine = Engine(backend, Record(), clock=lambda: backend.now_s)
    engine.submit(request("first", prompt="z" * 600, n_tokens=1))
    run(engine)  # so that it knows how slow prompts are
    for key in "abcd":
        engine.submit(request(key, prompt=key * 330, n_tokens=8))
    backend.steps.clear()
    run(engine)
    read = [[chunk for chunk in chunks if chunk.position < 330] for chunks in backend.steps]
    ends = [[chunk.position + len(chunk.tokens) for chunk in chunks] for chunks in read]
    n_cut_beside_another = sum(len(step) > 1 and min(step) < 330 for step in ends)
    assert (n_cut_beside_another == 0) is has_states


@pytest.mark.parametrize("facts", [{"is_on_host": False}, {"fetches_weights": True}])
def test_a_prompt_that_is_read_from_the_cache_has_no_time_left_and_a_gpu_computes_whole_batches(
    facts: dict[str, bool],
) -> None:
    backend = PacedBackend(n_ctx=8192, n_cells=8192)
    backend.facts = replace(backend.facts, **facts)
    engine = Engine(backend, Record(), clock=lambda: backend.now_s)
    engine.submit(request(prompt="a" * 3000, n_tokens=1))
    n_computed = []
    while not engine.is_idle:
        engine.step()
        n_computed += [each.n_computed_tokens for each in engine.running]
    assert n_computed[:3] == [512, 1024, 1536]
    engine.submit(request("b", prompt="a" * 3000, n_tokens=3))
    engine.step()
    [progress] = engine.running
    assert (progress.n_cached_tokens, progress.prompt_left_s) == (2999, None)


def test_the_tokens_of_a_step_with_logits_are_no_more_than_a_plan_counts() -> None:
    """Beyond them llama.cpp ends the process: answers with their drafts, and scored prompts."""
    most_of_answers = 8 + MAX_DRAFT_TOKENS
    for n_vocab in (4096, 32_000, 262_144):
        n_scored = max(1, SCORED_BYTES // (4 * n_vocab))
        assert most_outputs(n_vocab, n_sequences=8) >= most_of_answers + n_scored


def test_the_next_prompt_is_expected_to_cost_what_the_last_one_did() -> None:
    backend = PacedBackend(n_ctx=16384, n_cells=16384)
    backend.facts = replace(backend.facts, passes_over_cells=False)
    engine = Engine(backend, Record(), clock=lambda: backend.now_s)
    for name, letter in (("a", "a"), ("b", "b")):
        engine.submit(request(name, prompt=letter * 4000, n_tokens=1))
        begun_s = backend.now_s
        engine.step()
        first = engine.running[0].prompt_left_s if name == "b" else None
        after_s = backend.now_s
        while not engine.is_idle:
            engine.step()
    assert first == pytest.approx(backend.now_s - after_s, rel=0.2)
    assert after_s - begun_s < 4
