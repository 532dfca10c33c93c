from __future__ import annotations

import pytest

from offload.footprint.kv_cache import (
    cells_for,
    n_cached_sequences,
    n_holds,
    n_rollback,
    n_seq_max,
    n_states,
    supports_truncation,
)
from quantizer.gguf.layer_caches import layer_caches_of
from tests.offload.model_outlines import header_of


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-8b", True),
        ("deepseek-v2-lite", True),
        ("gemma-2-9b", True),
        ("lfm2-350m", False),
        ("mamba-130m", False),
    ],
)
def test_states_do_not_support_truncation_and_windows_do(name: str, expected: bool) -> None:
    assert supports_truncation(layer_caches_of(header_of(name))) is expected


def test_sequences_are_cached_for_their_prefixes_and_as_many_states_as_are_served() -> None:
    assert n_seq_max(8, supports_truncation=True) == 40
    assert n_seq_max(8, supports_truncation=False) == 16
    assert n_seq_max(250, supports_truncation=True) == n_seq_max(250, supports_truncation=False) == 256


def test_as_many_sequences_can_be_held_as_answer_while_llama_cpp_has_places() -> None:
    assert n_holds(8, supports_truncation=False) == 8
    assert n_holds(100, supports_truncation=False) == 56
    assert n_holds(200, supports_truncation=False) == n_holds(8, supports_truncation=True) == 0


def test_earlier_states_are_kept_only_where_states_are_small() -> None:
    assert n_rollback("lfm2", 512) == 15
    assert n_rollback("lfm2", 8) == 6
    assert n_rollback("qwen35", 512) == n_rollback("mamba2", 512) == 0
    states = layer_caches_of(header_of("mamba-130m"))
    assert n_states(states, 4, "lfm2", 512) == 12 * 16
    assert n_states(states, 4, "mamba2", 512) == 12


def test_few_sequences_are_cached_where_each_takes_the_cells_of_a_window() -> None:
    assert n_seq_max(8, supports_truncation=True, has_windows=True) == 12
    assert n_cached_sequences(layer_caches_of(header_of("gpt-oss-20b")), 8) == 12
    assert n_cached_sequences(layer_caches_of(header_of("llama-3.1-8b")), 8) == 40


def test_layers_with_a_window_have_cells_for_that_of_each_sequence_and_a_batch() -> None:
    caches = layer_caches_of(header_of("gpt-oss-20b"))
    cells = cells_for(caches, 16_384, n_sequences=12)
    assert (cells.n_full, cells.n_windowed) == (16_384, 12 * 128 + 512)
    assert cells_for(caches, 1024, n_sequences=12).n_windowed == 1024  # all, if those are fewer
