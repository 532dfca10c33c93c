from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from offload.footprint.weights import weight_bytes_per_token
from quantizer.gguf.header import Header, TensorInfo, read_header
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
