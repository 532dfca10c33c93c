"""The way from a path to a running model: its plan, its runtime settings, its draft sources and its state store.

Owns what a worker decides before the first request, and why a model cannot draft for another. Runs in the worker;
native code is imported when called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Backend
from app.engine.cache.state_store import MAX_DISK_BYTES, StateStore
from app.engine.embedding import Embedder, pooling_of
from app.engine.load.auxiliary_models import (
    has_mtp_layers,
    mtp_layer_bytes,
    with_found_head,
)
from app.engine.load.head_file import is_head, read_head
from app.engine.load.load_plan import plan_load
from app.engine.load.machine import exposure_warning
from app.engine.load.machine_file import fingerprint, model_key
from app.engine.load.media_loading import (
    LoadedProjector,
    NewMediaQueue,
    load_projector,
    media_queue_of,
    usable_projector,
)
from app.engine.load.planner import LoadAttempt, LoadDevices, load_within_memory
from app.engine.load.run_history import RunHistory
from app.engine.load.self_test import NOTICE, run_self_test
from app.engine.load.sizing import check_fit, size_context
from app.engine.load.speed_sampler import RunRecorder, SpeedSample
from app.engine.protocol.messages import BackendFacts, EngineConfig
from app.engine.request import Adapter
from app.engine.speculative.draft_heads import AutoregressiveHeadSource, BlockHeadSource, HeadKind, HeadSpec
from app.engine.speculative.draft_model import DraftModel, vocabulary_mismatch
from app.engine.speculative.draft_source import DraftSource
from app.engine.speculative.step_cost import StepCost
from app.engine.tuning.setting_choice import choose_setting, describe_projector, describe_settings
from app.engine.tuning.tune_results import (
    RuntimeSettings,
    TuneFile,
    Workload,
    plain_from_of,
    tune_key,
)
from app.protocol.plan import Plan, describe_plan
from app.protocol.status import LoadedSetting
from offload.devices.host_memory import host_memory
from offload.footprint.auxiliary_models import PlannedDraft
from offload.footprint.model import PlannedModel
from offload.placement.actual_usage import DeviceUsage
from offload.placement.load_parameters import LoadParameters
from offload.placement.search import ALL_ON_HOST
from quantizer.errors import ModelFileError, UsageError
from quantizer.gguf.control_vector import read_control_vector
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.projector_header import ProjectorHeader

__all__ = ["LoadListener", "LoadedEngine", "load_draft_model", "load_model", "make_head_source"]

if TYPE_CHECKING:
    from app.engine.llama import LlamaBackend, LlamaModel, LoadedHead

Place = Callable[[Path, EngineConfig], LoadParameters]  # where the layers of another file go


_SPARE_SHARE = 2
MEMORY_SHARE = 8  # an eighth of this machine's memory may store sequences that left the KV cache
_NO_TRUNCATION = "cache cannot drop rejected draft tokens"
_REMEDY = "Choose a smaller model of the same family for --draft, or leave it out."


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A backend with its step cost, its draft sources and its stores.

    `settings` are what it runs with, and why. `owned` frees all of it. `record_use` and `record_speed` store what the
    next load uses. Whoever makes an embedder closes it, and so whoever makes the queue of pictures and sounds, which a
    model with a projector has.
    """

    backend: Backend
    new_embedder: Callable[[], Embedder]
    step_cost: StepCost
    store: StateStore | None
    record_use: Callable[[Workload, Mapping[int, float]], None]
    owned: ExitStack
    draft_sources: tuple[DraftSource, ...] = ()
    settings: tuple[LoadedSetting, ...] = ()
    record_speed: Callable[[SpeedSample], None] = lambda _sample: None
    new_media_queue: NewMediaQueue | None = None


@dataclass(frozen=True, slots=True)
class LoadListener:
    """Callbacks of a load. `on_progress` receives fractions from 0 to 1 and returns False to cancel.

    `on_notice` receives sentences for the user, `on_plan` the object of `localllm plan --json` before anything is
    loaded.
    """

    on_progress: Callable[[float], bool]
    on_notice: Callable[[str], None]
    on_plan: Callable[[Plan], None]


@dataclass(frozen=True, slots=True)
class _NativeModel:
    """Native objects with their setting, their bytes by device, and the owner that frees them."""

    model: LlamaModel
    backend: LlamaBackend
    setting: RuntimeSettings
    usage: Mapping[str, DeviceUsage]
    owned: ExitStack
    projector: LoadedProjector | None
    projector_bytes: int  # of its compute buffers


def load_model(path: Path, config: EngineConfig, cache_dir: Path, listener: LoadListener) -> LoadedEngine:
    """Load the model at `path` as planned, with the fastest setting measured on this machine.

    Raises UnfitError when the user has to agree first, EngineError when llama.cpp cannot load it, ModelFileError for a
    draft model that does not match it.
    """
    requested = config  # an embedder is sized for one text
    devices, header = LoadDevices(config, cache_dir), read_header(path)
    tested = run_self_test(cache_dir)
    if tested.is_new and not tested.is_safe:
        listener.on_notice(NOTICE)
    config, notice = size_context(config, header, is_on_host=not devices.has_gpu)
    config, passed_over = with_found_head(config, header)
    config, projector, unsound = usable_projector(config, header, cache_dir)
    for sentence in filter(None, (notice, exposure_warning(config.rpc), *passed_over, *config.passed_over, unsound)):
        listener.on_notice(sentence)
    key, tuned, tuned_as = model_key(path), TuneFile(cache_dir), tune_key(header)
    choice = choose_setting(
        tuned.measured(tuned_as),
        tuned.work(tuned_as),
        config,
        has_gpu=devices.has_gpu,
        is_safe=tested.is_safe,
        plain_from=plain_from_of(header),
    )
    has_found_head = config.draft_path != requested.draft_path
    planned = plan_load(devices, header, key, choice.setting, config, listener.on_notice, has_found_head=has_found_head)
    auxiliary, planner, attempt = planned.auxiliary, planned.planner, planned.attempt
    listener.on_plan(describe_plan(attempt.plan))
    if warning := check_fit(attempt.plan, config.when_unfit):
        listener.on_notice(warning)
    head = _head_file(auxiliary.draft, header)
    projector = projector if auxiliary.projector is not None else None
    with_mtp = head is None and mtp_layer_bytes(header) is not None
    place = partial(devices.parameters, setting=attempt.setting)
    load = partial(_open, header, listener, with_mtp=with_mtp, head=head, place=place, projector=projector)
    native, attempt = load_within_memory(planner, attempt, load, listener.on_notice, may_shorten=not requested.n_ctx)
    with native.owned as owned:
        devices.check_load(attempt, native.usage, key)
        if auxiliary.projector is not None:
            devices.check_projector(auxiliary.projector, native.projector_bytes)
        step_cost = StepCost.from_measured(tuned.step_ratios(tuned_as) or choice.step_ratios)
        draft_sources = _draft_sources(native, attempt, header, devices, step_cost, listener)
        loaded = LoadedEngine(
            native.backend,
            partial(native.model.embedder, requested, attempt.setting, pooling_of(header)),
            step_cost,
            _store(native.backend, key, config, cache_dir, owned),
            partial(tuned.record_use, tuned_as),
            draft_sources=draft_sources,
            settings=(
                *describe_settings(choice, native.setting, requested, native.backend.facts),
                *describe_projector(
                    auxiliary.projector,
                    native.backend.facts,
                    attempt.projector_device,
                    is_chosen=config.has_chosen_projector,
                ),
            ),
            new_media_queue=media_queue_of(native.projector, key, cache_dir, saves=config.saves_prefixes),
            owned=owned.pop_all(),
        )
        if config.lora or draft_sources:  # they take time of each step
            return loaded
        return replace(loaded, record_speed=_recorder(attempt, planner.model, key, cache_dir).record)


def _open(
    header: Header,
    listener: LoadListener,
    attempt: LoadAttempt,
    *,
    with_mtp: bool,
    head: _HeadFile | None,
    place: Place,
    projector: ProjectorHeader | None,
) -> _NativeModel:
    """Load the weights and make the context of `attempt`. Raises MemoryShortError when memory is too small.

    Repacked weights are mapped as the file has them, too, where memory is left for the file's pages.
    """
    from app.engine import llama

    log = llama.native_log()
    log.take_buffers()
    path, setting = header.path, attempt.setting
    with ExitStack() as owned:
        model = llama.LlamaModel(
            path, attempt.parameters, attempt.setting.extra_buffers, listener.on_progress, with_mtp=with_mtp
        )
        owned.callback(model.close)
        model.load_adapters(_adapters(attempt.config), _control_vector(attempt.config, path))
        buffers = log.take_buffers()
        if head is not None:  # it borrows matrices of the model, which must stay where they are
            setting = replace(setting, plain_from=0)
        loaded_head = None if head is None else _load_head(head, attempt, place, owned)
        buffers = (*buffers, *log.take_buffers())
        if setting.plain_from and not (_has_room_for_pages(header) and model.map_plain_weights(header)):
            setting = replace(setting, plain_from=0)
        log.take_buffers()  # of the context that found the weights
        backend = model.context(attempt.config, setting, head=loaded_head)
        owned.callback(backend.close)
        usage = llama.buffer_bytes_by_device((*buffers, *log.take_buffers()))
        loaded_projector = None
        if projector is not None:
            devices = (attempt.projector_device,) if attempt.projector_device else ()
            loaded_projector = load_projector(projector, model, backend, setting, devices, owned)
        projector_bytes = sum(buffer.n_bytes for buffer in log.take_buffers())  # of its compute buffers: no others
        return _NativeModel(model, backend, setting, usage, owned.pop_all(), loaded_projector, projector_bytes)


@dataclass(frozen=True, slots=True)
class _HeadFile:
    """A draft head that belongs to the model."""

    path: Path
    spec: HeadSpec


def _head_file(draft: PlannedDraft | None, header: Header) -> _HeadFile | None:
    """Return the draft head of the model with `header`, None without a draft file and for a draft model."""
    if draft is None or not is_head(draft.header):
        return None
    return _HeadFile(draft.header.path, read_head(draft.header, header))


def _load_head(head: _HeadFile, attempt: LoadAttempt, place: Place, owned: ExitStack) -> LoadedHead:
    """Load the weights of a head, which `owned` frees. Raises EngineError when llama.cpp cannot."""
    from app.engine import llama

    parameters, extra_buffers = place(head.path, attempt.config), attempt.setting.extra_buffers
    model = llama.LlamaModel(head.path, parameters, extra_buffers, lambda _fraction: True)
    owned.callback(model.close)
    return llama.LoadedHead(model, head.spec, model_key(head.path))


def _has_room_for_pages(header: Header) -> bool:
    """Return whether the file's pages can stay in memory beside the repacked weights, with as much to spare.

    They are no part of the plan, for the system may drop them at any time.
    """
    return host_memory().free_bytes > _SPARE_SHARE * sum(tensor.n_bytes for tensor in header.tensors)


def _store(backend: Backend, key: str, config: EngineConfig, cache_dir: Path, owned: ExitStack) -> StateStore:
    """Return the store of states computed with the weights `key`; control vectors count like weights."""
    weights = "-".join([key, *(fingerprint(Path(path), scale) for path, scale in config.control_vectors)])
    max_memory_bytes = host_memory().total_bytes // MEMORY_SHARE
    folder = cache_dir / "prefix" / f"{weights}-{backend.facts.layout}"
    store = StateStore(folder, max_memory_bytes, MAX_DISK_BYTES if config.saves_prefixes else 0)
    owned.callback(store.close)
    return store


def _draft_sources(
    native: _NativeModel,
    attempt: LoadAttempt,
    header: Header,
    devices: LoadDevices,
    step_cost: StepCost,
    listener: LoadListener,
) -> tuple[DraftSource, ...]:
    """Load the draft sources of a model, with a notice of each."""
    facts, config = native.backend.facts, attempt.config
    if not facts.can_generate:
        listener.on_notice(f"{header.path.name} makes embeddings or ranks documents; it cannot chat.")
    head = make_head_source(native.backend, step_cost, mtp_layer_bytes(header))
    if head is not None and head.name != HeadKind.MTP.source_name:
        listener.on_notice(f"{Path(config.draft_path).name} drafts for {header.path.name}: {head.name}.")
        return (head,)
    if has_mtp_layers(header):
        listener.on_notice(_mtp_notice(header.path.name, facts, can_draft=head is not None))
    place = partial(devices.parameters, setting=attempt.setting)
    draft_model = load_draft_model(config, attempt.setting, native.model, facts, step_cost, native.owned, place)
    return tuple(source for source in (head, draft_model) if source is not None)


def make_head_source(
    backend: LlamaBackend, step_cost: StepCost, mtp_bytes: int | None = None
) -> AutoregressiveHeadSource | BlockHeadSource | None:
    """Return the draft source of the head that a backend was made with, None without one.

    `mtp_bytes` are those of the model's MTP layers, which are no model of their own.
    """
    from app.engine import llama

    if not isinstance(backend, llama.HeadBackend):
        return None
    head = backend.head
    kind = head.spec.kind
    n_bytes = mtp_bytes if kind is HeadKind.MTP and mtp_bytes else head.facts.model_bytes
    share = n_bytes / max(1, backend.facts.model_bytes)
    if isinstance(head, llama.AutoregressiveContext):
        return AutoregressiveHeadSource(kind.source_name, head, share, step_cost)
    assert isinstance(head, llama.BlockContext), "heads predict one token further, or a block"
    return BlockHeadSource(kind.source_name, head, share, step_cost)


def _mtp_notice(name: str, facts: BackendFacts, *, can_draft: bool) -> str:
    """Return the notice for a model that has MTP layers."""
    if can_draft:
        return f"{name} drafts with its own multi-token-prediction layer."
    reason = "its layers have windows" if facts.n_window else "this engine cannot run them"
    return f"{name} has multi-token-prediction layers and answers without them: {reason}."


def load_draft_model(
    config: EngineConfig,
    setting: RuntimeSettings,
    target: LlamaModel,
    facts: BackendFacts,
    step_cost: StepCost,
    owned: ExitStack,
    place: Place,
) -> DraftModel | None:
    """Load the draft model that `config` names for a target with these `facts`; return None when it names none.

    `place` returns where its layers go, `owned` frees it. Its context is as long as the target's.

    Raises ModelFileError when the two do not match, EngineError when llama.cpp cannot load it.
    """
    if not config.draft_path:
        return None
    from app.engine import llama

    path = Path(config.draft_path)
    if not facts.truncation.allows_rejection(facts.n_sequences):
        raise _mismatch(path, f"this model's {_NO_TRUNCATION}")
    config = replace(config, n_ctx=facts.n_ctx)
    model = llama.LlamaModel(path, place(path, config), setting.extra_buffers, lambda _fraction: True)
    owned.callback(model.close)
    if difference := vocabulary_mismatch(target.vocabulary(), model.vocabulary()):
        raise _mismatch(path, difference)
    backend = model.context(config, setting)
    owned.callback(backend.close)
    if not backend.facts.truncation.allows_rejection(facts.n_sequences):
        raise _mismatch(path, f"its {_NO_TRUNCATION}")
    return DraftModel(backend, facts, step_cost)


def _mismatch(path: Path, reason: str) -> ModelFileError:
    return ModelFileError(f"{path.name} cannot draft for this model: {reason}.", _REMEDY)


def _recorder(attempt: LoadAttempt, model: PlannedModel, key: str, cache_dir: Path) -> RunRecorder:
    """Return the recorder of the speeds of a model that was loaded as `attempt`."""
    found, setting = attempt.plan.assessment, attempt.setting
    return RunRecorder(
        history=RunHistory(cache_dir),
        n_threads=setting.n_threads,
        fingerprint=key,
        model=model,
        setting=replace(
            attempt.plan.run_config, n_ubatch=attempt.setting.n_ubatch, is_fused=attempt.setting.flash_attention
        ),
        devices=found.machine,
        placement=found.placement or ALL_ON_HOST,
    )


def _adapters(config: EngineConfig) -> dict[Adapter, Path]:
    """Return the adapters to load. The cache would take one file under two names for one, so each is loaded once."""
    named = {Adapter(name, fingerprint(Path(path))): Path(path) for path, name in config.lora}
    for what, values in (("name", {item.name for item in named}), ("file", {item.key for item in named})):
        if len(values) != len(config.lora):
            raise UsageError(f"Two adapters have the same {what}.", "Give each adapter once, as FILE=NAME.")
    return named


def _control_vector(config: EngineConfig, model: Path) -> NDArray[np.float32] | None:
    """Return the sum of the control vectors, each times its scale; None without any."""
    scaled = [np.float32(scale) * read_control_vector(Path(path), model) for path, scale in config.control_vectors]
    return np.sum(scaled, axis=0, dtype=np.float32) if scaled else None
