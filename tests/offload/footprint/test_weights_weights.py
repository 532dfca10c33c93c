from __future__ import annotations

from offload.footprint.weights import weight_bytes_per_token, weights_of
from tests.offload.model_outlines import header_of


def test_the_output_of_a_tied_model_reads_the_embedding_and_a_device_holds_it_again() -> None:
    header = header_of("qwen3-0.6b")
    weights = weights_of(header, header.tensors)
    embedding = next(tensor.n_bytes for tensor in header.tensors if tensor.name == "token_embd.weight")
    assert weights.tied_bytes == embedding
    assert weights.output.read_bytes - weights.output.n_bytes == embedding


def test_an_output_of_its_own_is_no_embedding() -> None:
    header = header_of("llama-3.1-8b")
    weights = weights_of(header, header.tensors)
    assert weights.tied_bytes == 0
    assert weights.output.n_bytes == weights.output.read_bytes > 500 << 20


def test_of_experts_a_token_reads_its_share_and_all_of_them_can_move() -> None:
    header = header_of("qwen3-30b-a3b")
    weights = weights_of(header, header.tensors)
    layer = weights.layers[0]
    assert weights.has_experts
    assert layer.movable_bytes > 0.9 * layer.n_bytes
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
