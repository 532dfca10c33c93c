from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.footprint.kv_cache import DEFAULT_N_CELLS, DEFAULT_N_CTX, MIN_N_CTX, ContextRequest, plan_context
from quantizer.system.errors import EngineError

GIB = 1 << 30
LLAMA_1B = ContextRequest(
    n_ctx=0, n_ctx_train=131_072, n_sequences=8, bytes_per_cell=32_768, weight_bytes=GIB, free_bytes=16 * GIB
)


def test_the_default_is_the_cap_and_a_notice_names_what_the_model_could_do() -> None:
    plan = plan_context(LLAMA_1B)
    assert (plan.n_ctx, plan.n_cells) == (DEFAULT_N_CTX, DEFAULT_N_CELLS)
    assert "--ctx 131072" in plan.notice


def test_a_model_trained_on_less_than_the_cap_gets_all_of_it_without_a_word() -> None:
    plan = plan_context(replace(LLAMA_1B, n_ctx_train=512))
    assert (plan.n_ctx, plan.n_cells, plan.notice) == (512, 4096, "")


def test_little_memory_shrinks_the_cells_first_and_then_the_context() -> None:
    some = plan_context(replace(LLAMA_1B, n_ctx=2048, free_bytes=GIB + 384 * 1024 * 1024))  # weights leave 6,144 cells
    assert (some.n_ctx, some.n_cells) == (2048, 6144)
    little = plan_context(replace(LLAMA_1B, free_bytes=GIB + 256 * 1024 * 1024))
    assert (little.n_ctx, little.n_cells) == (4096, 4096)


def test_the_default_goes_no_lower_than_a_question_and_its_answer() -> None:
    assert plan_context(replace(LLAMA_1B, free_bytes=GIB)).n_ctx == MIN_N_CTX


def test_a_context_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(EngineError, match=r"1,000,000 tokens needs 31,250 MiB .* 16,384 MiB") as refused:
        plan_context(replace(LLAMA_1B, n_ctx=1_000_000))
    assert "524,288" in refused.value.remedy


def test_a_requested_context_that_fits_is_granted() -> None:
    assert plan_context(replace(LLAMA_1B, n_ctx=65_536)).n_ctx == 65_536
    assert plan_context(replace(LLAMA_1B, n_ctx=65_536)).notice == ""


def test_more_than_the_model_was_trained_on_is_granted_with_a_notice() -> None:
    plan = plan_context(replace(LLAMA_1B, n_ctx=4096, n_ctx_train=2048))
    assert plan.n_ctx == 4096
    assert "longer than the 2,048" in plan.notice


def test_unknown_memory_limits_nothing() -> None:
    assert plan_context(replace(LLAMA_1B, free_bytes=None, n_ctx=10**6)).n_ctx == 10**6


def test_layers_with_a_window_leave_memory_for_a_longer_context() -> None:
    windowed = replace(LLAMA_1B, windowed_bytes_per_cell=24_576, n_windowed_cells=4096, n_ctx_train=0)
    assert windowed.cache_bytes(4096) == 4096 * 32_768
    assert windowed.cache_bytes(65_536) == 4096 * 32_768 + 61_440 * 8192
    assert plan_context(replace(windowed, n_ctx=1_000_000)).n_ctx == 1_000_000
    with pytest.raises(EngineError, match=r"needs 16,096 MiB .* 1,024 MiB is free") as refused:
        plan_context(replace(windowed, n_ctx=2_048_000, free_bytes=GIB))
    n_fitting = int(refused.value.remedy.split("at most ")[1].split(", or")[0].replace(",", ""))
    assert windowed.cache_bytes(n_fitting) <= GIB < windowed.cache_bytes(n_fitting + 1)


def test_a_model_whose_layers_all_have_a_window_fits_at_any_context() -> None:
    windowed = replace(LLAMA_1B, windowed_bytes_per_cell=32_768, n_windowed_cells=4096, n_ctx=10**8)
    assert plan_context(windowed).n_ctx == 10**8


@given(
    st.builds(
        ContextRequest,
        n_ctx=st.just(0),
        n_ctx_train=st.integers(0, 1 << 20),
        n_sequences=st.integers(1, 256),
        bytes_per_cell=st.integers(0, 1 << 20),
        weight_bytes=st.integers(0, 1 << 40),
        free_bytes=st.none() | st.integers(3 * GIB, 1 << 40),
    )
)
def test_every_default_fits_and_the_cells_hold_one_whole_sequence(question: ContextRequest) -> None:
    plan = plan_context(question)
    assert 0 < plan.n_ctx <= plan.n_cells
    assert plan.n_ctx <= (question.n_ctx_train or DEFAULT_N_CTX)
    if question.free_bytes is not None:
        assert question.cache_bytes(plan.n_cells) <= question.free_bytes
