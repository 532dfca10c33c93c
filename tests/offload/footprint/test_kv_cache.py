from __future__ import annotations

import pytest

from offload.footprint.kv_cache import (
    KV_TYPES,
    KvTypes,
    bytes_per_cell,
    check_kv_types,
    parse_kv_types,
    supports_kv_types,
)
from quantizer.gguf.layer_caches import KvShape
from quantizer.system.errors import UsageError

LLAMA_1B = KvShape(k_elements=16 * 8 * 64, v_elements=16 * 8 * 64, k_head=64, v_head=64)
LATENT = KvShape(k_elements=27 * 576, v_elements=0, k_head=576, v_head=0)


def test_a_token_of_a_1b_llama_takes_32_kib_as_f16() -> None:
    assert bytes_per_cell(KvTypes(), LLAMA_1B) == 32 * 1024


def test_each_smaller_type_takes_fewer_bytes_or_as_many() -> None:
    sizes = [bytes_per_cell(KvTypes(name, name), LLAMA_1B) for name in KV_TYPES]
    assert sizes == sorted(sizes, reverse=True)
    assert bytes_per_cell(KvTypes("q8_0", "q4_0"), LLAMA_1B) == 16 * 8 * 2 * (34 + 18)


def test_one_name_is_for_both_and_two_are_for_keys_and_values() -> None:
    assert parse_kv_types("q8_0") == KvTypes("q8_0", "q8_0")
    assert parse_kv_types("Q8_0,f16") == KvTypes("q8_0", "f16")
    assert parse_kv_types("") == KvTypes()
    assert str(parse_kv_types("q8_0,f16")) == "q8_0,f16"


@pytest.mark.parametrize("text", ["q4_k", "f16,f16,f16", "q8_0,", "f16 f16"])
def test_a_name_that_is_no_type_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(UsageError, match="iq4_nl"):
        parse_kv_types(text)


def test_only_quantized_values_need_fused_attention() -> None:
    assert KvTypes("f16", "q8_0").needs_flash_attention
    assert not KvTypes("q8_0", "f16").needs_flash_attention


def test_a_head_that_is_no_whole_number_of_blocks_is_refused() -> None:
    with pytest.raises(UsageError, match="Values of this model cannot be kept as q8_0: its heads have 40"):
        check_kv_types(KvTypes("f16", "q8_0"), KvShape(640, 640, 64, 40))


def test_a_latent_cache_takes_one_type_only() -> None:
    check_kv_types(KvTypes("q8_0", "q8_0"), LATENT)
    with pytest.raises(UsageError, match="one vector"):
        check_kv_types(KvTypes("q8_0", "f16"), LATENT)


def test_supported_types_are_those_that_are_not_refused() -> None:
    assert supports_kv_types(KvTypes("q8_0", "q8_0"), LATENT)
    assert not supports_kv_types(KvTypes("q8_0", "f16"), LATENT)
