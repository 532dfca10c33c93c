"""Compare a converted GGUF with its checkpoint: the largest difference of logits, relative to their range.

    uv run --group train python -m tests.bench.conversion.compare_logits CHECKPOINT MODEL.gguf [--text FILE]
        [--adapter LORA.gguf]

Weights, activations and cache of llama.cpp are F32; transformers runs in F64, and in F32 too, which shows how much that
alone costs the original. What llama.cpp's graph is known to compute otherwise (`graph_deviations` in
explained_differences.py) the original is made to compute so. Exits 1 where more than 5e-7 is left, and more than three
times what F32 costs. The tokens are the first of FILE, or random ids, which are the harder input; a model of encoder
and decoder gets them on both sides.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantizer.gguf.header import read_header
from tests.bench.conversion.class_rows import Compared
from tests.bench.conversion.explained_differences import GraphDeviation, gelu_deviation, graph_deviations
from tests.bench.conversion.native_outputs import NativeOutputs, native_logits

N_TOKENS = 96
Values = NDArray[np.floating[Any]]


def tokens_for(checkpoint: Path, text: Path | None) -> list[int]:
    """The first tokens of `text`, or random ids, which do not depend on a tokenizer."""
    from transformers import AutoConfig, AutoTokenizer

    if text is None:
        n_vocab = AutoConfig.from_pretrained(checkpoint).get_text_config().vocab_size
        return np.random.default_rng(5).integers(0, n_vocab, N_TOKENS).tolist()
    return list(AutoTokenizer.from_pretrained(checkpoint)(text.read_text(encoding="utf-8"))["input_ids"])[:N_TOKENS]


def reference_logits(model: Any, ids: list[int]) -> Values:
    """Logits of a model of transformers, shape [n_tokens, n_vocab]."""
    import torch

    inputs = {"input_ids": torch.tensor([ids])}
    more = {"decoder_input_ids": inputs["input_ids"]} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        values: Values = model(**inputs, **more).logits[0].numpy()
    return values


def compare(
    architecture: str, model: Any, reference: Callable[[Any], Values], native: Callable[[str], NativeOutputs]
) -> Compared:
    """Compare what `native` computes, with GELU of a kind or llama.cpp's own, and what `reference` has a model compute.

    Both have a row for each position or text.
    """
    exact = reference(_in_f64(model))
    plain = native("").values
    if (first := _difference(plain, exact)) <= Compared.LIMIT:
        return Compared(first, 0.0, first)
    deviations: list[GraphDeviation] = graph_deviations(architecture, model)
    kind = _gelu_of(model)
    anew = native(kind)
    for deviation in deviations:
        deviation.imitate(model)
    exact = reference(_in_f64(model))
    noise = _difference(reference(model.float()), exact)
    reasons = tuple(deviation.reason for deviation in deviations) + (gelu_deviation(kind),) * bool(anew.n_gelus)
    return Compared(_difference(anew.values if anew.n_gelus else plain, exact), noise, first, reasons)


def _in_f64(model: Any) -> Any:
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # others take no F64
    return model.double()


def _gelu_of(model: Any) -> str:
    """`erf` where the language model computes the exact GELU, else `tanh`."""
    heard = ("vision", "visual", "audio")
    modules = [each for name, each in model.named_modules() if not any(part in name for part in heard)]
    is_exact = any(type(each).__name__ == "GELUActivation" for each in modules)
    return "erf" if is_exact or any(getattr(each, "approximate", "") == "none" for each in modules) else "tanh"


def _difference(values: Values, reference: Values) -> float:
    """The largest difference as a share of the reference's range."""
    return float(np.abs(values - reference).max() / (reference.max() - reference.min()))


def compared_logits(checkpoint: Path, gguf: Path, text: Path | None = None, adapter: Path | None = None) -> Compared:
    from tests.bench.models.tiny_checkpoints import open_model

    ids = tokens_for(checkpoint, text)
    return compare(
        read_header(gguf).architecture,
        open_model(checkpoint),
        lambda model: reference_logits(model, ids),
        lambda gelu: native_logits(gguf, ids, adapter, gelu),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--adapter", type=Path, help="a LoRA that CHECKPOINT has merged already")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("gguf", type=Path)
    arguments = parser.parse_args()
    compared = compared_logits(arguments.checkpoint, arguments.gguf, arguments.text, arguments.adapter)
    print(json.dumps(compared.summary(), indent=1))
    return int(not compared.is_equal)


if __name__ == "__main__":
    sys.exit(main())
