from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from offload.footprint.weights import weight_bytes_per_token, weights_of
from quantizer.gguf.header import Header, TensorInfo, read_header
from tests.offload.model_outlines import header_of
from tests.quantizer.gguf_files import tiny_llama


@pytest.fixture
def header(tmp_path: Path) -> Header:
    """A header whose model uses 2 of its 8 experts."""

    def with_experts(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(8)
        writer.add_expert_used_count(2)

    return read_header(tiny_llama(tmp_path / "tiny.gguf", with_experts))


def _tensor(name: str, n_bytes: int) -> TensorInfo:
    return TensorInfo(name, (n_bytes // 10, 10), 0, 0, n_bytes)


def test_of_an_embedding_one_row_is_read_unless_it_is_the_output_too(header: Header) -> None:
    embedding, output = _tensor("token_embd.weight", 1000), _tensor("output.weight", 1000)
    assert weight_bytes_per_token(header, [embedding, output]) == 1100
    assert weight_bytes_per_token(header, [embedding]) == 1000


def test_of_experts_the_share_in_use_is_read(header: Header) -> None:
    tensors = [_tensor("blk.0.ffn_up_exps.weight", 800), _tensor("blk.0.attn_q.weight", 50)]
    assert weight_bytes_per_token(header, tensors) == 200 + 50


def test_a_dense_model_is_read_whole_but_for_its_embedding(header: Header) -> None:
    n_bytes = sum(tensor.n_bytes for tensor in header.tensors)
    assert 0 < weight_bytes_per_token(header, header.tensors) <= n_bytes


def test_the_output_of_a_tied_model_reads_the_embedding_and_a_device_holds_it_again() -> None:
    header = header_of("qwen3-0.6b")
    weights = weights_of(header, header.tensors)
    embedding = next(tensor.n_bytes for tensor in header.tensors if tensor.name == "token_embd.weight")
    assert weights.tied_bytes == embedding
    assert weights.output.read_bytes - weights.output.weight_bytes == embedding


def test_an_output_of_its_own_is_no_embedding() -> None:
    header = header_of("llama-3.1-8b")
    weights = weights_of(header, header.tensors)
    assert weights.tied_bytes == 0
    assert weights.output.weight_bytes == weights.output.read_bytes > 500 << 20


def test_of_experts_a_token_reads_its_share_and_all_of_them_can_move() -> None:
    header = header_of("qwen3-30b-a3b")
    weights = weights_of(header, header.tensors)
    layer = weights.layers[0]
    assert weights.has_experts
    assert layer.movable_bytes > 0.9 * layer.weight_bytes
    assert layer.movable_read_bytes * 16 == layer.movable_bytes


def test_of_a_dense_layer_the_feed_forward_can_move() -> None:
    header = header_of("llama-3.1-8b")
    layer = weights_of(header, header.tensors).layers[0]
    assert layer.movable_bytes == layer.movable_read_bytes == 3 * 4096 * 14_336 * 34 // 32


def test_groups_and_tensors_come_to_the_same_reading() -> None:
    header = header_of("deepseek-v2-lite")
    weights = weights_of(header, header.tensors)
    grouped = weights.input.read_bytes + sum(layer.read_bytes for layer in weights.layers) + weights.output.read_bytes
    assert grouped == weight_bytes_per_token(header, header.tensors)
