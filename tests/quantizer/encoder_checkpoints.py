"""Builds tiny encoder checkpoints as sentence-transformers writes them, and computes them with numpy."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.quantizer.checkpoints import write_safetensors
from tests.quantizer.tokenizer_files import word_pieces, write, xlm_roberta

__all__ = ["TinyBert", "TinyRanker", "pooled_as"]


@dataclass(frozen=True)
class TinyBert:
    """A BERT of two layers; what its kin does otherwise is overridden."""

    n_embd: int = 32
    n_ff: int = 48
    n_layers: int = 2
    n_heads: int = 2
    n_vocab: int = 24
    n_positions: int = 64
    pooling: str | None = "mean"

    hf_class = "BertModel"
    prefix = ""
    first_position = 0
    tokenizer_files = staticmethod(word_pieces)

    def write(self, folder: Path) -> Path:
        """Write config, tokenizer, weights and modules into `folder`, which is made."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config()))
        write(folder, *self.tokenizer_files())
        write_safetensors(folder / "model.safetensors", self.weights(), "F32")
        if self.pooling is not None:
            pooled_as(folder, {"pooling_mode": self.pooling})
        return folder

    def config(self) -> dict[str, Any]:
        """config.json."""
        return {
            "architectures": [self.hf_class],
            "hidden_size": self.n_embd,
            "intermediate_size": self.n_ff,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "max_position_embeddings": self.n_positions,
            "type_vocab_size": 1,
            "vocab_size": self.n_vocab,
            "layer_norm_eps": 1e-12,
            "hidden_act": "gelu",
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight, by HF name."""
        wide = self.n_embd
        shapes: dict[str, tuple[int, ...]] = {
            f"{self.prefix}embeddings.{kind}_embeddings.weight": (n_rows, wide)
            for kind, n_rows in (("word", self.n_vocab), ("position", self.n_positions), ("token_type", 1))
        }
        norms = [f"{self.prefix}embeddings.LayerNorm"]
        for i in range(self.n_layers):
            layer = f"{self.prefix}encoder.layer.{i}"
            norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
            matrices = {f"attention.self.{part}": (wide, wide) for part in ("query", "key", "value")}
            matrices |= {"attention.output.dense": (wide, wide), "output.dense": (wide, self.n_ff)}
            matrices |= {"intermediate.dense": (self.n_ff, wide)}
            shapes |= {f"{layer}.{name}.weight": shape for name, shape in matrices.items()}
            shapes |= {f"{layer}.{name}.bias": shape[:1] for name, shape in matrices.items()}
        return shapes | {f"{name}.{part}": (wide,) for name in norms for part in ("weight", "bias")}

    def weights(self) -> dict[str, np.ndarray]:
        """Seeded float32 weights by HF name."""
        random = np.random.default_rng(17)
        return {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in self.shapes().items()}

    def hidden_states(self, ids: list[int]) -> np.ndarray:
        """The last hidden state of each token, shape [n_tokens, n_embd]."""
        weights = self.weights()
        embedding = f"{self.prefix}embeddings"
        positions = np.arange(len(ids)) + self.first_position
        states = weights[f"{embedding}.word_embeddings.weight"][ids]
        states = states + weights[f"{embedding}.position_embeddings.weight"][positions]
        states = states + weights[f"{embedding}.token_type_embeddings.weight"][0]
        states = _normed(states, weights, f"{embedding}.LayerNorm")
        for i in range(self.n_layers):
            layer = f"{self.prefix}encoder.layer.{i}"
            attended = _linear(self._attended(states, weights, layer), weights, f"{layer}.attention.output.dense")
            states = _normed(states + attended, weights, f"{layer}.attention.output.LayerNorm")
            inner = _gelu(_linear(states, weights, f"{layer}.intermediate.dense"))
            outer = _linear(inner, weights, f"{layer}.output.dense")
            states = _normed(states + outer, weights, f"{layer}.output.LayerNorm")
        return states

    def _attended(self, states: np.ndarray, weights: dict[str, np.ndarray], layer: str) -> np.ndarray:
        query, key, value = (
            _linear(states, weights, f"{layer}.attention.self.{part}").reshape(len(states), self.n_heads, -1)
            for part in ("query", "key", "value")
        )
        scores = np.einsum("qhd,khd->hqk", query, key) / math.sqrt(self.n_embd // self.n_heads)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", shares, value).reshape(len(states), -1)


@dataclass(frozen=True)
class TinyRanker(TinyBert):
    """An XLM-R with a head of one output: positions begin behind the padding token's id."""

    pooling: str | None = None

    hf_class = "XLMRobertaForSequenceClassification"
    prefix = "roberta."
    first_position = 2
    tokenizer_files = staticmethod(xlm_roberta)

    def config(self) -> dict[str, Any]:
        return super().config() | {"pad_token_id": 1, "id2label": {"0": "LABEL_0"}}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        wide = self.n_embd
        head = {"classifier.dense.weight": (wide, wide), "classifier.dense.bias": (wide,)}
        return super().shapes() | head | {"classifier.out_proj.weight": (1, wide), "classifier.out_proj.bias": (1,)}

    def score(self, ids: list[int]) -> float:
        """Return the head's score of a query and a document."""
        weights = self.weights()
        inner = np.tanh(_linear(self.hidden_states(ids)[0], weights, "classifier.dense"))
        return float(_linear(inner, weights, "classifier.out_proj")[0])


def pooled_as(folder: Path, settings: dict[str, Any], *further: str) -> None:
    """Write modules.json, with `further` kinds of modules behind the pooling, and the pooling's `settings`."""
    kinds = ("Transformer", "Pooling", *further)
    paths = [f"{i}_{kind}" if i else "" for i, kind in enumerate(kinds)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))


def _gelu(values: np.ndarray) -> np.ndarray:
    """As llama.cpp has it on a CPU: the approximation by tanh, from half precision to half precision."""
    half = values.astype(np.float16).astype(np.float32)
    inner = math.sqrt(2 / math.pi) * half * (1 + 0.044715 * half**2)
    return (half * (1 + np.tanh(inner)) / 2).astype(np.float16).astype(np.float32)


def _linear(states: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    return states @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _normed(states: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    centered = states - states.mean(-1, keepdims=True)
    normed = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12)
    return normed * weights[f"{name}.weight"] + weights[f"{name}.bias"]
