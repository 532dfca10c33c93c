"""From a path to a running model: which setting it gets, and where its computed sequences are kept.

Owns what a worker decides before the first request. Runs in the worker; everything native is imported when called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from app.engine import selftest
from app.engine.adapters import Adapter
from app.engine.backend import Backend
from app.engine.draft_loading import head_drafts, head_notice, load_draft_model
from app.engine.embedding import Embedder, pooling_of
from app.engine.frames import EngineConfig
from app.engine.prediction_layer import has_prediction_layers, prediction_layer
from app.engine.rates import run_history
from app.engine.run_recorder import RunRecorder
from app.engine.sizing import sized
from app.engine.sources import DraftSource
from app.engine.step_cost import StepCost
from app.engine.store import SequenceStore, fingerprint
from app.engine.tuning import Setting, TuneFile, Work, choose, default_setting, with_kv_type
from app.engine.witness import CleanAnswer
from offload.cpu import cpu_name, default_threads
from offload.kv_cache import parse_kv_types
from offload.machine import HOST_ONLY
from offload.model import PlannedModel
from offload.placement import ON_HOST
from offload.profile import Setting as PlannedSetting
from quantizer.control_vector import read_control_vector
from quantizer.errors import UsageError
from quantizer.gate import tensors_of
from quantizer.header import Header, read_header

__all__ = ["Loaded", "load_model", "tune_file"]

MEMORY_SHARE = 8  # an eighth of this machine's memory may hold sequences that left the KV cache


@dataclass(frozen=True, slots=True)
class Loaded:
    """A backend, what steps cost on it as far as known, what drafts for it, and where what it did outlives it.

    `owned` frees it all, `keep_answer` keeps how fast an answer came. An embedder is made when it is needed, and closed
    by whoever made it.
    """

    backend: Backend
    new_embedder: Callable[[], Embedder]
    step_cost: StepCost
    store: SequenceStore | None
    keep_use: Callable[[Work, Mapping[int, float]], None]
    owned: ExitStack
    draft_sources: tuple[DraftSource, ...] = ()
    keep_answer: Callable[[CleanAnswer], None] = lambda _answer: None


def load_model(
    path: Path,
    config: EngineConfig,
    cache_dir: Path,
    on_progress: Callable[[float], bool],
    on_notice: Callable[[str], None],
) -> Loaded:
    """Load the model at `path` under the setting that was measured best here, or the default one.

    Raises EngineError when llama.cpp cannot load it, ModelFileError for a draft model that does not go with it.
    """
    from app.engine import llama

    has_gpu = llama.n_gpu_devices() > 0
    verdict = selftest.examine(cache_dir / "selftest.json")
    if verdict.is_new and not verdict.is_safe:
        on_notice(selftest.NOTICE)
    asked = config  # an embedder is sized for one text
    header = read_header(path)
    config, notice = sized(config, header, is_on_host=not (has_gpu and config.n_gpu_layers))
    if notice:
        on_notice(notice)
    key = fingerprint(path, metadata.version("llama-cpp-python"))
    tuned = tune_file(cache_dir)
    setting, measured_ratios = _setting(tuned, key, config, has_gpu=has_gpu, is_safe=verdict.is_safe)
    with ExitStack() as owned:
        layer = prediction_layer(header)
        model = llama.LlamaModel(
            path, config.n_gpu_layers, setting.extra_buffers, on_progress, with_head=layer is not None
        )
        owned.callback(model.close)
        model.steer(_adapters(config), _control_vector(config, path))
        backend = model.context(config, setting)
        owned.callback(backend.close)
        if not backend.facts.can_generate:
            on_notice(f"{path.name} makes embeddings or ranks documents; it cannot chat.")
        max_memory_bytes = psutil.virtual_memory().total // MEMORY_SHARE
        weights = _fingerprint_with_vectors(key, config)
        store = SequenceStore(cache_dir / "prefix" / f"{weights}-{backend.facts.layout}", max_memory_bytes)
        owned.callback(store.close)
        step_cost = StepCost.through(tuned.step_ratios(key) or measured_ratios)
        head = head_drafts(backend, layer, step_cost)
        if has_prediction_layers(header):
            on_notice(head_notice(path.name, head, backend.facts))
        draft_model = load_draft_model(config, setting, model, backend.facts, step_cost, owned)
        draft_sources = tuple(source for source in (head, draft_model) if source is not None)
        new_embedder = partial(model.embedder, asked, setting, pooling_of(header))
        keep_use = partial(tuned.keep_use, key)
        recorder = _recorder(header, key, config, setting, cache_dir)
        loaded = Loaded(backend, new_embedder, step_cost, store, keep_use, owned.pop_all(), draft_sources)
        has_company = config.lora or draft_sources  # which take time of each step
        return replace(loaded, keep_answer=recorder.keep) if backend.facts.is_on_host and not has_company else loaded


def _recorder(header: Header, key: str, config: EngineConfig, setting: Setting, cache_dir: Path) -> RunRecorder:
    """Return what keeps how fast a model runs that lies with the processor as a whole."""
    return RunRecorder(
        history=run_history(cache_dir),
        n_threads=setting.n_threads,
        fingerprint=key,
        model=PlannedModel(header, tensors_of(header)),
        setting=PlannedSetting(
            n_ctx=config.n_ctx,
            n_cells=config.n_cells,
            kv_types=parse_kv_types(setting.kv_type),
            n_ubatch=setting.n_ubatch,
            is_fused=setting.flash_attention,
        ),
        devices=HOST_ONLY,
        placement=ON_HOST,
    )


def tune_file(cache_dir: Path) -> TuneFile:
    """Return what was measured on this machine, with this build of llama.cpp."""
    return TuneFile(cache_dir / "tune.json", f"llama-cpp-python {metadata.version('llama-cpp-python')} on {cpu_name()}")


def _setting(
    tuned: TuneFile, key: str, config: EngineConfig, *, has_gpu: bool, is_safe: bool
) -> tuple[Setting, dict[int, float]]:
    """Return the setting to load with and the measured costs of its steps, none where nothing was measured."""
    n_threads = config.n_threads or default_threads()
    known = [
        item
        for item in tuned.measured(key)
        if item.setting.kv_type == config.kv_type and (is_safe or not item.setting.extra_buffers)
    ]
    setting = default_setting(n_threads, has_gpu=has_gpu, extra_buffers_are_safe=is_safe)
    setting = with_kv_type(setting, config.kv_type)
    if not any(replace(item.setting, n_threads=n_threads) == setting for item in known):
        return setting, {}  # nothing was measured, or not yet what others would have to beat
    best = choose(known, tuned.work(key))
    setting = replace(best.setting, n_threads=n_threads) if config.n_threads else best.setting
    return setting, dict(best.step_ratios)


def _adapters(config: EngineConfig) -> dict[Adapter, Path]:
    """Return the adapters to load. The same file under two names would be one to the cache, so each is there once."""
    named = {Adapter(name, fingerprint(Path(path))): Path(path) for path, name in config.lora}
    for what, values in (("name", {item.name for item in named}), ("file", {item.key for item in named})):
        if len(values) != len(config.lora):
            raise UsageError(f"Two adapters have the same {what}.", "Give each adapter once, as FILE=NAME.")
    return named


def _control_vector(config: EngineConfig, model: Path) -> NDArray[np.float32] | None:
    """Return the sum of the control vectors, each times its scale; None without any."""
    scaled = [np.float32(scale) * read_control_vector(Path(path), model) for path, scale in config.control_vectors]
    return np.sum(scaled, axis=0, dtype=np.float32) if scaled else None


def _fingerprint_with_vectors(key: str, config: EngineConfig) -> str:
    """Return what names states computed with these weights: control vectors count like weights."""
    parts = [fingerprint(Path(path), scale) for path, scale in config.control_vectors]
    return "-".join([key, *parts])
