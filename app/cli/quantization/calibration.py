"""Calibration of a model before it is quantized: its importance matrix, and a GGUF to run where it is a checkpoint.

Owns where matrices are cached and by which name, and temporary GGUFs. Independent of types and targets.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.output.format import format_bytes
from app.cli.output.progress import JobProgress, with_progress
from app.cli.resources import read_text, shipped, window_size
from app.options.jobs import TextOptions
from app.settings.settings import load_settings
from quantizer.gguf.file_names import NO_PROJECTOR
from quantizer.system.files import private_folder
from quantizer.write.events import JobPlanned

if TYPE_CHECKING:
    from quantizer.mix.imatrix import ImportanceMatrix
    from quantizer.write.job import JobRequest


AUTO = "auto"  # the value of --imatrix
CALIBRATION = shipped("calibration.txt")
RUNNABLE = "Q8_0"  # the type a checkpoint is run in: half of F16, and no weight is beyond its range


def compute_imatrix(path: Path, reading: TextOptions, *, parses_special: bool = False) -> ImportanceMatrix:
    """Compute the importance matrix of the model at `path` on a text, by default the calibration text.

    Raises UserError.
    """
    from app.engine.offline.imatrix import ImatrixRequest, run_imatrix
    from quantizer.gguf.validation import validate_gguf

    n_ctx = window_size(validate_gguf(path), reading.ctx)
    source = Path(reading.text) if reading.text else CALIBRATION
    request = ImatrixRequest(
        str(path), read_text(source), source.name, n_ctx, reading.chunks, reading.threads, parses_special
    )
    return run_imatrix(request, lambda steps: with_progress("Computing", steps))


def cached_imatrix(source: Path, running: Runnable, n_threads: int) -> Path:
    """Return the matrix of the model at `source` on the calibration text, computed now unless it is cached.

    `n_threads` 0 takes the default. Raises UserError.
    """
    from quantizer.mix.imatrix import save_imatrix

    cached = load_settings().cache_dir / "imatrix" / f"{calibration_key(source)}.gguf"
    if not cached.is_file():
        matrix = compute_imatrix(running.path, TextOptions(threads=n_threads))
        private_folder(cached.parent)
        save_imatrix(matrix, cached)
    return cached


def calibration_key(source: Path, *parts: object) -> str:
    """Return a name for the weights of `source`, the text that they read, and `parts`."""
    from app.engine.load.machine_file import fingerprint
    from quantizer.write.quantize_plan import open_source

    first, *others = open_source(source).inputs
    text = hashlib.sha256(CALIBRATION.read_bytes()).hexdigest()
    return fingerprint(first, text, *map(fingerprint, others), *parts)


class Runnable(ExitStack):
    """A context manager around a model that can run; a checkpoint is converted to `file_type` when `path` is read.

    `n_threads` 0 takes the default.
    """

    def __init__(self, source: Path, file_type: str, n_threads: int) -> None:
        super().__init__()
        self._source = source
        self._file_type = file_type
        self._n_threads = n_threads or os.cpu_count() or 1

    @cached_property
    def path(self) -> Path:
        """Where it is. Raises UserError where it cannot be converted."""
        if not self._source.is_dir():
            return self._source
        from quantizer.write.job import JobRequest

        request = JobRequest(str(self._source), self._file_type, "", self._n_threads, is_overwriting=False)
        return write_temporary_model(request, f"to run the checkpoint in {self._file_type}", self)


def write_temporary_model(request: JobRequest, purpose: str, owned: ExitStack) -> Path:
    """Run `request` into a cache folder that is removed with `owned`, and return the path.

    Prints the disk space that it needs, and its `purpose`, on stderr. Raises UserError.
    """
    from quantizer.write.job import run_job

    folder = load_settings().cache_dir / "run"
    private_folder(folder)
    output = Path(owned.enter_context(tempfile.TemporaryDirectory(dir=folder))) / "model.gguf"
    with JobProgress() as progress:
        for event in run_job(replace(request, output=str(output), projector=NO_PROJECTOR)):
            progress.show(event)
            if isinstance(event, JobPlanned):
                # not click.echo: that writes past the bar, into its line
                print(f"Takes {format_bytes(event.n_bytes)} of disk meanwhile, {purpose}.", file=sys.stderr)
    return output
