"""Write a GGUF of random weights at the shape of a real model, quantized as that model would be.

Run: `uv run python tests/bench/models/make_model.py SHAPE TYPE OUT`, for example `llama-3.2-1b Q4_K_M llama-1b.gguf`.
Speed, memory and every code path are the real model's; only what it says makes no sense. The same seed gives the same
file. Owns the command and the metadata; shapes, weights and vocabulary have modules of their own.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from app.bench.workloads import WORDS
from quantizer.convert.source_model import SourceModel
from quantizer.gguf.header import Entry, encode_entry
from quantizer.gguf.tensor_types import FILE_TYPES, FileType, file_type_named
from quantizer.mix.type_rules import ModelShape
from quantizer.write.events import Event, TensorWritten
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import QuantizePlan, plan_model
from tests.bench.models.layers import Shape, metadata, tensors
from tests.bench.models.shapes import SHAPES
from tests.bench.models.vocabulary import CHATML_TEMPLATE, Vocabulary, make_vocabulary

__all__ = ["plan_random_model"]

_NO_OPTIONS = PlanOptions()


def plan_random_model(
    name: str, file_type: FileType, output: Path, seed: int = 0, options: PlanOptions = _NO_OPTIONS
) -> QuantizePlan:
    """Return the plan that writes the shape called `name`; `quantizer.write.quantize.execute` carries it out."""
    shape = SHAPES[name]
    sources = [replace(tensor, seed=seed) for tensor in tensors(shape)]
    entries = (*_model_entries(name, shape), *_vocabulary_entries(shape))
    facts = ModelShape(shape.architecture, shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.n_experts)
    return plan_model(SourceModel(name, entries, sources, facts, {}, ()), file_type, output, options)


def _model_entries(name: str, shape: Shape) -> Iterator[Entry]:
    yield encode_entry("general.architecture", shape.architecture, "str")
    yield encode_entry("general.name", f"random {name}", "str")
    for suffix, (value, type_name) in metadata(shape):
        yield encode_entry(f"{shape.architecture}.{suffix}", value, type_name)


def _vocabulary_entries(shape: Shape) -> Iterator[Entry]:
    vocabulary: Vocabulary = make_vocabulary(shape.n_vocab, WORDS)
    yield encode_entry("tokenizer.ggml.model", "gpt2", "str")
    yield encode_entry("tokenizer.ggml.pre", shape.pre_tokenizer, "str")
    yield encode_entry("tokenizer.ggml.tokens", vocabulary.tokens, "str[]")
    yield encode_entry("tokenizer.ggml.token_type", vocabulary.types, "i32[]")
    yield encode_entry("tokenizer.ggml.merges", vocabulary.merges, "str[]")
    yield encode_entry("tokenizer.ggml.bos_token_id", vocabulary.end_of_text_id, "u32")
    yield encode_entry("tokenizer.ggml.eos_token_id", vocabulary.end_of_turn_id, "u32")
    yield encode_entry("tokenizer.ggml.padding_token_id", vocabulary.end_of_text_id, "u32")
    yield encode_entry("tokenizer.ggml.add_bos_token", value=False, type_name="bool")
    yield encode_entry("tokenizer.chat_template", CHATML_TEMPLATE, "str")


def _show(event: Event, n_bytes: int) -> None:
    if isinstance(event, TensorWritten):
        print(f"\r{event.n_written / n_bytes:4.0%}  {event.name} {event.target:8}\x1b[K", end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", choices=FILE_TYPES, type=str.upper, metavar="TYPE", help="such as F16, Q8_0, Q4_K_M")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    plan = plan_random_model(options.shape, file_type_named(options.type), options.out, options.seed)
    execute(plan, options.threads, is_overwriting=True, report=lambda event: _show(event, plan.n_bytes))
    print(f"\r{options.out}: {plan.n_parameters / 1e9:.3f}B parameters, {plan.n_bytes / 1e9:.3f} GB\x1b[K")


if __name__ == "__main__":
    main()
