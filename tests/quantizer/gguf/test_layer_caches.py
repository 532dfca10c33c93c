from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from quantizer.gguf.header import Header, read_header
from quantizer.gguf.layer_caches import layer_caches_of
from tests.quantizer.gguf_files import write_gguf


def header(path: Path, architecture: str, n_layers: int, figures: dict[str, Any]) -> Header:
    """A header of `n_layers` of width 64 in four heads, with `figures` under its architecture's name."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(n_layers)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    for suffix, value in figures.items():
        key = f"{architecture}.{suffix}"
        (writer.add_array if isinstance(value, list) else writer.add_uint32)(key, value)
    write_gguf(writer, {})
    return read_header(path)


@pytest.mark.parametrize(
    ("architecture", "n_layers", "figures", "full_layers"),
    [
        ("gemma3", 12, {"attention.sliding_window": 512}, [5, 11]),
        ("gemma3", 6, {}, [0, 1, 2, 3, 4, 5]),
        ("gemma2", 4, {}, [1, 3]),
        ("gpt-oss", 4, {"attention.sliding_window": 128, "attention.sliding_window_pattern": 4}, [3]),
        ("gemma4", 3, {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False, True]}, [1]),
        ("cohere2moe", 8, {"attention.sliding_window": 8}, [0, 4]),
        ("exaone4", 4, {"attention.sliding_window": 8}, [0, 1, 2, 3]),
        ("phi3", 2, {"attention.sliding_window": 8}, [0, 1]),
    ],
)
def test_layers_outside_of_the_pattern_see_everything(
    tmp_path: Path, architecture: str, n_layers: int, figures: dict[str, Any], full_layers: list[int]
) -> None:
    layers = layer_caches_of(header(tmp_path / "m.gguf", architecture, n_layers, figures)).layers
    assert [index for index, layer in enumerate(layers) if not layer.is_windowed] == full_layers


@pytest.mark.parametrize(
    ("architecture", "figures", "elements"),
    [
        ("mamba", {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16}, 3 * 128 + 16 * 128),
        ("rwkv7", {"wkv.head_size": 16, "token_shift_count": 2}, 64 * (2 + 16)),
        ("lfm2", {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 0]}, 64 * 2),
        ("kimi-linear", {"kda.head_dim": 8, "ssm.conv_kernel": 4, "attention.head_count_kv": [0, 0]}, 4 * 8 * (9 + 8)),
    ],
)
def test_a_state_is_as_large_after_a_thousand_tokens_as_after_one(
    tmp_path: Path, architecture: str, figures: dict[str, Any], elements: int
) -> None:
    layers = layer_caches_of(header(tmp_path / "m.gguf", architecture, 2, figures)).layers
    assert [(layer.state_elements, layer.k_elements) for layer in layers] == [(elements, 0)] * 2


def test_a_layer_may_have_attention_and_a_state(tmp_path: Path) -> None:
    figures = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16}
    (layer,) = layer_caches_of(header(tmp_path / "m.gguf", "falcon-h1", 1, figures)).layers
    assert layer.state_elements
    assert layer.k_elements == 64


def test_one_layer_in_four_of_a_linear_model_has_attention(tmp_path: Path) -> None:
    layers = layer_caches_of(header(tmp_path / "m.gguf", "qwen3next", 8, {})).layers
    assert [bool(layer.k_elements) for layer in layers] == [False, False, False, True] * 2


def test_an_encoder_has_no_cache(tmp_path: Path) -> None:
    assert not any(layer.k_elements for layer in layer_caches_of(header(tmp_path / "m.gguf", "bert", 2, {})).layers)


def test_a_layer_that_only_predicts_answers_nothing(tmp_path: Path) -> None:
    caches = layer_caches_of(header(tmp_path / "m.gguf", "glm4moe", 3, {"nextn_predict_layers": 1}))
    assert not caches.has_idle_cells
    assert (len(caches.layers), len(caches.main_layers)) == (3, 2)


def test_layers_that_read_the_cache_of_others_have_none(tmp_path: Path) -> None:
    layers = layer_caches_of(header(tmp_path / "m.gguf", "gemma4", 5, {"attention.shared_kv_layers": 2})).layers
    assert [bool(layer.k_elements) for layer in layers] == [True, True, True, False, False]


def test_sparse_attention_is_known_to_keep_more_than_is_counted(tmp_path: Path) -> None:
    assert not layer_caches_of(header(tmp_path / "m.gguf", "deepseek4", 2, {})).is_complete
    assert layer_caches_of(header(tmp_path / "n.gguf", "llama", 2, {})).is_complete


@pytest.mark.parametrize(
    ("architecture", "figures", "with_indexer"),
    [
        ("deepseek32", {}, [0, 1, 2, 3, 4, 5, 6]),
        ("glm-dsa", {"context_length": 202_752}, [0, 1, 2, 3, 4, 5, 6]),
        ("glm-dsa", {"context_length": 1 << 20}, [0, 1, 2, 6]),
        ("glm-dsa", {"attention.indexer.types": [True, False, False, True, False, False, False]}, [0, 3]),
    ],
)
def test_the_keys_of_indexers_are_counted_where_a_layer_has_one(
    tmp_path: Path, architecture: str, figures: dict[str, Any], with_indexer: list[int]
) -> None:
    usual = {"attention.indexer.key_length": 128, "attention.key_length": 16, "nextn_predict_layers": 1}
    layers = layer_caches_of(header(tmp_path / "m.gguf", architecture, 8, {**usual, **figures})).layers
    assert [i for i, layer in enumerate(layers) if layer.k_elements == 4 * 16 + 128] == with_indexer
    assert all(layer.k_elements == 4 * 16 for i, layer in enumerate(layers) if i not in with_indexer)
