from __future__ import annotations

import numpy as np
import pytest

from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.tensor_types import TensorType, tensor_type_named
from quantizer.write.dtype_conversion import convert

F32, F16, BF16, Q8_0 = map(tensor_type_named, ("F32", "F16", "BF16", "Q8_0"))
EVERY_BFLOAT = np.arange(1 << 16, dtype="<u2")


def values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_every_bfloat_that_a_half_can_hold_becomes_what_numpy_makes_of_it() -> None:
    bits = EVERY_BFLOAT[np.abs(values(EVERY_BFLOAT)) < 65520]
    data, n_bad = convert(bits.tobytes(), BF16, F16, 1, "t")
    assert n_bad == 0
    assert data == values(bits).astype("<f2").tobytes()


def test_a_bfloat_beyond_a_half_is_refused() -> None:
    with pytest.raises(CheckpointError, match="The tensor t has weights beyond the range of F16"):
        convert(np.array([0x3F80, 0x4780], "<u2").tobytes(), BF16, F16, 2, "t")


@pytest.mark.parametrize(("kind", "dtype"), [(F32, "<f4"), (F16, "<f2")])
@pytest.mark.parametrize("target", [F32, F16, BF16, Q8_0])
def test_weights_that_are_not_finite_are_counted(kind: TensorType, dtype: str, target: TensorType) -> None:
    rows = np.ones((2, 32), dtype)
    rows[1, 3:6] = np.nan, np.inf, -np.inf
    assert convert(rows.tobytes(), kind, target, 32, "t")[1] == 3


def test_bfloats_that_are_not_finite_are_counted_on_their_way_to_halves_and_stay_so() -> None:
    bits = np.array([0x3F80, 0x7FC0, 0x7F80, 0xFF80, 0x0001], "<u2")
    data, n_bad = convert(bits.tobytes(), BF16, F16, 5, "t")
    assert n_bad == 3
    np.testing.assert_array_equal(np.frombuffer(data, "<f2"), [1, np.nan, np.inf, -np.inf, 0])


def test_they_stay_what_they_are_in_plain_types_and_become_nothing_in_quantized_ones() -> None:
    rows = np.ones((1, 32), "<f4")
    rows[0, :3] = np.nan, np.inf, -np.inf
    for target in (F16, BF16):
        back = convert(convert(rows.tobytes(), F32, target, 32, "t")[0], target, F32, 32, "t")[0]
        np.testing.assert_array_equal(np.frombuffer(back, "<f4"), rows[0])
    back = convert(convert(rows.tobytes(), F32, Q8_0, 32, "t")[0], Q8_0, F32, 32, "t")[0]
    np.testing.assert_allclose(np.frombuffer(back, "<f4"), [0, 0, 0, *[1] * 29], atol=0.01)


def test_a_quantized_block_with_a_scale_that_is_no_number_is_counted() -> None:
    block = np.zeros(34, np.uint8)
    block[:2] = np.array([np.nan], "<f2").view(np.uint8)
    assert convert(block.tobytes(), Q8_0, Q8_0, 32, "t") == (block.tobytes(), 32)
