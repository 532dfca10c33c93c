"""The process that tunes a model: loads it under each candidate setting, measures, keeps what it found.

    python -m app.engine.tune_process MODEL.gguf N_THREADS

A line of JSON on stdout for each setting: {"index", "n_settings", "measured"}; and {"error": {"cause", "remedy"}} where
it ends badly. Knows nothing of how this is shown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from importlib import metadata
from itertools import groupby
from pathlib import Path

from app.engine import selftest
from app.engine.frames import EngineConfig
from app.engine.llama import LlamaModel
from app.engine.loading import candidates, tune_file
from app.engine.store import fingerprint
from app.engine.tuner import DEPTHS, measure
from app.engine.tuning import Measured
from app.settings import load_settings
from offload.cpu import default_threads
from quantizer.errors import UserError

__all__ = ["main"]

_CONFIG = EngineConfig(n_ctx=2 * max(DEPTHS))


def _measured(path: Path, n_threads: int, cache_dir: Path) -> Iterator[tuple[int, int, Measured]]:
    """Yield (index, how many, speeds) of each setting worth measuring; the weights are loaded once per repacking."""
    verdict = selftest.examine(cache_dir / "selftest.json")
    settings = candidates(n_threads, extra_buffers_are_safe=verdict.is_safe)
    index = 0
    for extra_buffers, group in groupby(settings, key=lambda setting: setting.extra_buffers):
        with closing(LlamaModel(path, -1, extra_buffers, on_progress=lambda _fraction: True)) as model:
            for setting in group:
                with closing(model.context(_CONFIG, setting)) as backend:
                    yield index, len(settings), measure(backend, setting)
                index += 1


def _tune(path: Path, n_threads: int) -> None:
    cache_dir = load_settings().cache_dir
    found: list[Measured] = []
    for index, n_settings, measured in _measured(path, n_threads or default_threads(), cache_dir):
        found.append(measured)
        print(json.dumps({"index": index, "n_settings": n_settings, "measured": asdict(measured)}), flush=True)
    tune_file(cache_dir).keep(fingerprint(path, metadata.version("llama-cpp-python")), path.name, found)


def main() -> None:
    """Tune the model that the arguments name; exit status 1 when it cannot be done."""
    try:
        _tune(Path(sys.argv[1]), int(sys.argv[2]))
    except UserError as error:
        print(json.dumps({"error": {"cause": error.cause, "remedy": error.remedy}}), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
