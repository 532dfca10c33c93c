"""Softens the copying heads of a checkpoint, so that float16 arithmetic answers as float32 does.

    uv run --group train python -m assets.guide.soften FIRST SECOND [--model FOLDER] [--out FOLDER]

Training makes the scores of the first two heads in layers 0 and 1 ever sharper (largest score 100 and more), and sharp
scores magnify what rounding to float16 takes away: the logits of the F16 GGUF were 2e-3 of their range off. FIRST and
SECOND multiply these heads' queries in layers 0 and 1. tests/bench/conversion/compare_logits.py shows when it is
enough, evaluate.py what it costs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from assets.guide.checkpoint import load_checkpoint, save_checkpoint
from assets.guide.model import Llama

FOLDER = Path(__file__).parent
N_COPYING_HEADS = 2


@torch.no_grad()
def soften(model: Llama, *shares: float) -> None:
    """Multiply the queries of the copying heads of layer i with `shares[i]`."""
    n_rows = N_COPYING_HEADS * model.shape.head_dim
    for layer, share in zip(model.layers, shares, strict=False):
        layer.self_attn.q_proj.weight[:n_rows] *= share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shares", type=float, nargs=2)
    parser.add_argument("--model", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    model = load_checkpoint(arguments.model)
    soften(model, *arguments.shares)
    save_checkpoint(model, arguments.out)


if __name__ == "__main__":
    main()
