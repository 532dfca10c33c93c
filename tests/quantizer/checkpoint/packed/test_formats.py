from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantizer.checkpoint.packed.parts import FLOAT8
from tests.quantizer.packers import (
    Packed,
    autoround,
    awq,
    compressed,
    compressed_config,
    compressed_nvfp4,
    e4m3,
    fp8,
    gptq,
    hqq,
    int8_magnitudes,
    int8_rows,
    mxfp4_rows,
    mxfp8,
    nf4,
    nvfp4,
    read,
    torchao_float8,
    torchao_int4,
    torchao_int8,
    torchao_tiles,
)

seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
sizes = st.integers(1, 6)
quick = settings(max_examples=25)


def assert_exact(packed: Packed, n_rows_per_slab: int = 5) -> None:
    """The weights come out bit for bit, and no part is left over."""
    (weight,) = read(packed.config, packed.tensors, n_rows_per_slab, packed.metadata).values()
    assert weight.dtype == np.float32
    assert np.array_equal(weight.reshape(packed.weight.shape).view(np.uint32), packed.weight.view(np.uint32))


@quick
@given(
    rng=seeds,
    n_bits=st.integers(2, 8),
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


@quick
@given(
    rng=seeds,
    n_bits=st.sampled_from([1, 2, 3, 4, 8]),
    group_size=st.sampled_from([None, 8, 64]),
    axis=st.sampled_from([0, 1]),
    n=st.tuples(sizes, sizes),
    n_rows_per_slab=st.integers(1, 50),
)
def test_hqq_is_exact_along_rows_and_columns(
    rng: np.random.Generator, n_bits: int, group_size: int | None, axis: int, n: tuple[int, int], n_rows_per_slab: int
) -> None:
    assert_exact(hqq(rng, "w", (8 * n[0], 64 * n[1]), n_bits, group_size, axis), n_rows_per_slab)


def test_hqq_codes_may_be_stored_as_if_they_were_floats() -> None:
    packed = hqq(np.random.default_rng(0), "w", (16, 64), 4, 32, dtype="F32")
    codes = packed.tensors["w.W_q"][1]
    codes &= 0x77  # so that no bytes are a float that is not a number
    packed.tensors["w.W_q"] = ("F32", codes.view("<f4"))
    expected = hqq(np.random.default_rng(0), "w", (16, 64), 4, 32, dtype="F32")
    expected.tensors["w.W_q"] = ("U8", codes)
    found, plain = (read(form.config, form.tensors)["w.weight"] for form in (packed, expected))
    assert np.array_equal(found, plain)


@quick
@given(rng=seeds, n=st.tuples(sizes, sizes), blocks=st.sampled_from([(1, 32), (4, 64), (8, 32), None]))
def test_torchao_of_eight_bits_is_exact(
    rng: np.random.Generator, n: tuple[int, int], blocks: tuple[int, int] | None
) -> None:
    shape = (8 * n[0], 64 * n[1])
    assert_exact(torchao_int8(rng, "up", shape, blocks))
    assert_exact(torchao_float8(rng, "up", shape))


@quick
@given(rng=seeds, n=st.tuples(sizes, sizes), n_experts=st.integers(0, 3), n_rows_per_slab=st.integers(1, 9))
def test_torchao_of_four_bits_is_exact_for_matrices_and_stacks_of_them(
    rng: np.random.Generator, n: tuple[int, int], n_experts: int, n_rows_per_slab: int
) -> None:
    leading = (n_experts,) if n_experts else ()
    assert_exact(torchao_int4(rng, "up", (*leading, 3 * n[0], 32 * n[1])), n_rows_per_slab)


@pytest.mark.slow
@settings(max_examples=8)
@given(
    rng=seeds,
    shape=st.sampled_from([(8, 64), (13, 1056), (2, 5, 96), (3, 16, 64)]),
    group_size=st.sampled_from([32, 128]),
    n_rows_per_slab=st.integers(1, 20),
)
def test_torchaos_tiles_are_exact_where_they_are_cut_and_where_they_are_stacked(
    rng: np.random.Generator, shape: tuple[int, ...], group_size: int, n_rows_per_slab: int
) -> None:
    assert_exact(torchao_tiles(rng, "up", shape, group_size), n_rows_per_slab)


def changed(packed: Packed, **changes: Any) -> Packed:
    return Packed(packed.tensors, packed.weight, packed.config | changes, packed.metadata)


@pytest.mark.parametrize("method", ["auto-round", "intel/auto-round"])
def test_autoround_is_gptq_or_awq_under_names_of_its_own(method: str) -> None:
    rng = np.random.default_rng(0)
    for name in ("auto_round", "auto_round:exllamav2", "auto_round:gptqmodel"):
        assert_exact(changed(autoround(rng, "w", (64, 96)), quant_method=method, packing_format=name))
    for name in ("auto_round:auto_gptq", "auto_round:gptq:exllamav2"):
        packed = gptq(rng, "w", (64, 96), is_in_order=True)
        assert_exact(changed(packed, quant_method=method, packing_format=name, checkpoint_format=None))
    awq_config = {"quant_method": method, "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": 32}
    packed = awq(rng, "w", (64, 96))
    assert_exact(Packed(packed.tensors, packed.weight, awq_config))


def test_autoround_stores_small_floats_as_compressed_tensors_does() -> None:
    rng = np.random.default_rng(0)
    config = {"quant_method": "auto-round", "packing_format": "auto_round:llm_compressor", "bits": 4}
    for form in (mxfp4_rows, mxfp8, compressed_nvfp4):
        packed = form(rng, "w", (8, 64))
        assert_exact(Packed(packed.tensors, packed.weight, config))
    packed = fp8(rng, "w", (8, 64), (1, 64))
    packed.tensors["w.weight_scale"] = packed.tensors.pop("w.weight_scale_inv")
    assert_exact(Packed(packed.tensors, packed.weight, config | {"packing_format": "auto_round:fp8_static"}))


@pytest.mark.parametrize("key", ["extra_config", "dynamic"])
def test_layers_with_bits_and_groups_of_their_own_are_read_by_their_shapes(key: str) -> None:
    rng = np.random.default_rng(0)
    four, eight, three = gptq(rng, "a", (32, 64)), gptq(rng, "b", (64, 96), 8, 16), gptq(rng, "c", (32, 64), 3, -1)
    config = four.config | {key: {"b": {"bits": 8, "group_size": 16}}}
    found = read(config, four.tensors | eight.tensors | three.tensors)
    for name, packed in {"a": four, "b": eight, "c": three}.items():
        assert np.array_equal(found[f"{name}.weight"], packed.weight)


@pytest.mark.slow
@quick
@given(rng=seeds, n=st.tuples(sizes, sizes), n_rows_per_slab=st.integers(1, 9))
def test_powers_of_two_as_scales_are_exact(rng: np.random.Generator, n: tuple[int, int], n_rows_per_slab: int) -> None:
    shape = (n[0], 32 * n[1])
    assert_exact(mxfp4_rows(rng, "w", shape), n_rows_per_slab)
    packed = mxfp8(rng, "w", shape)
    assert_exact(packed, n_rows_per_slab)
    for config in (
        {"quant_method": "mxfp8"},
        {"quant_method": "fp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"},
        {"quant_method": "modelopt", "quant_algo": "MXFP8"},
    ):
        assert_exact(Packed(packed.tensors, packed.weight, config), n_rows_per_slab)


def test_blocks_may_have_powers_of_two_as_scales() -> None:
    rng = np.random.default_rng(0)
    packed = fp8(rng, "w", (40, 70), (16, 16))
    exponents = rng.integers(110, 130, (3, 5)).astype(np.uint8)
    factors = (2.0 ** (exponents.astype(np.float64) - 127)).astype(np.float32)
    packed.tensors["w.weight_scale_inv"] = ("F32", factors)
    expected = read(packed.config, packed.tensors)["w.weight"]
    packed.tensors["w.weight_scale_inv"] = ("F8_E8M0", exponents)
    assert np.array_equal(read(packed.config, packed.tensors)["w.weight"], expected)


@pytest.mark.parametrize(
    ("counts", "stored"),
    [((1, 1), ()), ((8, 1), (8,)), ((8, 1), (8, 1)), ((4, 2), (4, 2)), ((4, 2), (4, 1, 2, 1))],
    ids=["tensor", "channel", "column of channels", "blocks", "blocks with gaps"],
)
def test_fp8_without_a_block_size_has_as_many_blocks_as_scales(
    counts: tuple[int, int], stored: tuple[int, ...]
) -> None:
    packed = fp8(np.random.default_rng(0), "w", (8, 64), (8 // counts[0], 64 // counts[1]))
    scales = packed.tensors.pop("w.weight_scale_inv")[1]
    packed.tensors["w.weight_scale"] = ("F32", scales.reshape(stored))
    for config in ({"quant_method": "fbgemm_fp8"}, {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}):
        assert_exact(Packed(packed.tensors, packed.weight, config))


def test_fbgemm_experts_may_have_a_scale_for_each_column() -> None:
    rng = np.random.default_rng(0)
    packed = fp8(rng, "w", (6, 40), (6, 1))
    codes, scales = (packed.tensors[f"w.weight{ending}"][1] for ending in ("", "_scale_inv"))
    tensors = {"up": ("F8_E4M3", np.stack([codes, codes])), "up_scale": ("F32", np.stack([scales, scales]))}
    found = read({"quant_method": "fbgemm_fp8"}, tensors)["up"]
    assert np.array_equal(found, np.stack([packed.weight, packed.weight]))
