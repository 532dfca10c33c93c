"""A tiny Gemma 4 and an assistant that drafts for it from the model's own cells.

Every token has one that follows it, in one long cycle. The assistant knows the cycle in half as many numbers, so that
it is wrong at times.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.quantizer.gguf_files import N_EMBD, N_FF, N_HEADS, N_TOKENS, Edit, tiny_llama

__all__ = ["assistant", "assistant_weights", "assisted_model"]

N_OWN, N_WINDOW = 32, 48
_HEAD = {False: 32, True: 16}  # numbers of a head, by whether the layer has a window
_KV_HEADS = {False: 1, True: 2}
_MODEL_WINDOWS, _OWN_WINDOWS = (True, True, False), (True, False)
Weights = dict[str, np.ndarray]


def assisted_model(path: Path, edit: Edit | None = None) -> Path:
    """Write the model, of three layers; `edit` may add or change metadata before it is written."""

    def describe(writer: gguf.GGUFWriter) -> None:
        _describe(writer, _MODEL_WINDOWS)
        writer.add_embedding_length_per_layer_input(0)
        if edit is not None:
            edit(writer)

    return tiny_llama(path, describe, _model_weights(), "gemma4")


def assistant(path: Path, edit: Edit | None = None, weights: Weights | None = None) -> Path:
    def describe(writer: gguf.GGUFWriter) -> None:
        _describe(writer, _OWN_WINDOWS)
        writer.add_embedding_length(N_OWN)
        writer.add_uint32("gemma4-assistant.embedding_length_out", N_EMBD)
        writer.add_nextn_predict_layers(len(_OWN_WINDOWS))
        if edit is not None:
            edit(writer)

    return tiny_llama(path, describe, weights or assistant_weights(), "gemma4-assistant")


def _describe(writer: gguf.GGUFWriter, windows: tuple[bool, ...]) -> None:
    writer.add_block_count(len(windows))
    writer.add_head_count_kv([_KV_HEADS[has_window] for has_window in windows])
    for what in ("key", "value"):
        writer.add_uint32(f"{writer.arch}.attention.{what}_length", _HEAD[False])
        writer.add_uint32(f"{writer.arch}.attention.{what}_length_swa", _HEAD[True])
    writer.add_rope_dimension_count(_HEAD[False])
    writer.add_uint32(f"{writer.arch}.rope.dimension_count_swa", _HEAD[True])
    writer.add_sliding_window(N_WINDOW)
    writer.add_sliding_window_pattern(list(windows))
    writer.add_rope_freq_base(10_000.0)


def _cycle() -> tuple[np.ndarray, np.ndarray]:
    """The embedding, and for each token that of the token before it in the cycle, shape (N_TOKENS, N_EMBD) both."""
    rng = np.random.default_rng(3)
    embedding = rng.standard_normal((N_TOKENS, N_EMBD))
    order = rng.permutation(N_TOKENS)
    before = np.zeros_like(embedding)
    before[np.roll(order, -1)] = embedding[order]
    return embedding, before


def _model_weights() -> Weights:
    rng = np.random.default_rng(7)
    embedding, before = _cycle()
    weights = {
        "token_embd.weight": embedding,
        "output.weight": 0.3 * before,
        "output_norm.weight": np.ones(N_EMBD),
        "rope_freqs.weight": np.ones(_HEAD[False] // 2),
    }
    for index, has_window in enumerate(_MODEL_WINDOWS):
        n_kv = _KV_HEADS[has_window] * _HEAD[has_window]
        weights |= _layer(rng, index, N_EMBD, has_window, gain=4.0)
        weights |= {
            f"blk.{index}.attn_k.weight": _drawn(rng, n_kv, N_EMBD),
            f"blk.{index}.attn_v.weight": _drawn(rng, n_kv, N_EMBD),
            f"blk.{index}.attn_k_norm.weight": np.ones(_HEAD[has_window]),
        }
    return _f32(weights)


def assistant_weights() -> Weights:
    rng = np.random.default_rng(9)
    _, before = _cycle()
    narrow = np.linalg.qr(rng.standard_normal((N_EMBD, N_OWN)))[0]  # (N_EMBD, N_OWN), its columns are orthonormal
    weights = {
        "token_embd.weight": 0.4 * before @ narrow,
        "output_norm.weight": np.ones(N_OWN),
        "rope_freqs.weight": np.ones(_HEAD[False] // 2),
        # llama.cpp scales the model's embedding by the root of its width
        "nextn.pre_projection.weight": np.concatenate(
            [narrow.T / np.sqrt(N_EMBD), 0.2 * _drawn(rng, N_OWN, N_EMBD)], axis=1
        ),
        "nextn.post_projection.weight": _drawn(rng, N_EMBD, N_OWN),
    }
    for index, has_window in enumerate(_OWN_WINDOWS):
        weights |= _layer(rng, index, N_OWN, has_window, gain=0.2)
        weights[f"blk.{index}.layer_output_scale.weight"] = np.ones(1)
    return _f32(weights)


def _layer(rng: np.random.Generator, index: int, n_embd: int, has_window: bool, gain: float) -> Weights:
    n_query = N_HEADS * _HEAD[has_window]
    norms = {name: np.ones(n_embd) for name in ("attn_norm", "ffn_norm")}
    norms |= {name: gain * np.ones(n_embd) for name in ("post_attention_norm", "post_ffw_norm")}
    matrices = {
        "attn_q": _drawn(rng, n_query, n_embd),
        "attn_output": _drawn(rng, n_embd, n_query),
        "ffn_gate": _drawn(rng, N_FF, n_embd),
        "ffn_up": _drawn(rng, N_FF, n_embd),
        "ffn_down": _drawn(rng, n_embd, N_FF),
    }
    own = {**norms, **matrices, "attn_q_norm": np.ones(_HEAD[has_window])}
    return {f"blk.{index}.{name}.weight": array for name, array in own.items()}


def _drawn(rng: np.random.Generator, n_rows: int, n_columns: int) -> np.ndarray:
    return rng.standard_normal((n_rows, n_columns)) / np.sqrt(n_columns)


def _f32(weights: Weights) -> Weights:
    return {name: array.astype(np.float32) for name, array in weights.items()}
