"""Models that must run to be quantized well: a GGUF runs as it is, a checkpoint is converted for as long as it takes.

Owns the files that lie in the cache meanwhile.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from app.cli.progress import JobProgress
from app.cli.quantities import shown_bytes

if TYPE_CHECKING:
    from quantizer.job import JobRequest

__all__ = ["Runnable", "written_meanwhile"]


class Runnable:
    """A context manager around a model that can run; a checkpoint becomes `file_type` when `path` is first asked for.

    `n_threads` 0 takes the default.
    """

    def __init__(self, source: Path, file_type: str, n_threads: int) -> None:
        self._source = source
        self._file_type = file_type
        self._n_threads = n_threads or os.cpu_count() or 1
        self._path: Path | None = None if source.is_dir() else source
        self._owned = ExitStack()

    def __enter__(self) -> Runnable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owned.close()

    @property
    def path(self) -> Path:
        """Where it is. Raises UserError where it cannot be converted."""
        if self._path is None:
            from quantizer.job import JobRequest

            request = JobRequest(str(self._source), self._file_type, "", self._n_threads, is_overwriting=False)
            self._path = written_meanwhile(request, f"to run the checkpoint in {self._file_type}", self._owned)
        return self._path


def written_meanwhile(request: JobRequest, purpose: str, owned: ExitStack) -> Path:
    """Write what `request` asks for into a folder of the cache that goes away with `owned`, and return its path.

    Says on stderr what it takes, with its `purpose`. Raises UserError.
    """
    from app.settings import load_settings
    from quantizer.events import Planned
    from quantizer.runner import run_job

    folder = load_settings().cache_dir / "run"
    folder.mkdir(parents=True, exist_ok=True)
    output = Path(owned.enter_context(tempfile.TemporaryDirectory(dir=folder))) / "model.gguf"
    with JobProgress() as progress:
        for event in run_job(replace(request, output=str(output))):
            progress.show(event)
            if isinstance(event, Planned):
                # not click.echo: that writes past the bar, into its line
                print(f"Takes {shown_bytes(event.n_bytes)} of disk meanwhile, {purpose}.", file=sys.stderr)
    return output
