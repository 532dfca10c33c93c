from __future__ import annotations

from dataclasses import replace

import pytest

from offload.devices.machine import Device, DeviceKind, DeviceSpeed, Machine
from offload.speed.cost_model import (
    TYPICAL_TURN,
    Turn,
    Work,
    attention_bytes,
    attention_works,
    decode_s,
    expected_rates,
    prefill_s,
    unpacking_bytes,
)
from quantizer.gguf.header import TensorInfo
from quantizer.gguf.layer_caches import layer_caches_of
from quantizer.gguf.tensor_types import tensor_type_named
from tests.offload.model_outlines import header_of

GB = 10**9
HOST = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=64 * GB, free_bytes=64 * GB, bytes_per_s=50e9)
CARD = Device(
    name="GPU0", kind=DeviceKind.GPU, total_bytes=8 * GB, free_bytes=8 * GB, bytes_per_s=500e9, link_bytes_per_s=25e9
)
RATES = expected_rates(Machine(HOST, (CARD,)))


def work(on_gpu: float, on_host: float, n_crossings: int = 0) -> Work:
    """A model of so many gigabytes here and there, in F16."""
    n_bytes = {"GPU0": on_gpu * GB, "CPU": on_host * GB}
    return Work(read_bytes=n_bytes, operations=n_bytes, n_layers=32, n_crossings=n_crossings)


def test_devices_read_one_after_the_other() -> None:
    alone = [decode_s(part, RATES) - RATES.overhead_s(32) for part in (work(4, 0), work(0, 1))]
    assert decode_s(work(4, 1), RATES) == pytest.approx(sum(alone) + RATES.overhead_s(32))


def test_a_gigabyte_costs_as_many_times_more_as_less_of_it_comes_in_a_second() -> None:
    on_gpu, on_host = (decode_s(part, RATES) - RATES.overhead_s(32) for part in (work(1, 0), work(0, 1)))
    assert on_host / on_gpu == pytest.approx((0.65 * 500) / (0.95 * 50))


def test_each_crossing_and_each_layer_takes_its_time() -> None:
    assert decode_s(work(4, 1, 3), RATES) - decode_s(work(4, 1), RATES) == pytest.approx(3 * RATES.crossing_s)
    assert RATES.overhead_s(64) - RATES.overhead_s(32) == pytest.approx(32 * RATES.layer_s)


def test_a_prompt_is_read_many_times_faster_than_an_answer_comes() -> None:
    assert prefill_s(work(4, 0), RATES, "CPU", 512) < decode_s(work(4, 0), RATES) / 10


@pytest.mark.parametrize("n_ubatch", [512, 2048])
def test_a_gpu_that_computes_with_the_processors_weights_fetches_them_once_for_each_micro_batch(n_ubatch: int) -> None:
    lent = replace(work(1, 4), prompt_gpu="GPU0", fetched_bytes=4 * GB)
    fetching_s = 4 * GB / 25e9 / n_ubatch
    operations_s = 5 * GB * RATES.seconds_per_operation["GPU0"]
    expected_s = fetching_s + operations_s + RATES.overhead_s(32) / n_ubatch
    assert prefill_s(lent, RATES, "CPU", n_ubatch) == pytest.approx(expected_s)


def test_prompts_are_computed_where_the_weights_lie_unless_a_gpu_takes_them() -> None:
    operations_s = GB * (4 * RATES.seconds_per_operation["CPU"] + RATES.seconds_per_operation["GPU0"])
    assert prefill_s(work(1, 4), RATES, "CPU", 512) == pytest.approx(operations_s + RATES.overhead_s(32) / 512)


def test_attention_over_a_cache_that_was_put_there_stays_with_the_processor() -> None:
    lent = replace(work(1, 4), prompt_gpu="GPU0", fetched_bytes=4 * GB)
    attending = replace(lent, host_operations={"attention": 1e9})
    added_s = prefill_s(attending, RATES, "CPU", 512) - prefill_s(lent, RATES, "CPU", 512)
    assert added_s == pytest.approx(1e9 * RATES.seconds_per_operation["CPU"])


def test_a_typical_turn_reads_eight_times_what_it_answers_and_takes_both() -> None:
    assert Turn(n_prompt=2048, n_answer=256) == TYPICAL_TURN
    assert TYPICAL_TURN.seconds(0.001, 0.1) == pytest.approx(2.048 + 25.6)
    assert TYPICAL_TURN.within(512) == Turn(n_prompt=512, n_answer=256)
    assert TYPICAL_TURN.within(0) == TYPICAL_TURN, "the context is not chosen yet"


def test_unknown_rates_are_not_called_known() -> None:
    rates = expected_rates(Machine(HOST, (replace(CARD, bytes_per_s=None),)))
    assert rates.known == {"CPU"}


def test_what_was_measured_on_a_device_precedes_what_its_maker_says() -> None:
    throttled = replace(CARD, speed=DeviceSpeed(100e9, 1e12))
    rates = expected_rates(Machine(HOST, (throttled,)))
    assert rates.seconds_per_byte["GPU0"] == pytest.approx(1 / (0.9 * 100e9))
    assert rates.seconds_per_operation["GPU0"] == pytest.approx(1 / (0.9 * 1e12))
    assert rates.seconds_per_byte["CPU"] == RATES.seconds_per_byte["CPU"]


def attending(name: str, depth: int, *, is_fused: bool = False) -> tuple[float, ...]:
    header = header_of(name)
    works = attention_works(header, layer_caches_of(header), depth, is_fused=is_fused)
    return tuple(attention_bytes(work, is_fused=is_fused) for work in works)


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
