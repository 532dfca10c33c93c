"""Builds tiny Llama checkpoints as Hugging Face writes them, with numpy alone."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.quantizer.gguf_files import byte_level_tokens

__all__ = ["TinyLlama", "write_checkpoint", "write_safetensors", "write_tensors"]

LLAMA_3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")


@dataclass(frozen=True)
class TinyLlama:
    """A checkpoint to write; every field is a thing that a test may vary."""

    n_layers: int = 2
    n_embd: int = 256
    n_ff: int = 512
    n_heads: int = 4
    n_kv_heads: int = 2
    dtype: str = "BF16"
    is_tied: bool = False
    n_shards: int = 1
    is_in_order: bool = False  # each shard holds what follows the one before, as published ones do
    rope: dict[str, Any] | None = None
    extra_config: dict[str, Any] = field(default_factory=dict)

    n_vocab: int = 272

    def write(self, folder: Path) -> Path:
        """Write config, tokenizer and weights into `folder`, which is made."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config()))
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config()))
        self._write_weights(folder)
        return folder

    def config(self) -> dict[str, Any]:
        """config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.n_embd,
            "intermediate_size": self.n_ff,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "max_position_embeddings": 256,
            "vocab_size": self.n_vocab,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "tie_word_embeddings": self.is_tied,
            "bos_token_id": 258,
            "eos_token_id": 260,
            "hidden_act": "silu",
            "rope_scaling": self.rope,
        } | self.extra_config

    def weights(self) -> dict[str, np.ndarray]:
        """Seeded float32 weights that the chosen dtype holds exactly, by HF name."""
        rng = np.random.default_rng(11)
        n_kv = self.n_embd // self.n_heads * self.n_kv_heads
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.n_vocab, self.n_embd)}
        for i in range(self.n_layers):
            layer = f"model.layers.{i}"
            for name, n_rows in (("q", self.n_embd), ("k", n_kv), ("v", n_kv), ("o", self.n_embd)):
                shapes[f"{layer}.self_attn.{name}_proj.weight"] = (n_rows, self.n_embd)
            shapes[f"{layer}.mlp.gate_proj.weight"] = (self.n_ff, self.n_embd)
            shapes[f"{layer}.mlp.up_proj.weight"] = (self.n_ff, self.n_embd)
            shapes[f"{layer}.mlp.down_proj.weight"] = (self.n_embd, self.n_ff)
            shapes[f"{layer}.input_layernorm.weight"] = (self.n_embd,)
            shapes[f"{layer}.post_attention_layernorm.weight"] = (self.n_embd,)
        shapes["model.norm.weight"] = (self.n_embd,)
        if not self.is_tied:
            shapes["lm_head.weight"] = (self.n_vocab, self.n_embd)
        return {
            name: exact(rng.standard_normal(shape, np.float32) * np.float32(0.08), self.dtype)
            for name, shape in shapes.items()
        }

    def _part(self, weights: list[tuple[str, np.ndarray]], shard: int) -> list[tuple[str, np.ndarray]]:
        first, last = (len(weights) * number // self.n_shards for number in (shard, shard + 1))
        return weights[first:last] if self.is_in_order else weights[shard :: self.n_shards]

    def _write_weights(self, folder: Path) -> None:
        weights = self.weights()
        if self.n_shards == 1:
            write_safetensors(folder / "model.safetensors", weights, self.dtype)
            return
        weight_map = {}
        for shard in range(self.n_shards):
            name = f"model-{shard + 1:05d}-of-{self.n_shards:05d}.safetensors"
            part = dict(self._part(list(weights.items()), shard))
            write_safetensors(folder / name, part, self.dtype)
            weight_map |= dict.fromkeys(part, name)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, tuple[str, np.ndarray]]) -> Path:
    """Write a config, arrays each in its own dtype, and the tokenizer of all tests into `folder`, which is made."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config()))
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def write_hollow_checkpoint(folder: Path, config: dict[str, Any], shapes: dict[str, list[int]]) -> Path:
    """Write a checkpoint whose weights are a hole in the file: it takes no space, and all are zero."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config()))
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + end)
    return folder


def exact(values: np.ndarray, dtype: str) -> np.ndarray:
    """Float32 values rounded to what `dtype` can hold."""
    single = values.astype(np.float32)
    if dtype == "F16":
        return single.astype(np.float16).astype(np.float32)
    return (single.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) if dtype == "BF16" else single


def write_safetensors(path: Path, weights: dict[str, np.ndarray], dtype: str) -> None:
    """Write float32 arrays as a safetensors file in `dtype`."""
    write_tensors(path, {name: (dtype, array) for name, array in weights.items()})


def write_tensors(
    path: Path, tensors: dict[str, tuple[str, np.ndarray]], metadata: dict[str, str] | None = None
) -> None:
    """Write arrays as a safetensors file, each in its own dtype."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    blobs = []
    offset = 0
    for name, (dtype, array) in tensors.items():
        blob = stored(array, dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"".join(blobs))


def stored(array: np.ndarray, dtype: str) -> bytes:
    """The bytes of `array` in a safetensors dtype, as they are where it holds no plain floats."""
    if dtype == "BF16":
        return (array.astype("<f4").view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
    plain = {"F16": "<f2", "F32": "<f4"}.get(dtype)
    return (array.astype(plain) if plain else array).tobytes()


def tokenizer() -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE with two merges and Llama 3's splits."""
    vocab = {token: i for i, token in enumerate(byte_level_tokens()[:258])}
    added = [
        {"id": 258 + i, "content": token, "special": True, "normalized": False} for i, token in enumerate(SPECIALS)
    ]
    split = {"type": "Split", "pattern": {"Regex": LLAMA_3_SPLIT}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [token | {"single_word": False, "lstrip": False, "rstrip": False} for token in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": vocab,
            "merges": [["t", "h"], ["h", "e"]],
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """tokenizer_config.json with a template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    }
