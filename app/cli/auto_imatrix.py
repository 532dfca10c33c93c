"""`--imatrix auto`: the importance matrix of whatever is to be quantized, gathered once and kept in the cache.

Owns where it is kept, and the conversion that a checkpoint needs before it can run.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from app.cli.imatrix import CALIBRATION, gather_on
from app.cli.progress import JobProgress

__all__ = ["automatic_imatrix"]

_RUNNABLE = "Q8_0"  # what a checkpoint is run as: half of F16, and no weight is beyond its range


def automatic_imatrix(source: Path, n_threads: int) -> Path:
    """Return the matrix of the model at `source` on the text that ships, gathered now unless it is kept already.

    `n_threads` 0 takes the default. Raises UserError.
    """
    from app.settings import load_settings
    from quantizer.imatrix import save_imatrix

    folder = load_settings().cache_dir / "imatrix"
    kept = folder / f"{_key(source)}.gguf"
    if kept.is_file():
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as owned:
        model = source
        if source.is_dir():
            model = Path(owned.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir=folder))) / "model.gguf"
            _convert(source, model, n_threads)
        save_imatrix(gather_on(model, None, threads=n_threads), kept)
    return kept


def _key(source: Path) -> str:
    """Return a name for the weights of `source` and the text that they read."""
    from app.engine.store import fingerprint
    from quantizer.plan import open_source

    first, *others = open_source(source).inputs
    text = hashlib.sha256(CALIBRATION.read_bytes()).hexdigest()
    return fingerprint(first, text, *(fingerprint(path) for path in others))


def _convert(source: Path, output: Path, n_threads: int) -> None:
    from quantizer.events import Planned
    from quantizer.job import JobRequest
    from quantizer.runner import run_job

    request = JobRequest(str(source), _RUNNABLE, str(output), n_threads or os.cpu_count() or 1, is_overwriting=False)
    with JobProgress() as progress:
        for event in run_job(request):
            progress.show(event)
            if isinstance(event, Planned):
                size = f"{event.n_bytes / 1e9:.3f} GB"
                click.echo(f"Takes {size} of disk meanwhile, to run the checkpoint in {_RUNNABLE}.", err=True)
