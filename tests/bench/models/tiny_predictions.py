"""Write tiny models that draft with their own prediction layers, and a Gemma 4 with its assistant.

    uv run python tests/bench/models/tiny_predictions.py FOLDER

Weights are wired and seeded, so drafts are accepted often and not always.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.quantizer.gguf_assistants import assistant, assisted_model
from tests.quantizer.gguf_heads import PREDICTING, predicting_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in PREDICTING:
        print(predicting_model(folder / f"{name}.gguf", name))
    print(assisted_model(folder / "gemma4.gguf"))
    print(assistant(folder / "gemma4-assistant.gguf"))


if __name__ == "__main__":
    main()
