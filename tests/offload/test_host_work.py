from __future__ import annotations

import pytest
from model_outlines import header_of

from offload.host_work import attention_bytes, unpacking_bytes
from quantizer.layer_caches import layer_caches_of
from quantizer.tensor_types import TENSOR_TYPES, tensor_type_named


def attending(name: str, depth: int, *, is_fused: bool = False) -> tuple[float, ...]:
    header = header_of(name)
    return attention_bytes(header, layer_caches_of(header), depth, is_fused=is_fused)


def test_a_weight_of_few_bits_takes_longer_to_unpack_than_one_that_is_stored_as_it_is() -> None:
    plain, packed = (unpacking_bytes(tensor_type_named(name).type_id, 1000) for name in ("F32", "Q4_K"))
    assert (plain, packed) == (0.0, 400.0)


def test_a_type_that_nobody_measured_counts_as_slow() -> None:
    slow = unpacking_bytes(tensor_type_named("IQ1_S").type_id, 1000)
    assert slow > unpacking_bytes(tensor_type_named("Q4_K").type_id, 1000)
    assert all(unpacking_bytes(type_id, 1.0) >= 0 for type_id in TENSOR_TYPES)


def test_attention_that_is_not_fused_computes_whole_blocks_of_cells() -> None:
    first, same, next_block = (sum(attending("llama-3.1-8b", depth)) for depth in (0, 255, 256))
    assert first == same
    assert next_block == pytest.approx(2 * first)


def test_fused_attention_passes_over_what_lies_before_a_window() -> None:
    windowed, full = (attending("gemma-3-4b", depth, is_fused=True) for depth in (1024, 4096))
    assert min(windowed) == min(full) > 0
    assert max(full) > max(windowed)


def test_fused_attention_takes_longer_on_a_processor() -> None:
    assert sum(attending("llama-3.1-8b", 2047, is_fused=True)) > 3 * sum(attending("llama-3.1-8b", 2047))


def test_a_state_is_read_and_written_however_deep_it_is() -> None:
    assert attending("mamba-130m", 0) == attending("mamba-130m", 4096)
    assert min(attending("mamba-130m", 0)) > 0
