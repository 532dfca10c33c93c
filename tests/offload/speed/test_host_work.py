from __future__ import annotations

import pytest

from offload.speed.host_work import attention_bytes, unpacking_bytes
from quantizer.gguf.header import TensorInfo
from quantizer.gguf.layer_caches import layer_caches_of
from quantizer.gguf.tensor_types import tensor_type_named
from tests.offload.model_outlines import header_of


def attending(name: str, depth: int, *, is_fused: bool = False) -> tuple[float, ...]:
    header = header_of(name)
    return tuple(attention_bytes(header, layer_caches_of(header), depth, is_fused=is_fused))


def matrix(type_name: str, n_columns: int = 1024, n_rows: int = 8) -> TensorInfo:
    kind = tensor_type_named(type_name)
    return TensorInfo(
        "blk.0.ffn_up.weight", (n_columns, n_rows), kind.type_id, 0, kind.tensor_bytes((n_columns, n_rows))
    )


def test_weights_that_are_stored_as_they_are_take_nothing_but_the_reading() -> None:
    assert unpacking_bytes(matrix("F16")) == 0.0 < unpacking_bytes(matrix("Q4_K"))


def test_the_same_weights_in_shorter_rows_take_longer() -> None:
    long_rows, short_rows = (unpacking_bytes(matrix("Q8_0", n_columns, 1 << 20)) for n_columns in (8192, 1024))
    assert short_rows / 1024 > long_rows / 8192


def test_a_share_of_the_experts_takes_a_share_of_the_time() -> None:
    assert unpacking_bytes(matrix("Q4_K"), 0.125) == pytest.approx(unpacking_bytes(matrix("Q4_K")) / 8)


def test_an_unmeasured_type_counts_as_slow() -> None:
    assert unpacking_bytes(matrix("IQ1_S")) > unpacking_bytes(matrix("Q4_K"))


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
