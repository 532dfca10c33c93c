from __future__ import annotations

from offload.footprint.kv_cache import KV_TYPES
from offload.footprint.model import PlannedModel, kv_table
from tests.offload.model_outlines import header_of


def model(name: str) -> PlannedModel:
    header = header_of(name)
    return PlannedModel(header, header.tensors)


def test_contexts_double_up_to_what_the_model_was_trained_on() -> None:
    assert [row.n_ctx for row in kv_table(model("qwen3-0.6b"), 1)] == [2048, 4096, 8192, 16_384, 32_768, 40_960]


def test_a_token_of_an_8b_llama_takes_128_kib_in_f16_and_a_little_over_half_in_q8_0() -> None:
    (row,) = [row for row in kv_table(model("llama-3.1-8b"), 1) if row.n_ctx == 8192]
    assert tuple(row.n_bytes) == KV_TYPES
    assert row.n_bytes["f16"] == 8192 * 128 * 1024
    assert row.n_bytes["q8_0"] == row.n_bytes["f16"] * 34 // 64


def test_states_take_the_same_at_every_context() -> None:
    rows = kv_table(model("mamba-130m"), 2)
    assert len({n_bytes for row in rows for n_bytes in row.n_bytes.values()}) == 1


def test_a_model_without_a_cache_has_none_at_any_context() -> None:
    assert all(n_bytes == 0 for row in kv_table(model("bge-base"), 1) for n_bytes in row.n_bytes.values())
