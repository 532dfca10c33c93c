"""Builds small GGUF files of encoders for tests: whole tiny BERTs that embed or rank."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.quantizer.gguf_files import write_gguf

__all__ = ["tiny_bert"]

N_EMBD, N_FF, N_LAYERS, N_HEADS, N_CTX = 32, 64, 2, 2, 64
_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
_WORDS = ["▁cat", "▁dog", "▁the", "▁sat", "▁ran", "▁?", *(f"▁{letter}" for letter in "abcdefgh")]


def tiny_bert(path: Path, pooling: gguf.PoolingType, has_rank_head: bool = False) -> Path:
    """Write a loadable BERT of 18 tokens and two layers that knows a few words, such as "the cat sat"."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(N_LAYERS)
    writer.add_head_count(N_HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    _add_vocabulary(writer)
    write_gguf(writer, _weights(has_rank_head))
    return path


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*_SPECIALS, *_WORDS])
    writer.add_token_types([3] * len(_SPECIALS) + [1] * len(_WORDS))
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)


def _weights(has_rank_head: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)

    def matrix(n_rows: int, n_columns: int) -> np.ndarray:
        return (rng.standard_normal((n_rows, n_columns)) * 0.2).astype(np.float32)

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": np.ones(N_EMBD, np.float32), f"{name}.bias": np.zeros(N_EMBD, np.float32)}

    weights = {
        "token_embd.weight": matrix(len(_SPECIALS) + len(_WORDS), N_EMBD),
        "token_types.weight": matrix(2, N_EMBD),
        "position_embd.weight": matrix(N_CTX, N_EMBD),
        **norm("token_embd_norm"),
    }
    shapes = {
        "attn_q": (N_EMBD, N_EMBD),
        "attn_k": (N_EMBD, N_EMBD),
        "attn_v": (N_EMBD, N_EMBD),
        "attn_output": (N_EMBD, N_EMBD),
        "ffn_up": (N_FF, N_EMBD),
        "ffn_down": (N_EMBD, N_FF),
    }
    for layer in range(N_LAYERS):
        for name, shape in shapes.items():
            weights[f"blk.{layer}.{name}.weight"] = matrix(*shape)
            weights[f"blk.{layer}.{name}.bias"] = np.zeros(shape[0], np.float32)
        weights |= norm(f"blk.{layer}.attn_output_norm") | norm(f"blk.{layer}.layer_output_norm")
    if has_rank_head:
        weights["cls.output.weight"] = matrix(1, N_EMBD)
        weights["cls.output.bias"] = np.zeros(1, np.float32)
    return weights
