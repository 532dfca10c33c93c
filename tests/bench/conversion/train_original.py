"""Trains a Llama of ten million weights on the text that lies about a machine, and writes its checkpoint: an original.

What a mix loses shows on weights that nobody quantized before, whose rows are multiples of 256 and which learned
something. The guide's module, optimizer and files serve here too. The text is docstrings of Python's own and installed
modules, and documents; a paragraph that comes twice counts once.

    OMP_NUM_THREADS=1 uv run --group train python -m tests.bench.conversion.train_original OUT --minutes 25 FOLDER...
"""

from __future__ import annotations

import argparse
import ast
import random
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional

from assets.guide.checkpoint import save_checkpoint
from assets.guide.model import Llama, Shape
from assets.guide.muon import Muon
from assets.guide.vocabulary import SPECIAL_TOKENS, SPLIT, write

SHAPE = Shape(n_vocab=8192, n_feed_forward=1024, n_layers=8)
LENGTH, N_ROWS = 128, 8
DOCUMENTS = {".md", ".rst", ".txt"}
MAX_FILE_BYTES, MAX_BYTES = 200_000, 8_000_000
MATRIX_RATE, EMBEDDING_RATE, NORM_RATE = 0.015, 0.01, 0.002
N_WARMUP_STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--minutes", type=float, default=25)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    text = corpus(arguments.folders, random.Random(1))
    tokenizer = train_tokenizer(text[:4_000_000])
    tokens = torch.tensor([i for part in text.split("\f") for i in [*tokenizer.encode(part).ids, 0]])
    print(f"{len(text):,} characters, {len(tokens):,} tokens", flush=True)
    model = Llama(SHAPE)
    train(model, tokens, 60 * arguments.minutes)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write(tokenizer, arguments.out)
    save_checkpoint(model, arguments.out)


def corpus(folders: list[Path], rng: random.Random) -> str:
    """Return the texts of all files below `folders`, in random order, each ended by a form feed."""
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file() and is_text(path))
    rng.shuffle(files)
    seen: set[str] = set()
    kept: list[str] = []
    n_bytes = 0
    for path in files:
        if n_bytes > MAX_BYTES:
            break
        content = path.read_text(encoding="utf-8", errors="ignore").replace("\f", "\n")
        texts = docstrings(content) if path.suffix == ".py" else [content]
        fresh = dict.fromkeys(part for text in texts for part in text.split("\n\n") if part not in seen)
        seen.update(fresh)
        kept.append("\n\n".join(fresh))
        n_bytes += len(kept[-1])
    return "\f".join(kept)


def is_text(path: Path) -> bool:
    is_named = path.suffix in DOCUMENTS | {".py"} or path.name in ("METADATA", "copyright")
    return is_named and path.stat().st_size < MAX_FILE_BYTES


def docstrings(source: str) -> Iterator[str]:
    """Yield what a Python file says of itself; one part in four comes whole, as code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = source.splitlines()
    for index, node in enumerate(ast.walk(tree)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if text := ast.get_docstring(node):
            if index % 4 or isinstance(node, ast.Module):
                yield text
            else:
                yield "\n".join(lines[node.lineno - 1 : node.end_lineno])


def train_tokenizer(text: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPE.n_vocab,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.split("\f"), trainer)
    return tokenizer


def train(model: Llama, tokens: torch.Tensor, limit_s: float) -> None:
    """Learn random rows of `tokens` until `limit_s` are over; the rates rise, stay, and fall to zero."""
    named = list(model.named_parameters())
    muon = Muon([weight for name, weight in named if weight.ndim == 2 and "embed" not in name])
    groups = [
        {"params": [model.embed_tokens.weight], "full_rate": EMBEDDING_RATE},
        {"params": [weight for _, weight in named if weight.ndim == 1], "full_rate": NORM_RATE},
    ]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
    started_s, step, mean = time.monotonic(), 0, 0.0
    while (progress := (time.monotonic() - started_s) / limit_s) < 1:
        starts = torch.randint(len(tokens) - LENGTH - 1, (N_ROWS, 1))
        rows = tokens[starts + torch.arange(LENGTH + 1)]
        with torch.autocast("cpu", torch.bfloat16):
            scores = model.logits(model(rows[:, :-1]))
        loss = functional.cross_entropy(scores.float().flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        share = min(1.0, (step + 1) / N_WARMUP_STEPS, (1 - progress) / 0.5)
        muon.step(MATRIX_RATE * share)
        for group in adam.param_groups:
            group["lr"] = group["full_rate"] * share
        adam.step()
        model.zero_grad(set_to_none=True)
        mean = float(loss) if not step else 0.95 * mean + 0.05 * float(loss)
        step += 1
        if step % 20 == 0:
            print(f"{progress:6.1%} step {step} {step * LENGTH * N_ROWS / 1e6:.2f}M loss {mean:.3f}", flush=True)


if __name__ == "__main__":
    main()
