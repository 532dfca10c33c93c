from __future__ import annotations

import pytest

from offload.footprint.kv_cache import n_seq_max, supports_truncation
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
