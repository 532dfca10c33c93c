"""Time `read_header` on a 151,936-token vocabulary with merges, and on a small file.

Run: `uv run python tests/bench/service/bench_header.py`. Prints the best of ten in milliseconds.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import gguf
import numpy as np

from quantizer.gguf.header import read_header


def write_model(path: Path, n_tokens: int) -> None:
    """A GGUF with a vocabulary of `n_tokens`, nearly as many merges, and one tensor."""
    writer = gguf.GGUFWriter(path, "llama")
    tokens = [f"token{i:07d}" for i in range(n_tokens - 2)] + ["Ċ", "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * n_tokens)
    writer.add_token_merges([f"tok en{i}" for i in range(n_tokens - 550)])
    writer.add_tensor("token_embd.weight", np.zeros((n_tokens, 1), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def best_ms(call: object, repeats: int = 10) -> float:
    """Best wall time of `call()` in milliseconds."""
    assert callable(call)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for n_tokens in (600, 151_936):
            path = Path(folder) / f"{n_tokens}.gguf"
            write_model(path, n_tokens)
            header_ms = best_ms(lambda path=path: read_header(path))
            print(f"{n_tokens:>7} tokens: read_header {header_ms:7.2f} ms")


if __name__ == "__main__":
    main()
