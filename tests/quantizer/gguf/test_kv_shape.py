from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from quantizer.gguf.header import read_header
from quantizer.gguf.layer_caches import KvShape, kv_shape_of
from tests.quantizer.gguf_files import Edit, tiny_llama, write_gguf


def latent(writer: gguf.GGUFWriter) -> None:
    """As DeepSeek's models are converted: one vector of 32 compressed elements and 8 rotated ones for all heads."""
    writer.add_key_length(40)
    writer.add_value_length(32)
    writer.add_key_length_mla(24)
    writer.add_value_length_mla(16)
    writer.add_head_count_kv(1)


# The tiny Llama has 2 layers of width 64 in 4 heads, 2 of them for keys and values.
@pytest.mark.parametrize(
    ("edit", "shape"),
    [
        (None, KvShape(k_elements=64, v_elements=64, k_head=16, v_head=16)),
        (lambda writer: writer.add_key_length(24), KvShape(96, 64, 24, 16)),
        (latent, KvShape(k_elements=2 * 40, v_elements=0, k_head=40, v_head=0)),
    ],
)
def test_the_shape_of_the_cache_is_read_from_the_header(tmp_path: Path, edit: Edit | None, shape: KvShape) -> None:
    assert kv_shape_of(read_header(tiny_llama(tmp_path / "tiny.gguf", edit))) == shape


def test_layers_without_attention_keep_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "hybrid.gguf"
    writer = gguf.GGUFWriter(path, "lfm2")
    writer.add_block_count(3)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv([0, 2, 0])
    write_gguf(writer, {})
    assert kv_shape_of(read_header(path)) == KvShape(k_elements=32, v_elements=32, k_head=16, v_head=16)
