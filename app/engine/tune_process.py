"""The process that tunes a model: loads it under each candidate setting, measures, keeps what it found.

    python -m app.engine.tune_process                         a TuneRequest on stdin
    python -m app.engine.tune_process MODEL.gguf N_THREADS --idle

Asked on stdin it says the speeds of each setting. Each is kept as soon as it is measured, so the process may be ended
at any time. With --idle it measures quickly and only what is not known yet, at the lowest priority, and ends with its
stdin. Knows nothing of how this is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import psutil

from app.engine import selftest
from app.engine.child import Line, Step, progress, result, serve
from app.engine.frames import EngineConfig
from app.engine.llama import LlamaModel
from app.engine.loading import tune_file
from app.engine.loading_devices import Devices
from app.engine.store import model_key
from app.engine.tune_plan import QUICK, THOROUGH, Effort, first_settings, refinements
from app.engine.tuner import measure
from app.engine.tuning import DEFAULT_WORK, Measured, Setting, TuneRequest, choose
from app.settings import load_settings
from offload.cpu import default_threads, usable_processors
from offload.kv_cache import can_have, parse_kv_types
from quantizer.child import watch_stdin
from quantizer.errors import UserError
from quantizer.header import read_header
from quantizer.kv_shape import KvShape, kv_shape_of

__all__ = ["main"]

_CONFIG = EngineConfig(n_ctx=2 * max(THOROUGH.depths))
_IDLE_NICE = 19
_SPARE_SHARE = 3  # memory for weights twice, once repacked, and for all else


class _Loader:
    """Holds the model loaded under one way of repacking at a time."""

    def __init__(self, path: Path, effort: Effort) -> None:
        settings = load_settings()
        self._path = path
        self._devices = Devices(replace(_CONFIG, uses_gpu=settings.gpu), settings.cache_dir)
        self._effort = effort
        self._owned = ExitStack()
        self._model: LlamaModel | None = None
        self._extra_buffers = False

    def measure(self, setting: Setting) -> Measured:
        with closing(self._loaded(setting).context(_CONFIG, setting)) as backend:
            return measure(backend, setting, self._effort)

    def close(self) -> None:
        self._owned.close()
        self._model = None

    def _loaded(self, setting: Setting) -> LlamaModel:
        extra_buffers = setting.extra_buffers
        if self._model is None or self._extra_buffers != extra_buffers:
            self.close()
            parameters = self._devices.parameters(self._path, _CONFIG, setting)
            self._model = LlamaModel(self._path, parameters, extra_buffers, on_progress=lambda _fraction: True)
            self._owned.callback(self._model.close)
            self._extra_buffers = extra_buffers
        return self._model


def _thorough(path: Path, n_threads: int, cache_dir: Path) -> Iterator[tuple[int, Measured]]:
    """Yield (how many there will be, speeds) of each setting worth measuring, keeping each."""
    known, key, shape = tune_file(cache_dir), model_key(path), kv_shape_of(read_header(path))
    first = _first(n_threads, cache_dir)
    n_settings = len(first) + len(_possible(refinements(first[0], usable_processors()), shape))
    found: list[Measured] = []
    with closing(_Loader(path, THOROUGH)) as loader:
        for setting in first:
            found.append(loader.measure(setting))
            yield n_settings, found[-1]
        known.keep(key, path.name, found)
        best = choose(found, DEFAULT_WORK).setting
        for setting in _possible(refinements(best, usable_processors()), shape):
            measured = loader.measure(setting)
            known.add(key, path.name, measured)
            yield n_settings, measured


def _idle(path: Path, n_threads: int, cache_dir: Path) -> None:
    """Measure quickly what nobody has measured yet, where there is memory for a second copy of the model."""
    if psutil.virtual_memory().available < _SPARE_SHARE * path.stat().st_size:
        return
    known, key = tune_file(cache_dir), model_key(path)
    done = {measured.setting for measured in known.measured(key)}
    with closing(_Loader(path, QUICK)) as loader:
        for setting in _first(n_threads, cache_dir):
            if setting not in done:
                known.add(key, path.name, loader.measure(setting))


def _first(n_threads: int, cache_dir: Path) -> list[Setting]:
    return first_settings(n_threads, extra_buffers_are_safe=selftest.examine(cache_dir / "selftest.json").is_safe)


def _possible(settings: list[Setting], shape: KvShape) -> list[Setting]:
    """Return those of `settings` whose cache this model can have."""
    return [setting for setting in settings if can_have(parse_kv_types(setting.kv_type), shape)]


def _give_way() -> None:
    """Take what processor time nobody wants, and end when whoever started this process is gone."""
    if sys.platform == "win32":
        psutil.Process().nice(psutil.IDLE_PRIORITY_CLASS)
    else:
        psutil.Process().nice(_IDLE_NICE)
    watch_stdin()


def _work(asked: Line) -> Iterator[Line]:
    request = TuneRequest(**asked)
    found = _thorough(Path(request.path), request.n_threads or default_threads(), load_settings().cache_dir)
    for index, (n_settings, measured) in enumerate(found):
        yield result(measured)
        yield progress(Step(index, n_settings))


def main() -> int:
    """Tune the model of a request on stdin, or with `--idle` the one that the arguments name.

    The exit status is 1 when it cannot be done.
    """
    if "--idle" not in sys.argv:
        return serve(_work)
    _give_way()
    try:
        _idle(Path(sys.argv[1]), int(sys.argv[2]) or default_threads(), load_settings().cache_dir)
    except UserError:
        return 1  # nobody listens: `localllm tune` says why
    return 0


if __name__ == "__main__":
    sys.exit(main())
