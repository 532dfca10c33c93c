from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.backend import Chunk
from app.engine.cache.kv_cache import KVCacheManager
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.loop.sequence import plan_shift
from app.engine.messages import Failed, Finished, Output
from app.engine.request import FinishReason, Request, SamplingParams

N_CTX = 64


def request(name: str = "a", prompt: str = "a prompt", **changes: object) -> Request:
    fields = {"sampling": SamplingParams(temperature=0.0), "ignore_eos": True, "context_shift": True, "max_tokens": 200}
    return Request(request_id=name, prompt=prompt, **(fields | changes))  # type: ignore[arg-type]


def answers(backend: FakeBackend, *wanted: Request, **options: object) -> dict[str, tuple[str, Finished | Failed]]:
    events: list[Output | Finished | Failed] = []
    engine = Engine(backend, events.append, **options)  # type: ignore[arg-type]
    for item in wanted:
        engine.submit(item)
    for _ in range(5000):
        if engine.is_idle:
            break
        engine.step()
        engine.check_integrity()
    texts = {item.request_id: "" for item in wanted}
    ends: dict[str, Finished | Failed] = {}
    for event in events:
        if isinstance(event, Output):
            texts[event.request_id] += event.text
        else:
            ends[event.request_id] = event
    return {name: (text, ends[name]) for name, text in texts.items()}


def answer_alone(wanted: Request, n_ctx: int = N_CTX) -> str:
    """Return the answer computed from the tokens that each shift leaves."""
    backend = FakeBackend(n_sequences=1, n_ctx=n_ctx)
    sampler = backend.new_sampler(wanted.sampling, ignore_eos=True)
    tokens, output = backend.tokenize(str(wanted.prompt), True, True), b""
    n_keep = len(tokens) if wanted.n_keep == -1 else wanted.n_keep
    for _ in range(wanted.max_tokens or 0):
        if len(tokens) >= n_ctx:
            n_head, n_discard = plan_shift(len(tokens), n_keep, n_ctx)
            del tokens[n_head : n_head + n_discard]
        backend.truncate(0, 0)
        backend.decode([Chunk(0, 0, tokens, 1)])
        tokens.append(sampler.sample(len(tokens) - 1))
        output += backend.piece(tokens[-1])
    return output.decode()


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_a_shift_drops_tokens_and_leaves_recent_ones(n_ctx: int, n_keep: int) -> None:
    n_head, n_discard = plan_shift(n_ctx, n_keep, n_ctx)
    assert 1 <= n_discard <= max(1, n_ctx - n_head)
    assert 0 <= n_head <= max(n_keep, 4)


def test_an_answer_continues_beyond_the_context_and_reports_dropped_tokens() -> None:
    wanted = request()
    text, end = answers(FakeBackend(n_ctx=N_CTX, n_cells=N_CTX), wanted)["a"]
    assert text == answer_alone(wanted)
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.n_output_tokens) == (FinishReason.LENGTH, 200)
    assert end.usage.n_prompt_tokens == len("a prompt")
    assert len("a prompt") + 200 - end.usage.n_dropped_tokens <= N_CTX


@pytest.mark.parametrize("n_keep", [-1, 0, 20, 10_000])
def test_the_answer_depends_on_the_head_of_n_keep_tokens(n_keep: int) -> None:
    wanted = request(n_keep=n_keep)
    assert answers(FakeBackend(n_ctx=N_CTX, n_cells=N_CTX), wanted)["a"][0] == answer_alone(wanted)


def test_without_context_shift_an_answer_ends_with_the_context() -> None:
    _, end = answers(FakeBackend(n_ctx=N_CTX), request(context_shift=None))["a"]
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.n_dropped_tokens) == (FinishReason.LENGTH, 0)
    assert end.usage.n_output_tokens == N_CTX - len("a prompt")


def test_the_engines_setting_is_the_default_of_context_shift() -> None:
    wanted = (request("a", context_shift=None), request("b", "other", context_shift=False))
    ends = answers(FakeBackend(n_ctx=N_CTX), *wanted, shifts_context=True)
    assert len(ends["a"][0]) == 200
    assert len(ends["b"][0]) == N_CTX - len("other")


def test_a_model_that_cannot_shift_refuses() -> None:
    _, end = answers(FakeBackend(n_ctx=N_CTX, supports_truncation=False), request())["a"]
    assert isinstance(end, Failed)
    assert "cannot be shifted" in end.error.cause


def test_a_prompt_that_does_not_fit_is_refused_all_the_same() -> None:
    _, end = answers(FakeBackend(n_ctx=N_CTX), request(prompt="x" * N_CTX))["a"]
    assert isinstance(end, Failed)
    assert end.error.kind == "ContextOverflowError"


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["a prompt", "a prompt of", "z"]), st.integers(-1, 30)), max_size=4))
def test_sequences_that_share_cells_shift_without_moving_each_others(wanted: list[tuple[str, int]]) -> None:
    requests = [request(str(index), prompt, n_keep=n_keep) for index, (prompt, n_keep) in enumerate(wanted)]
    backend = FakeBackend(n_ctx=N_CTX, n_cells=150)
    for item, (text, _) in zip(requests, answers(backend, *requests).values(), strict=True):
        assert text == answer_alone(item)


def test_what_was_computed_with_forgotten_tokens_is_found_by_nobody() -> None:
    backend = FakeBackend(n_ctx=N_CTX, n_cells=N_CTX)
    cache = KVCacheManager(backend)
    tokens = list(range(40))
    slot_id = cache.allocate(tokens).sequence_id
    backend.decode([Chunk(slot_id, 0, tokens, 1)])
    cache.record_computed(slot_id, tokens)
    assert cache.shift(slot_id, n_keep=4, n_discard=10) == 30
    assert cache.n_cached([*tokens[:4], *tokens[14:], 0]) == 4
    cache.release(slot_id)
    assert cache.n_cells_used == backend.n_cells_used == 4


def test_an_answer_ends_when_its_time_is_over() -> None:
    clock = count()
    text, end = answers(FakeBackend(), request(max_time_s=50.0), clock=lambda: float(next(clock)))["a"]
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.LENGTH
    assert 0 < len(text) < 200


def test_an_answer_ends_with_the_first_line_after_its_time() -> None:
    clock = count()
    wanted = request(max_predict_s=20.0, n_keep=0)
    text, end = answers(FakeBackend(), wanted, clock=lambda: float(next(clock)))["a"]
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.LENGTH
    assert text.endswith("\n")
    assert len(text) < 200


def test_a_shifting_answer_without_an_end_is_refused() -> None:
    output, end = answers(FakeBackend(n_sequences=1, n_ctx=N_CTX), request(max_tokens=None))["a"]
    assert isinstance(end, Failed)
    assert (output, end.error.kind) == ("", "RequestError")
    assert "token limit" in end.error.cause


@pytest.mark.parametrize(
    "end", [{"ignore_eos": False}, {"context_shift": False}, {"stop": ("a",)}, {"max_time_s": 1.0}]
)
def test_a_shifting_answer_with_any_end_is_admitted(end: dict[str, object]) -> None:
    engine = Engine(FakeBackend(n_sequences=1, n_ctx=N_CTX), (events := []).append)
    engine.submit(request(max_tokens=None, **end))
    engine.step()
    assert not [event for event in events if isinstance(event, Failed)]
