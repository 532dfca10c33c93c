"""`--imatrix auto`: the importance matrix of whatever is to be quantized, gathered once and kept in the cache.

Owns where it is kept, and by which name.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.imatrix import CALIBRATION, gather_on

if TYPE_CHECKING:
    from app.cli.runnable import Runnable

__all__ = ["AUTO", "RUNNABLE", "automatic_imatrix", "calibration_key"]

AUTO = "auto"  # what people write for it
RUNNABLE = "Q8_0"  # what a checkpoint is run as: half of F16, and no weight is beyond its range


def automatic_imatrix(source: Path, running: Runnable, n_threads: int) -> Path:
    """Return the matrix of the model at `source` on the text that ships, gathered now unless it is kept already.

    `n_threads` 0 takes the default. Raises UserError.
    """
    from app.settings import load_settings
    from quantizer.imatrix import save_imatrix

    kept = load_settings().cache_dir / "imatrix" / f"{calibration_key(source)}.gguf"
    if not kept.is_file():
        matrix = gather_on(running.path, None, threads=n_threads)
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_imatrix(matrix, kept)
    return kept


def calibration_key(source: Path, *parts: object) -> str:
    """Return a name for the weights of `source`, the text that they read, and `parts`."""
    from app.engine.store import fingerprint
    from quantizer.plan import open_source

    first, *others = open_source(source).inputs
    text = hashlib.sha256(CALIBRATION.read_bytes()).hexdigest()
    return fingerprint(first, text, *map(fingerprint, others), *parts)
