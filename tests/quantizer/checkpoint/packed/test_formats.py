from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantizer.checkpoint.packed.parts import FLOAT8
from tests.quantizer.packers import (
    Packed,
    awq,
    compressed,
    compressed_config,
    compressed_nvfp4,
    e4m3,
    fp8,
    gptq,
    int8_magnitudes,
    int8_rows,
    nf4,
    nvfp4,
    read,
)

seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
sizes = st.integers(1, 6)
quick = settings(max_examples=25)


def assert_exact(packed: Packed, n_rows_per_slab: int = 5) -> None:
    """The weights come out bit for bit, and no part is left over."""
    (weight,) = read(packed.config, packed.tensors, n_rows_per_slab).values()
    assert weight.dtype == np.float32
    assert np.array_equal(weight.reshape(packed.weight.shape).view(np.uint32), packed.weight.view(np.uint32))


@quick
@given(
    rng=seeds,
    n_bits=st.sampled_from([2, 3, 4, 8]),
    group_size=st.sampled_from([32, 64, -1]),
    version=st.sampled_from(["gptq", "gptq_v2"]),
    is_in_order=st.booleans(),
    n=st.tuples(sizes, sizes),
    n_rows_per_slab=st.integers(1, 200),
)
def test_gptq_is_exact_in_any_order_and_width(
    rng: np.random.Generator,
    n_bits: int,
    group_size: int,
    version: str,
    is_in_order: bool,
    n: tuple[int, int],
    n_rows_per_slab: int,
) -> None:
    shape = (32 * n[0], 64 * n[1])
    assert_exact(gptq(rng, "w", shape, n_bits, group_size, version, is_in_order), n_rows_per_slab)


def test_gptq_without_an_order_takes_inputs_as_they_come() -> None:
    packed = gptq(np.random.default_rng(0), "w", (32, 96), is_in_order=True)
    del packed.tensors["w.g_idx"]
    assert_exact(packed)


@quick
@given(rng=seeds, n=st.tuples(sizes, sizes), group_size=st.sampled_from([16, 64]), n_rows_per_slab=st.integers(1, 50))
def test_awq_is_exact(rng: np.random.Generator, n: tuple[int, int], group_size: int, n_rows_per_slab: int) -> None:
    assert_exact(awq(rng, "w", (8 * n[0], 64 * n[1]), group_size), n_rows_per_slab)


@quick
@given(
    rng=seeds,
    n_bits=st.integers(2, 8),
    n=st.tuples(st.integers(1, 70), sizes),
    is_symmetric=st.booleans(),
    is_reordered=st.booleans(),
)
def test_compressed_tensors_packed_in_groups_are_exact(
    rng: np.random.Generator, n_bits: int, n: tuple[int, int], is_symmetric: bool, is_reordered: bool
) -> None:
    assert_exact(compressed(rng, "w", (n[0], 32 * n[1]), n_bits, 32, is_symmetric, is_reordered))


@quick
@given(rng=seeds, n_bits=st.integers(2, 8), shape=st.tuples(st.integers(1, 70), st.integers(1, 70)), flag=st.booleans())
def test_compressed_tensors_packed_by_rows_are_exact(
    rng: np.random.Generator, n_bits: int, shape: tuple[int, int], flag: bool
) -> None:
    assert_exact(compressed(rng, "w", shape, n_bits, None, flag))


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_compressed_tensors_of_eight_bits_are_exact(is_symmetric: bool) -> None:
    assert_exact(int8_rows(np.random.default_rng(0), "w", (33, 70), is_symmetric))


@quick
@given(
    rng=seeds,
    shape=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    block=st.sampled_from([None, (16, 16), (128, 128), (1, 32)]),
)
def test_fp8_is_exact_whatever_a_scale_is_for(
    rng: np.random.Generator, shape: tuple[int, int], block: tuple[int, int] | None
) -> None:
    assert_exact(fp8(rng, "w", shape, block))


def test_fp8_of_compressed_tensors_is_the_same_under_another_name() -> None:
    packed = fp8(np.random.default_rng(0), "w", (33, 40), (16, 16))
    packed.tensors["w.weight_scale"] = packed.tensors.pop("w.weight_scale_inv")
    block = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 16]}
    assert_exact(Packed(packed.tensors, packed.weight, compressed_config("float-quantized", block)))


def test_experts_stacked_in_one_tensor_keep_their_own_blocks() -> None:
    rng = np.random.default_rng(0)
    experts = [fp8(rng, "w", (20, 40), (16, 16)) for _ in range(3)]
    tensors = {
        f"mlp.down_proj{ending}": (dtype, np.stack([expert.tensors[f"w.weight{ending}"][1] for expert in experts]))
        for ending, dtype in (("", "F8_E4M3"), ("_scale_inv", "F32"))
    }
    (weight,) = read(experts[0].config, tensors).values()
    assert np.array_equal(weight.reshape(3, 20, 40), [expert.weight for expert in experts])


def test_eight_bit_floats_have_the_values_of_their_definition() -> None:
    assert np.array_equal(FLOAT8["F8_E4M3"], [e4m3(code) for code in range(256)], equal_nan=True)
    assert FLOAT8["F8_E5M2"][[0x3C, 0x7B, 0x01, 0xBC]].tolist() == [1.0, 57344.0, 2.0**-16, -1.0]
    assert FLOAT8["F8_E8M0"][[0, 127, 254]].tolist() == [2.0**-127, 1.0, 2.0**127]
    assert np.isnan(FLOAT8["F8_E8M0"][255])


@quick
@given(
    rng=seeds,
    shape=st.tuples(st.integers(1, 40), st.integers(1, 70)),
    block=st.sampled_from([32, 64]),
    is_nested=st.booleans(),
    n_rows_per_slab=st.integers(1, 50),
)
def test_nf4_is_exact_where_blocks_run_on_over_rows(
    rng: np.random.Generator, shape: tuple[int, int], block: int, is_nested: bool, n_rows_per_slab: int
) -> None:
    assert_exact(nf4(rng, "w", shape, block, is_nested), n_rows_per_slab)


def test_int8_of_bitsandbytes_is_exact() -> None:
    assert_exact(int8_magnitudes(np.random.default_rng(0), "w", (9, 33)))


def test_scales_of_activations_are_left_out() -> None:
    packed = fp8(np.random.default_rng(0), "w", (8, 8), None)
    unused: dict[str, Any] = {f"w.{name}": ("F32", np.ones(1)) for name in ("activation_scale", "k_scale")}
    assert_exact(Packed(packed.tensors | unused, packed.weight, packed.config))


@quick
@given(rng=seeds, n=st.tuples(sizes, sizes), n_rows_per_slab=st.integers(1, 9))
def test_nvfp4_is_exact_in_both_spellings(rng: np.random.Generator, n: tuple[int, int], n_rows_per_slab: int) -> None:
    assert_exact(nvfp4(rng, "w", (n[0], 16 * n[1])), n_rows_per_slab)
    assert_exact(compressed_nvfp4(rng, "w", (n[0], 16 * n[1])), n_rows_per_slab)


def test_nvfp4_experts_stacked_in_one_tensor_are_exact() -> None:
    assert_exact(nvfp4(np.random.default_rng(0), "w", (3, 4, 32)))


def test_nvfp4_and_fp8_may_lie_in_one_checkpoint_of_modelopt() -> None:
    rng = np.random.default_rng(1)
    four, eight = nvfp4(rng, "a", (4, 32)), fp8(rng, "b", (4, 32), None)
    eight.tensors["b.weight_scale"] = eight.tensors.pop("b.weight_scale_inv")
    found = read(four.config | {"quant_algo": "MIXED_PRECISION"}, four.tensors | eight.tensors)
    assert np.array_equal(found["a.weight"], four.weight)
    assert np.array_equal(found["b.weight"], eight.weight)
