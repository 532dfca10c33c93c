"""Write a random LoRA adapter for a tiny checkpoint as PEFT saves it, and the checkpoint with the adapter merged.

    uv run python tests/bench/models/tiny_adapters.py CHECKPOINT ADAPTER MERGED
    localllm quantize ADAPTER F32 --base CHECKPOINT -o adapter.gguf
    uv run --group train python -m tests.bench.conversion.compare_logits MERGED model.gguf --adapter adapter.gguf

CHECKPOINT is one that `tiny_checkpoints.py` wrote. Every projection, the router of experts and the output change, and
the embedding where it is no output.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np

from quantizer.checkpoint.safetensors import read_checkpoint
from tests.quantizer.checkpoints import write_checkpoint
from tests.quantizer.peft_adapters import ALPHA, RANK, pair, write_peft

# what DeepSeek's attention makes of its input is computed without adapters in llama.cpp
_CHANGED = re.compile(
    r"(?!.*kv_[ab]_proj|.*q_[ab]_proj).*(_proj|\.w[123]|mlp\.gate|block_sparse_moe\.gate|embed_tokens|lm_head)\.weight"
)
_LOUDNESS = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("checkpoint", "adapter", "merged"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    checkpoint = read_checkpoint(arguments.checkpoint)
    tied = ("embed_tokens.weight", "lm_head.weight") if checkpoint.config.get("tie_word_embeddings") else ()
    weights, matrices = {}, {}
    for name, tensor in checkpoint.tensors.items():
        weight = np.frombuffer(b"".join(tensor.slabs(1 << 20)), "<f4").reshape(tensor.shape[::-1])
        if weight.ndim == 2 and _CHANGED.fullmatch(name) and not name.endswith(tied or "\0"):
            named, added = _changes(name.removesuffix(".weight"), weight)
            matrices |= named
            weight = weight + added
        weights[name] = ("F32", weight.astype(np.float32))
    write_peft(arguments.adapter, matrices, base_model_name_or_path=str(arguments.checkpoint.resolve()))
    write_checkpoint(arguments.merged, checkpoint.config, weights)


def _changes(module: str, weight: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A pair by its names, and what it adds to the weight; an embedding is changed by the transpose."""
    is_embedding = module.endswith("embed_tokens")
    n_out, n_in = weight.shape[::-1] if is_embedding else weight.shape
    named = {name: matrix * np.float32(_LOUDNESS) for name, matrix in pair(module, n_in, n_out).items()}
    first, second = named.values()
    added = (second.astype(np.float64) @ first) * (ALPHA / RANK)
    if not is_embedding:
        return named, added
    return {re.sub(r"lora_([AB])\.weight", r"lora_embedding_\1", name): of for name, of in named.items()}, added.T


if __name__ == "__main__":
    main()
