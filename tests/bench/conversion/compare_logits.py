"""Compare a converted GGUF with its checkpoint: the largest difference of logits, relative to their range.

    uv run --group train python tests/bench/conversion/compare_logits.py CHECKPOINT MODEL.gguf [--text FILE]
        [--adapter LORA.gguf]

Exits 1 above 1e-3. The tokens are the first of FILE, or random ids, which are the harder input; a model of encoder and
decoder gets them on both sides. transformers runs in float32 here, llama.cpp in a child process, so that a fault of one
does not take the other along.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

LIMIT = 1e-3
N_TOKENS = 96


def tokens_for(checkpoint: Path, text: Path | None) -> list[int]:
    """The first tokens of `text`, or random ids, which do not depend on a tokenizer."""
    from transformers import AutoConfig, AutoTokenizer

    if text is None:
        n_vocab = AutoConfig.from_pretrained(checkpoint).get_text_config().vocab_size
        return np.random.default_rng(5).integers(0, n_vocab, N_TOKENS).tolist()
    return list(AutoTokenizer.from_pretrained(checkpoint)(text.read_text(encoding="utf-8"))["input_ids"])[:N_TOKENS]


def reference_logits(checkpoint: Path, ids: list[int]) -> np.ndarray:
    """Logits of transformers in float32, shape [n_tokens, n_vocab]."""
    import torch

    from tests.bench.models.tiny_checkpoints import open_model

    model = open_model(checkpoint)
    has_encoder = model.config.is_encoder_decoder
    inputs = {"input_ids": torch.tensor([ids])}
    with torch.no_grad():
        logits = model(**inputs, **({"decoder_input_ids": inputs["input_ids"]} if has_encoder else {})).logits[0]
    values: np.ndarray = logits.numpy()
    return values


def native_logits(gguf: Path, ids: list[int], adapter: Path | None = None) -> np.ndarray:
    """Logits of llama.cpp on the CPU with a float32 cache, from a child process; under a LoRA `adapter` if there is."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        command = [sys.executable, __file__, "--child", json.dumps(ids), str(gguf), str(out)]
        command += ["--adapter", str(adapter)] if adapter else []
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        values: np.ndarray = np.load(out)
        return values


def largest_difference(checkpoint: Path, gguf: Path, text: Path | None = None, adapter: Path | None = None) -> float:
    """The largest difference of any logit as a share of the reference's range."""
    ids = tokens_for(checkpoint, text)
    reference = reference_logits(checkpoint, ids)
    native = native_logits(gguf, ids, adapter)
    return float(np.abs(reference - native).max() / (reference.max() - reference.min()))


def child(gguf: Path, out: Path, ids: list[int], adapter: Path | None = None) -> None:
    """Decode the tokens once and save all logits."""
    import llama_cpp as native

    native.llama_backend_init()
    model_params = native.llama_model_default_params()
    model_params.use_extra_bufts = False
    model = native.llama_model_load_from_file(str(gguf).encode(), model_params)
    n_vocab = native.llama_vocab_n_tokens(native.llama_model_get_vocab(model))
    params = native.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 128
    params.type_k = params.type_v = native.GGML_TYPE_F32
    params.flash_attn_type = 0
    params.pooling_type = native.LLAMA_POOLING_TYPE_NONE  # a decoder gets the states of each token from its encoder
    context = native.llama_init_from_model(model, params)
    if adapter:
        lora = native.llama_adapter_lora_init(model, str(adapter).encode())
        loras, scales = (native.llama_adapter_lora_p_ctypes * 1)(lora), (ctypes.c_float * 1)(1.0)
        assert native.llama_set_adapters_lora(context, loras, 1, scales) == 0
    batch = native.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    assert not native.llama_model_has_encoder(model) or native.llama_encode(context, batch) == 0
    assert native.llama_decode(context, batch) == 0
    rows = [np.ctypeslib.as_array(native.llama_get_logits_ith(context, i), (n_vocab,)).copy() for i in range(len(ids))]
    np.save(out, np.stack(rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--adapter", type=Path, help="a LoRA that CHECKPOINT has merged already")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("gguf", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.checkpoint, arguments.gguf, arguments.child, arguments.adapter)
        return 0
    difference = largest_difference(arguments.checkpoint, arguments.gguf, arguments.text, arguments.adapter)
    print(f"largest difference {difference:.2e} of the logit range (limit {LIMIT:.0e})")
    return int(difference > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
