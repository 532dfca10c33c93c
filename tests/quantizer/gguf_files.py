"""Builds small GGUF files for tests: a whole tiny Llama, or any bytes that a header test needs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

__all__ = [
    "Edit",
    "Skeleton",
    "byte_level_tokens",
    "raw_gguf",
    "raw_string",
    "tiny_llama",
    "tiny_weights",
    "write_gguf",
]

Edit = Callable[[gguf.GGUFWriter], None]

N_TOKENS, N_EMBD, N_FF, N_LAYERS, N_HEADS, N_KV_HEADS = 272, 64, 96, 2, 4, 2


def byte_level_tokens(n_tokens: int = N_TOKENS) -> list[str]:
    """The 256 byte tokens in GPT-2's printable alphabet, two merged ones, then specials."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    specials = ["<|im_start|>", "<|im_end|>", *(f"<|reserved_{i}|>" for i in range(n_tokens - 260))]
    return [*(alphabet[byte] for byte in range(256)), "th", "he", *specials]


def tiny_llama(
    path: Path, edit: Edit | None = None, tensors: dict[str, np.ndarray] | None = None, architecture: str = "llama"
) -> Path:
    """Write a loadable Llama of 272 tokens and two layers; `edit` may add or change metadata before it is written."""
    writer = gguf.GGUFWriter(path, architecture)
    _add_hyperparameters(writer)
    _add_vocabulary(writer)
    if edit is not None:
        edit(writer)
    write_gguf(writer, tiny_weights() if tensors is None else tensors)
    return path


def write_gguf(writer: gguf.GGUFWriter, tensors: Mapping[str, np.ndarray]) -> None:
    """Write what `writer` was given, and `tensors`, to its file."""
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_hyperparameters(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(128)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(N_LAYERS)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(byte_level_tokens())
    writer.add_token_types([1] * 258 + [3] * (N_TOKENS - 258))
    writer.add_token_merges(["t h", "h e"])
    writer.add_eos_token_id(259)


def tiny_weights() -> dict[str, np.ndarray]:
    """Random F16 weights of the tiny Llama, by tensor name."""
    rng = np.random.default_rng(7)

    def matrix(n_rows: int, n_columns: int) -> np.ndarray:
        return (rng.standard_normal((n_rows, n_columns)) * 0.05).astype(np.float16)

    n_kv = N_EMBD // N_HEADS * N_KV_HEADS
    weights = {"token_embd.weight": matrix(N_TOKENS, N_EMBD), "output_norm.weight": np.ones(N_EMBD, np.float32)}
    for layer in range(N_LAYERS):
        for name, shape in {
            "attn_q": (N_EMBD, N_EMBD),
            "attn_k": (n_kv, N_EMBD),
            "attn_v": (n_kv, N_EMBD),
            "attn_output": (N_EMBD, N_EMBD),
            "ffn_gate": (N_FF, N_EMBD),
            "ffn_up": (N_FF, N_EMBD),
            "ffn_down": (N_EMBD, N_FF),
        }.items():
            weights[f"blk.{layer}.{name}.weight"] = matrix(*shape)
        for name in ("attn_norm", "ffn_norm"):
            weights[f"blk.{layer}.{name}.weight"] = np.ones(N_EMBD, np.float32)
    return weights


def raw_string(text: bytes) -> bytes:
    """A GGUF string: length, then bytes."""
    return struct.pack("<Q", len(text)) + text


def raw_gguf(fields: list[bytes], tensors: list[bytes], data: bytes = b"", version: int = 3) -> bytes:
    """A GGUF put together from encoded metadata entries and tensor rows, with its data aligned to 32 bytes."""
    body = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(fields)) + b"".join(fields) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + data if tensors else body


@dataclass(frozen=True)
class Skeleton:
    """The shape of a llama whose weights are all zero; only its tensor table matters."""

    n_layers: int = 16
    n_embd: int = 256
    n_ff: int = 512
    n_heads: int = 8
    n_kv_heads: int = 8
    n_experts: int = 0
    is_tied: bool = False

    def write(self, path: Path) -> Path:
        """Write it as F16, without a vocabulary."""
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_context_length(128)
        writer.add_embedding_length(self.n_embd)
        writer.add_feed_forward_length(self.n_ff)
        writer.add_block_count(self.n_layers)
        writer.add_head_count(self.n_heads)
        writer.add_head_count_kv(self.n_kv_heads)
        writer.add_layer_norm_rms_eps(1e-5)
        if self.n_experts:
            writer.add_expert_count(self.n_experts)
            writer.add_expert_used_count(2)
        types = {name: np.float32 if len(shape) == 1 else np.float16 for name, shape in self._shapes().items()}
        write_gguf(writer, {name: np.zeros(shape, types[name]) for name, shape in self._shapes().items()})
        return path

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        n_kv = self.n_embd // self.n_heads * self.n_kv_heads
        up, down = (self.n_ff, self.n_embd), (self.n_embd, self.n_ff)
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (64, self.n_embd),
            "output_norm.weight": (self.n_embd,),
        }
        if not self.is_tied:
            shapes["output.weight"] = (64, self.n_embd)
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (self.n_embd,),
            "ffn_norm": (self.n_embd,),
            "attn_q": (self.n_embd, self.n_embd),
            "attn_k": (n_kv, self.n_embd),
            "attn_v": (n_kv, self.n_embd),
            "attn_output": (self.n_embd, self.n_embd),
        }
        if self.n_experts:
            layer |= {"ffn_gate_inp": (self.n_experts, self.n_embd)}
            layer |= {f"ffn_{part}_exps": (self.n_experts, *up) for part in ("gate", "up")}
            layer |= {"ffn_down_exps": (self.n_experts, *down)}
        else:
            layer |= {"ffn_gate": up, "ffn_up": up, "ffn_down": down}
        return shapes | {f"blk.{i}.{name}.weight": shape for i in range(self.n_layers) for name, shape in layer.items()}
