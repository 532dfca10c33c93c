"""Write a tiny model and draft heads of each kind that belong to it: as GGUF, or as published checkpoints are.

    uv run python tests/bench/models/tiny_heads.py FOLDER
    uv run python tests/bench/models/tiny_heads.py FOLDER --checkpoints

The checkpoints are for llama.cpp's converter (`convert_hf_to_gguf.py FOLDER/eagle3 --target-model-dir FOLDER/target`),
which makes the same tensors of them. Weights are wired and seeded, so drafts are accepted often and not always.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf

from tests.quantizer.checkpoints import write_checkpoint
from tests.quantizer.gguf_draft_heads import HEADS, TARGET, deep_head, draft_head, drafted_model, published_config

_TYPES = {"float32": "F32", "int64": "I64"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--checkpoints", action="store_true", help="folders with config.json and safetensors")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.checkpoints:
        for name, head in {"target": TARGET, **HEADS}.items():
            weights = {key: (_TYPES[array.dtype.name], array) for key, array in head.weights().items()}
            print(write_checkpoint(options.folder / name, published_config(head), weights))
        return
    print(drafted_model(options.folder / "target.gguf"))
    for kind in HEADS:
        print(draft_head(options.folder / f"{kind}.gguf", kind))
    # as the first published DFlash 2 head: five layers with windows
    print(deep_head(options.folder / "dflash2-deep.gguf", 5, 2, block_size=8, edit=_windowed))


def _windowed(writer: gguf.GGUFWriter) -> None:
    writer.add_uint32("dflash.attention.sliding_window", 32)
    writer.add_array("dflash.attention.sliding_window_pattern", [True] * 5)


if __name__ == "__main__":
    main()
