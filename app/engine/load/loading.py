"""The way from a path to a running model: its plan, its runtime settings, its draft sources and its state store.

Owns what a worker decides before the first request. Runs in the worker; native code is imported when called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from app.common.prompt_pace import PromptCost
from app.engine.backend import Backend
from app.engine.cache.deterministic_cache import DETERMINISTIC_STEP
from app.engine.cache.state_store import MAX_DISK_BYTES, StateStore
from app.engine.embedding import Embedder, pooling_of
from app.engine.load.auxiliary_loading import (
    LoadedProjector,
    NewMediaQueue,
    Place,
    load_draft_sources,
    load_head,
    load_projector,
    media_queue_of,
    usable_projector,
)
from app.engine.load.auxiliary_models import LoadPlan, plan_load, with_found_draft
from app.engine.load.draft_copy import CopyRecords, is_copy
from app.engine.load.head_file import is_head
from app.engine.load.machine import exposure_warning
from app.engine.load.machine_file import fingerprint, model_key
from app.engine.load.planner import (
    LoadAttempt,
    LoadDevices,
    check_fit,
    load_within_memory,
    requested_run,
    size_context,
)
from app.engine.load.prediction_layers import mtp_layer_bytes
from app.engine.load.quick_types import copies_to_make, tiles_to_leave_out
from app.engine.load.run_history import RunHistory, RunRecorder, SpeedSample
from app.engine.load.self_test import NOTICE, run_self_test
from app.engine.load.slow_types import slow_type_notice
from app.engine.load.type_tables import expected_step_ratios
from app.engine.loop.counters import DraftCounts
from app.engine.loop.threads import ThreadControl
from app.engine.messages import EngineConfig
from app.engine.request import Adapter
from app.engine.speculative.cost_model import StepCost
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.draft_source import DraftSource
from app.engine.speech import SPEECH_N_CTX, Speaker, is_speaker
from app.engine.tuning.speed_bench import measure_step_cost
from app.engine.tuning.tune_results import (
    COPY_FROM,
    RuntimeSettings,
    SettingChoice,
    TuneFile,
    Workload,
    choose_setting,
    copies_of,
    describe_projector,
    describe_settings,
    plain_from_of,
    tune_key,
)
from app.protocol.plan import Plan, describe_plan
from app.protocol.status import LoadedSetting
from app.settings.folders import cache_warning
from offload.devices.host import LoadMeter, affinity, host_memory, memory_stalled_share
from offload.devices.machine import HOST_NAME, Device, DeviceKind
from offload.devices.numa import AUTO, NumaChoice, choose_numa, numa_nodes
from offload.footprint.kv_cache import parse_kv_types
from offload.footprint.model import DEFAULT_N_UBATCH, ENGINE_BYTES, PlannedModel
from offload.format import format_memory
from offload.placement.load_parameters import DeviceUsage
from offload.placement.saved_states import state_limit_bytes
from offload.placement.shares import ALL_ON_HOST, margin_bytes
from offload.speed.type_costs import copy_bytes
from quantizer.gguf.adapters import read_control_vector
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.projector_header import ProjectorHeader
from quantizer.gguf.validation import shard_paths, tensors_of
from quantizer.system.errors import EngineError, UsageError

if TYPE_CHECKING:
    from app.engine.llama import LlamaBackend, LlamaModel

_SPARE_SHARE = 2  # free memory over the size of a file whose pages may stay in it
_BATCH_ANSWERS = 32  # at once: a step of more tokens gains little on processors
_BATCH_CELLS = 16_384  # for all of them, 512 each
_BATCH_COPY_FROM = 4  # tokens of a step: with one a copy only is more bytes to read
_BATCH_MEMORY_SHARE = 2  # half of the free memory may be a batch's
_STATE_SHARE = 6  # of this machine's memory one chat may take on its way to the disk


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A backend with its step cost, its draft sources and its stores. `settings` are what it runs with, and why.
    `owned` frees all of it. `record_use`, `record_speed` and `record_drafts` store what the next load uses. Whoever
    makes an embedder closes it, and so whoever makes the queue of pictures and sounds, which a model with a projector
    has, or the context in which `n_batch_answers` of batches run at once; without `new_batch_backend` they run among
    the others. That of `new_deterministic_backend` is for one answer at a time. A `speaker` computes with
    the context of `backend`. `threads` is None where the user chose their number, or one is enough; `prompt_cost` is
    what a prompt is expected to cost."""

    backend: Backend
    new_embedder: Callable[[], Embedder]
    step_cost: StepCost
    store: StateStore | None
    record_use: Callable[[Workload, Mapping[int, float]], None]
    owned: ExitStack
    draft_sources: tuple[DraftSource, ...] = ()
    settings: tuple[LoadedSetting, ...] = ()
    record_speed: Callable[[SpeedSample], None] = lambda _sample: None
    record_drafts: Callable[[Mapping[str, DraftCounts]], None] = lambda _counts: None
    new_media_queue: NewMediaQueue | None = None
    threads: ThreadControl | None = None
    prompt_cost: PromptCost | None = None
    new_batch_backend: Callable[[], Backend] | None = None
    n_batch_answers: int = 0
    new_batch_cost: Callable[[], StepCost] = StepCost
    new_deterministic_backend: Callable[[], Backend] | None = None
    speaker: Speaker | None = None


@dataclass(frozen=True, slots=True)
class LoadListener:
    """Callbacks of a load. `on_progress` receives fractions from 0 to 1 and returns False to cancel. `on_notice`
    receives sentences for the user, `on_plan` the object of `localllm plan --json` before anything is loaded."""

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
    has_head: bool  # of drafts, which computes with the model's own steps


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What is decided before anything is loaded: the `requested` settings, those in force, and the plan. `tuned_as` is
    the key of the model's measurements in `tuned`, `key` that of its weights."""

    requested: EngineConfig
    config: EngineConfig
    header: Header
    devices: LoadDevices
    key: str
    tuned: TuneFile
    tuned_as: str
    choice: SettingChoice
    plan: LoadPlan
    projector: ProjectorHeader | None
    tiled_from: Mapping[str, int]


def load_model(path: Path, config: EngineConfig, cache_dir: Path, listener: LoadListener) -> LoadedEngine:
    """Load the model at `path` as planned, with the fastest setting measured on this machine. Raises UnfitError when
    the user has to agree first, EngineError when llama.cpp cannot load it, ModelFileError for a draft model that does
    not match it."""
    meter = LoadMeter()
    meter.read()
    prepared = _prepare(path, config, cache_dir, listener)
    header, devices, auxiliary = prepared.header, prepared.devices, prepared.plan.auxiliary
    head = auxiliary.draft.header.path if auxiliary.draft is not None and is_head(auxiliary.draft.header) else None
    load = partial(
        _open,
        header,
        listener,
        with_mtp=head is None and mtp_layer_bytes(header) is not None,
        head=head,
        place=partial(devices.parameters, setting=prepared.plan.attempt.setting),
        projector=prepared.projector,
        tiled_from=prepared.tiled_from,
    )
    planner, first = prepared.plan.planner, prepared.plan.attempt
    native, attempt = load_within_memory(planner, first, load, listener.on_notice, may_shorten=not config.n_ctx)
    with native.owned as owned:
        for sentence in devices.check_load(attempt, native.usage, prepared.key):
            listener.on_notice(sentence)
        if auxiliary.projector is not None:
            devices.check_projector(auxiliary.projector, native.projector_bytes)
        # What steps cost by their size: as of the last use, else as tuned, else as the measured types make expect, else
        # as usual on processors. GPUs compute several tokens, so drafts, for less than a processor does, but lose time
        # with each change of size.
        tuned, used = prepared.choice.step_ratios, prepared.tuned.step_ratios(prepared.tuned_as)
        known = {**{n: ratio for n, ratio in tuned.items() if n < COPY_FROM or not native.setting.copies}, **used}
        expected = partial(_expected_costs, attempt, planner.model, cache_dir, has_gpu=devices.has_gpu)
        if attempt.is_all_on_gpus and native.backend.facts.can_generate:
            step_cost = measure_step_cost(native.backend, native.setting, known)
        else:
            step_cost = expected(native.setting, COPY_FROM, known)
        if (wanted := dict(prepared.choice.setting.copies)) and not attempt.setting.copies:
            CopyRoom(listener.on_notice).refuse(
                copy_bytes(planner.model.tensors, wanted), "the model leaves too little memory beside it"
            )
        if is_speaker(header):
            speaks = "" if native.backend.facts.speaks else " It speaks with its mmproj file only, which is not loaded."
            listener.on_notice(f"{header.path.name} says texts aloud; it cannot chat.{speaks}")
        elif not native.backend.facts.can_generate:
            listener.on_notice(f"{header.path.name} makes embeddings or ranks documents; it cannot chat.")
        place = partial(devices.parameters, setting=attempt.setting)
        draft_sources = load_draft_sources(
            native.model, native.backend, header, attempt, place, step_cost, owned, listener.on_notice, cache_dir
        )
        batch_setting = partial(_batch_setting, native.setting, planner.model, attempt.config, cache_dir)
        speed, growth = attempt.plan.assessment.speed, planner.model.prompt_growth
        run_config = attempt.plan.run_config
        middle = min(run_config.n_prompt, run_config.n_ctx) / 2  # of the prompt that the speed is that of
        loaded = LoadedEngine(
            native.backend,
            partial(native.model.embedder, config, attempt.setting, pooling_of(header)),
            step_cost,
            _store(native.backend, prepared.key, attempt, cache_dir, owned),
            partial(prepared.tuned.record_use, prepared.tuned_as),
            draft_sources=draft_sources,
            record_drafts=partial(_record_drafts, attempt.config, cache_dir),
            settings=(
                *describe_settings(
                    prepared.choice,
                    native.setting,
                    prepared.requested,
                    native.backend.facts,
                    copy_bytes(planner.model.tensors, dict(native.setting.copies)),
                ),
                *_describe_numa(attempt),
                *describe_projector(
                    auxiliary.projector,
                    native.backend.facts,
                    attempt.projector_device,
                    is_chosen=prepared.config.has_chosen_projector,
                ),
            ),
            speaker=None if native.projector is None else native.projector.speaker,
            new_media_queue=media_queue_of(
                native.projector, prepared.key, cache_dir, saves=prepared.config.saves_prefixes
            ),
            owned=owned.pop_all(),
            new_batch_backend=_batch_context(native, attempt, planner.model, batch_setting),
            n_batch_answers=_BATCH_ANSWERS,
            new_batch_cost=lambda: expected(batch_setting(), _BATCH_COPY_FROM, step_cost.measured),
            new_deterministic_backend=_deterministic_context(native, attempt, planner.model),
            prompt_cost=PromptCost(None if speed is None else 1 / speed.prefill_tps / (1 + growth * middle), growth),
        )
        loaded = replace(loaded, threads=_thread_control(prepared.config, native, step_cost, draft_sources, meter))
        if prepared.config.lora or draft_sources:  # these take time of each step, so no speed is the model's own
            return loaded
        return replace(
            loaded, record_speed=_recorder(attempt, native.setting, planner.model, prepared.key, cache_dir).record
        )


def _prepare(path: Path, requested: EngineConfig, cache_dir: Path, listener: LoadListener) -> _Prepared:
    """Size the context, find the files that go with the model, choose a setting and plan. Raises as `load_model`."""
    tested = run_self_test(cache_dir)  # first: it decides which variant of a portable llama.cpp is loaded here
    devices, header = LoadDevices(requested, cache_dir), read_header(path)
    if tested.is_new and not tested.is_safe:
        listener.on_notice(NOTICE)
    if warning := cache_warning(cache_dir):
        listener.on_notice(warning)
    sized = _for_speech(requested) if is_speaker(header) else requested
    config, notice = size_context(sized, header, is_on_host=not devices.has_gpu)
    config, passed_over = with_found_draft(config, header, cache_dir)
    config, projector, unsound = usable_projector(config, header, cache_dir)
    for sentence in filter(None, (notice, exposure_warning(config.rpc), *passed_over, *config.passed_over, unsound)):
        listener.on_notice(sentence)
    key, tuned, tuned_as = model_key(path), TuneFile(cache_dir), tune_key(header)
    # A head borrows matrices of the model, whose pointers must not be exchanged.
    with_head = bool(config.draft_path) and is_head(read_header(Path(config.draft_path)))
    copies: tuple[tuple[str, str], ...] = ()
    if config.copies_weights and not with_head and not devices.has_gpu:
        copies = copies_to_make(tensors_of(header), cache_dir, config.n_threads, is_safe=tested.is_safe)
    in_file = () if devices.has_gpu else tensors_of(header)
    tiled_from = tiles_to_leave_out(in_file, cache_dir, config.n_threads, is_safe=tested.is_safe)
    choice = choose_setting(
        tuned.measured(tuned_as),
        tuned.work(tuned_as),
        config,
        has_gpu=devices.has_gpu,
        is_safe=tested.is_safe,
        plain_from=plain_from_of(header),
        copies=copies,
    )
    has_found_draft = config.draft_path != requested.draft_path
    plan = plan_load(
        devices, header, key, choice.setting, config, listener.on_notice, cache_dir, has_found_draft=has_found_draft
    )
    listener.on_plan(describe_plan(plan.attempt.plan, config.max_bytes))
    if warning := check_fit(plan.attempt.plan, config.when_unfit):
        listener.on_notice(warning)
    planner, attempt = plan.planner, plan.attempt
    rates = planner.rates_of(attempt.plan.assessment.machine)
    if rates.tables and (sentence := slow_type_notice(planner.model, attempt, rates, key, cache_dir)):
        listener.on_notice(sentence)
    projector = projector if plan.auxiliary.projector is not None else None
    return _Prepared(requested, config, header, devices, key, tuned, tuned_as, choice, plan, projector, tiled_from)


def _open(
    header: Header,
    listener: LoadListener,
    attempt: LoadAttempt,
    *,
    with_mtp: bool,
    head: Path | None,
    place: Place,
    projector: ProjectorHeader | None,
    tiled_from: Mapping[str, int],
) -> _NativeModel:
    """Load the weights and make the context of `attempt`. Raises MemoryShortError when memory is too small. Repacked
    weights are mapped as the file has them, too, where memory is left for the file's pages."""
    from app.engine import llama

    log = llama.native_log()
    log.take_buffers()
    if (numa := _numa_choice(attempt)) is not None:
        llama.init_numa(numa.strategy)
    path, setting = header.path, attempt.setting
    with ExitStack() as owned:
        read_ahead = None
        if attempt.reads_from_disk and attempt.plan.assessment.profile.has_experts and hasattr(os, "posix_fadvise"):
            read_ahead = owned.enter_context(closing(llama.ExpertReadAhead(shard_paths(header))))
        model = llama.LlamaModel(
            path,
            attempt.parameters,
            setting.extra_buffers,
            listener.on_progress,
            with_mtp=with_mtp,
            repacked_types=setting.repacked_types,
            observer=read_ahead,
        )
        owned.callback(model.close)
        adapters, vectors = _adapters(attempt.config), attempt.config.control_vectors
        scaled = [np.float32(scale) * read_control_vector(Path(file), path) for file, scale in vectors]
        model.load_adapters(adapters, np.sum(scaled, axis=0, dtype=np.float32) if scaled else None)
        buffers = log.take_buffers()
        if head is not None:  # as for copies
            setting = replace(setting, plain_from=0)
        loaded_head = None if head is None else load_head(head, header, attempt, place, owned)
        buffers = (*buffers, *log.take_buffers())
        # The file's pages are no part of the plan, for the system may drop them at any time; they are left out where
        # memory is short all the same.
        file_bytes = sum(tensor.n_bytes for tensor in header.tensors)
        has_room = host_memory().free_bytes > _SPARE_SHARE * file_bytes
        if setting.plain_from and not (has_room and model.map_plain_weights(header)):
            setting = replace(setting, plain_from=0)
        if setting.copies and not model.add_copies(dict(setting.copies), CopyRoom(listener.on_notice)):
            setting = replace(setting, copies=())
        if tiled_from:
            model.leave_out_tiles(tiled_from)
        log.take_buffers()  # those of contexts that looked for weights count nowhere
        backend = model.context(attempt.config, setting, head=loaded_head)
        owned.callback(backend.close)
        if is_speaker(header):
            backend.facts = replace(backend.facts, can_generate=False)
        usage = llama.buffer_bytes_by_device((*buffers, *log.take_buffers()))
        loaded_projector = None
        if projector is not None:
            devices = (attempt.projector_device,) if attempt.projector_device else ()
            loaded_projector = load_projector(projector, model, backend, setting, devices, owned)
        projector_bytes = sum(buffer.n_bytes for buffer in log.take_buffers())  # its compute buffers only
        has_head = with_mtp or head is not None
        return _NativeModel(
            model, backend, setting, usage, owned.pop_all(), loaded_projector, projector_bytes, has_head
        )


def _for_speech(config: EngineConfig) -> EngineConfig:
    """Return `config` for a model that speaks, whose context holds a sentence and its sound: more cells would be for
    nothing."""
    n_ctx = config.n_ctx or SPEECH_N_CTX
    return replace(config, n_ctx=n_ctx, n_cells=n_ctx, n_sequences=1, saves_prefixes=False)


def _numa_choice(attempt: LoadAttempt) -> NumaChoice | None:
    return choose_numa(attempt.config.numa, numa_nodes(), affinity(), computes=not attempt.is_all_on_gpus)


def _describe_numa(attempt: LoadAttempt) -> Iterator[LoadedSetting]:
    if (choice := _numa_choice(attempt)) is not None:
        source: Literal["option", "default"] = "default" if attempt.config.numa == AUTO else "option"
        yield LoadedSetting("NUMA", choice.strategy, source, choice.reason)


@dataclass(slots=True)
class CopyRoom:
    """Says whether copies may take memory, or keep it for 0 bytes: the margin of plans stays free. The first time that
    they may not, the user is told."""

    on_notice: Callable[[str], None] = lambda _text: None
    _has_noticed: bool = False

    def __call__(self, n_bytes: int) -> bool:
        memory = host_memory()
        host = Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=memory.total_bytes, free_bytes=memory.free_bytes)
        spare_bytes = memory.free_bytes - margin_bytes(host)
        if n_bytes > spare_bytes:
            self.refuse(n_bytes, f"{format_memory(max(0, spare_bytes))} can be spared")
        return n_bytes <= spare_bytes

    def refuse(self, n_bytes: int, spare: str) -> None:
        """Tell the user once that copies of `n_bytes` have no place, or with 0 bytes had to give theirs back."""
        if self._has_noticed:
            return
        self._has_noticed = True
        cause = "memory is short, so the faster copy of the weights was given back"
        if n_bytes:
            cause = f"a faster copy of the weights needs {format_memory(n_bytes)}, and {spare}"
        self.on_notice(f"Prompts read slower than they could: {cause}. Close programs that take memory.")


def _expected_costs(
    attempt: LoadAttempt,
    model: PlannedModel,
    cache_dir: Path,
    setting: RuntimeSettings,
    copy_from: int,
    known: Mapping[int, float],
    *,
    has_gpu: bool,
) -> StepCost:
    """Return what steps of several tokens cost with `setting`, where the copies serve steps from `copy_from` tokens on:
    what is `known`, and else what the measured types make expect."""
    expected, copied = {}, {}
    if not has_gpu:
        run_config = replace(attempt.plan.run_config, is_fused=setting.flash_attention)
        layouts = (
            replace(setting.layout, copies=(), copy_from=0),
            replace(setting.layout, copy_from=copy_from * bool(setting.copies)),
        )
        expected, copied = (
            expected_step_ratios(model, replace(run_config, layout=layout), cache_dir, setting.n_threads)
            for layout in layouts
        )
    copied = {n_tokens: ratio for n_tokens, ratio in copied.items() if n_tokens >= copy_from and setting.copies}
    return StepCost.from_measured(known, expected=expected, copied=copied)


def _thread_control(
    config: EngineConfig,
    native: _NativeModel,
    step_cost: StepCost,
    draft_sources: Sequence[DraftSource],
    meter: LoadMeter,
) -> ThreadControl | None:
    n_most, backend = native.setting.n_threads, native.backend
    if config.n_threads or n_most < 2:
        return None
    draft_models = [source for source in draft_sources if isinstance(source, DraftModel)]

    def apply(n_threads: int) -> None:
        backend.set_threads(n_threads)
        for draft_model in draft_models:
            draft_model.set_threads(n_threads)

    return ThreadControl(n_most, apply, step_cost, meter)


def _batch_context(
    native: _NativeModel, attempt: LoadAttempt, model: PlannedModel, new_setting: Callable[[], RuntimeSettings]
) -> Callable[[], Backend] | None:
    """Return what makes a second context over the weights of `native`, in which many answers of batches run at once;
    None where one context serves both: on GPUs, whose memory is planned to the end and whose attention is fused anyway,
    and for models whose states or windows take memory for each answer. Attention is fused there: SmolLM2 135M, of a
    step of 8 answers with 440 tokens each 2.3 ms a token are attention instead of 7, for it skips others' cells."""
    facts, config = native.backend.facts, attempt.config
    is_shared = facts.uses_gpu or not facts.truncation.is_unlimited or not facts.can_generate
    if is_shared or native.has_head:
        return None

    def new_backend() -> Backend:
        limit_bytes = host_memory().free_bytes // _BATCH_MEMORY_SHARE
        setting = replace(native.setting, flash_attention=True)
        # Those that prompts use are there already. Types may have been measured since the model was loaded.
        wanted = {} if setting.copies else dict(new_setting().copies)
        copied_bytes = copy_bytes(model.tensors, wanted)
        # Copies make a step two to three times as fast, more cells only let more answers share it.
        for has_copies in (True, False) if wanted else (False,):
            for n_cells in (max(_BATCH_CELLS, facts.n_ctx), facts.n_ctx):
                size = replace(config, n_ctx=facts.n_ctx, n_cells=n_cells, n_sequences=_BATCH_ANSWERS)
                profile = model.profile(replace(requested_run(size, is_fused=True), n_ubatch=setting.n_ubatch))
                n_bytes = profile.cache_bytes + profile.compute_bytes + profile.host_bytes - ENGINE_BYTES
                if n_bytes + copied_bytes * has_copies <= limit_bytes:
                    copies = native.model.new_copies(wanted, CopyRoom()) if has_copies else None
                    return native.model.context(size, setting, copies=copies, copy_from=_BATCH_COPY_FROM)
        needed, free = n_bytes >> 20, limit_bytes * _BATCH_MEMORY_SHARE >> 20
        cause = f"a context of their own needs {needed:,} MiB, and half of the {free:,} MiB that are free may be used."
        raise EngineError(cause, "Close programs that take memory, or use a smaller --ctx.")

    return new_backend


def _batch_setting(
    setting: RuntimeSettings, model: PlannedModel, config: EngineConfig, cache_dir: Path
) -> RuntimeSettings:
    """Return the setting of the context of batches: fused attention, and the copies that this processor gains by."""
    copies = setting.copies
    if not copies and config.copies_weights:
        copies = copies_of(model.tensors, cache_dir, config.n_threads, is_repacked=setting.extra_buffers)
    return replace(setting, flash_attention=True, copies=copies)


def _deterministic_context(
    native: _NativeModel, attempt: LoadAttempt, model: PlannedModel
) -> Callable[[], Backend] | None:
    """Return what makes a context for deterministic answers over the weights of `native`, None for models without
    answers.

    Attention there is not fused: for a single token that would split the cells among the threads, whose number follows
    the load of the machine. A quantized cache needs it, and is never split. GPUs keep their setting. There are no
    copies of weights, which come and go with free memory."""
    facts, config, setting = native.backend.facts, attempt.config, native.setting
    if not facts.can_generate:
        return None
    needs_fused = parse_kv_types(setting.kv_type).needs_flash_attention
    is_fused = needs_fused if facts.is_on_host else setting.flash_attention
    # The tokens of a picture may attend to each other, in one micro-batch.
    n_batch = min(facts.n_batch, DEFAULT_N_UBATCH if native.projector is not None else DETERMINISTIC_STEP)

    def new_backend() -> Backend:
        own = replace(setting, flash_attention=is_fused, n_ubatch=min(setting.n_ubatch, n_batch), copies=())
        size = replace(config, n_ctx=facts.n_ctx, n_cells=facts.n_ctx, n_sequences=1, n_batch=n_batch)
        profile = model.profile(replace(requested_run(size, is_fused=is_fused), n_ubatch=own.n_ubatch))
        n_bytes = profile.cache_bytes + profile.compute_bytes + profile.host_bytes - ENGINE_BYTES
        free_bytes = host_memory().free_bytes
        if facts.is_on_host and n_bytes > free_bytes - margin_bytes(attempt.plan.assessment.machine.host):
            raise EngineError(
                f"Deterministic answers are computed in a context of their own, which needs {format_memory(n_bytes)};"
                f" {format_memory(free_bytes)} are free.",
                "Close programs that take memory, load the model with a smaller --ctx, or ask without deterministic.",
            )
        return native.model.context(size, own, with_mtp=False)

    return new_backend


def _store(backend: Backend, key: str, attempt: LoadAttempt, cache_dir: Path, owned: ExitStack) -> StateStore:
    """Return the store of states computed with the weights `key`; control vectors count like weights."""
    config, found = attempt.config, attempt.plan.assessment
    weights = "-".join([key, *(fingerprint(Path(path), scale) for path, scale in config.control_vectors)])
    planned_bytes, margin = found.state_bytes(config.max_bytes or None), margin_bytes(found.machine.host)
    folder = cache_dir / "prefix" / f"{weights}-{backend.facts.layout}"
    max_disk_bytes = MAX_DISK_BYTES if config.saves_prefixes else 0

    def limit_bytes(n_held: int) -> int:
        return state_limit_bytes(n_held, planned_bytes, host_memory().free_bytes, margin, memory_stalled_share())

    max_state_bytes = host_memory().total_bytes // _STATE_SHARE
    store = StateStore(folder, planned_bytes, max_disk_bytes, limit_bytes, max_state_bytes)
    owned.callback(store.close)
    return store


def _recorder(
    attempt: LoadAttempt, setting: RuntimeSettings, model: PlannedModel, key: str, cache_dir: Path
) -> RunRecorder:
    """Return the recorder of the speeds of a model that was loaded as `attempt`, with `setting`."""
    found = attempt.plan.assessment
    return RunRecorder(
        history=RunHistory(cache_dir),
        n_threads=setting.n_threads,
        fingerprint=key,
        model=model,
        setting=replace(
            attempt.plan.run_config,
            n_ubatch=setting.n_ubatch,
            is_fused=setting.flash_attention,
            layout=setting.layout,
        ),
        devices=found.machine,
        placement=found.placement or ALL_ON_HOST,
    )


def _record_drafts(config: EngineConfig, cache_dir: Path, counts: Mapping[str, DraftCounts]) -> None:
    """Record how many tokens of a low-bit copy were accepted."""
    found = counts.get(DraftModel.name)
    if config.draft_path and found is not None and found.n_verified and is_copy(read_header(Path(config.draft_path))):
        CopyRecords.of(cache_dir).record_use(Path(config.draft_path), found.n_verified, found.n_accepted)


def _adapters(config: EngineConfig) -> dict[Adapter, Path]:
    """Return the adapters to load, each once: the prefix cache tells them apart by their files."""
    named = {Adapter(name, fingerprint(Path(path))): Path(path) for path, name in config.lora}
    for what, values in (("name", {item.name for item in named}), ("file", {item.key for item in named})):
        if len(values) != len(config.lora):
            raise UsageError(f"Two adapters have the same {what}.", "Give each adapter once, as FILE=NAME.")
    return named
