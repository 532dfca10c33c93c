"""The setting that a model is loaded with, and what is said about it: each part, who chose it, and the figures. Pure.

Independent of how speeds are measured, and of what shows the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.engine.protocol.messages import BackendFacts, EngineConfig, Truncation
from app.engine.tuning.tune_results import (
    DEFAULT_KV_TYPE,
    DEFAULT_WORKLOAD,
    RuntimeSettings,
    SpeedMeasurement,
    Workload,
    decode_speed,
    default_setting,
    fastest,
    with_kv_type,
)
from app.protocol.status import LoadedSetting
from offload.devices.cpu import default_threads
from offload.footprint.auxiliary_models import PlannedProjector
from offload.footprint.kv_cache import parse_kv_types
from offload.format import format_memory

_NOT_MEASURED = "not measured yet"
_NO_ROOM = "too little free memory for both"


@dataclass(frozen=True, slots=True)
class SettingChoice:
    """The `setting` to load with for `work`. `best` is its measurement, one of `known`; None before there are any."""

    setting: RuntimeSettings
    best: SpeedMeasurement | None = None
    known: tuple[SpeedMeasurement, ...] = ()
    work: Workload = DEFAULT_WORKLOAD

    @property
    def step_ratios(self) -> Mapping[int, float]:
        """The measured cost of steps by their size, empty before any measurement."""
        return dict(self.best.step_ratios) if self.best else {}


def choose_setting(
    measured: Sequence[SpeedMeasurement],
    work: Workload,
    config: EngineConfig,
    *,
    has_gpu: bool,
    is_safe: bool,
    plain_from: int = 0,
) -> SettingChoice:
    """Return the setting to load with; `is_safe` is whether this build can run repacked weights, `plain_from` the
    model's."""
    n_threads = config.n_threads or default_threads()
    setting = default_setting(n_threads, has_gpu=has_gpu, extra_buffers_are_safe=is_safe, plain_from=plain_from)
    setting = with_kv_type(setting, config.kv_type)
    known = tuple(
        item
        for item in measured
        if item.setting.kv_type == config.kv_type and (is_safe or not item.setting.extra_buffers)
    )
    if not any(replace(item.setting, n_threads=n_threads) == setting for item in known):
        return SettingChoice(setting)  # nothing was measured, or not yet the default that others have to beat
    best = fastest(known, work)
    setting = replace(best.setting, n_threads=n_threads) if config.n_threads else best.setting
    return SettingChoice(setting, best, known, work)


def describe_settings(
    choice: SettingChoice, loaded: RuntimeSettings, requested: EngineConfig, facts: BackendFacts
) -> tuple[LoadedSetting, ...]:
    """Return what a model runs with that was `loaded` with the setting of `choice`, as far as memory allowed."""
    weights = _part(choice, loaded, "weights", lambda setting: setting.weights, _weights)
    if choice.setting.weights == "both" != loaded.weights:
        weights = LoadedSetting("weights", _weights(loaded), "default", _NO_ROOM)
    attention = _part(choice, loaded, "attention", lambda setting: setting.flash_attention, _attention)
    if parse_kv_types(loaded.kv_type).needs_flash_attention:
        attention = LoadedSetting("attention", _attention(loaded), "option", f"a KV cache of {loaded.kv_type} needs it")
    elif loaded.flash_attention != choice.setting.flash_attention:
        attention = LoadedSetting("attention", _attention(loaded), "default", "as planned for the layers on GPUs")
    threads = _part(
        choice, loaded, "threads", lambda setting: setting.n_threads, lambda setting: f"{setting.n_threads}"
    )
    if requested.n_threads:
        threads = LoadedSetting("threads", f"{loaded.n_threads}", "option")
    micro_batch = _part(
        choice, loaded, "micro-batch", lambda setting: setting.n_ubatch, lambda setting: f"{setting.n_ubatch}"
    )
    if loaded.n_ubatch < choice.setting.n_ubatch:
        micro_batch = LoadedSetting("micro-batch", f"{loaded.n_ubatch}", "default", _less_memory(choice, facts))
    has_kv_option = requested.kv_type not in ("", DEFAULT_KV_TYPE)
    return (
        attention,
        weights,
        threads,
        micro_batch,
        LoadedSetting("KV cache", loaded.kv_type, "option" if has_kv_option else "default"),
        LoadedSetting("truncation", _truncation(facts.truncation), "model"),
    )


def describe_drafts(names: Sequence[str], *, has_draft_model: bool) -> LoadedSetting:
    """Return the sources of drafts that a loaded model has, by name."""
    return LoadedSetting("drafts", ", ".join(names) or "none", "option" if has_draft_model else "default")


def describe_projector(
    planned: PlannedProjector | None, facts: BackendFacts, device: str, *, is_chosen: bool
) -> tuple[LoadedSetting, ...]:
    """Return what lets a loaded model see or hear, its bytes and its `device` (empty: the processor); none without."""
    takes = " and ".join(verb for verb, does in (("sees", facts.sees), ("hears", facts.hears)) if does)
    if planned is None or not takes:
        return ()
    n_bytes = planned.n_bytes + planned.compute_bytes + planned.excess_bytes
    value = f"{planned.name} {takes}, {format_memory(n_bytes)} on {device or 'the processor'}"
    return (LoadedSetting("projector", value, "option" if is_chosen else "model"),)


def _part(
    choice: SettingChoice,
    loaded: RuntimeSettings,
    name: str,
    value_of: Callable[[RuntimeSettings], object],
    text_of: Callable[[RuntimeSettings], str],
) -> LoadedSetting:
    """Return a part of the `loaded` setting, with the fastest measurement of any other value of that part."""
    if choice.best is None or value_of(loaded) != value_of(choice.best.setting):
        return LoadedSetting(name, text_of(loaded), "default", _NOT_MEASURED)
    others = [item for item in choice.known if value_of(item.setting) != value_of(loaded)]
    if not others:
        return LoadedSetting(name, text_of(loaded), "default", _NOT_MEASURED)
    other = fastest(others, choice.work)
    reason = f"{_speeds(choice.best, choice.work)}, {text_of(other.setting)} {_speeds(other, choice.work)}"
    return LoadedSetting(name, text_of(loaded), "measured", reason)


def _less_memory(choice: SettingChoice, facts: BackendFacts) -> str:
    """Return why the micro-batch is smaller than that of `choice`."""
    return f"{choice.setting.n_ubatch} would take too much memory with {facts.n_cells:,} cells"


def _speeds(item: SpeedMeasurement, work: Workload) -> str:
    """Return the speeds of prompts and answers in tokens a second."""
    return f"{item.prefill:.3g} + {decode_speed(item, work):.3g} tok/s"


def _attention(setting: RuntimeSettings) -> str:
    return "fused" if setting.flash_attention else "plain"


def _weights(setting: RuntimeSettings) -> str:
    if setting.weights == "both":
        return f"repacked, from {setting.plain_from} tokens a step as in the file"
    return "repacked" if setting.weights == "repacked" else "as in the file"


def _truncation(truncation: Truncation) -> str:
    if truncation.is_unlimited:
        return "anywhere"
    parts = (
        (truncation.n_window, f"within a window of {truncation.n_window} tokens"),
        (truncation.n_rollback, f"by {truncation.n_rollback} tokens"),
        (truncation.n_holds, f"to {truncation.n_holds} held states"),
        (truncation.has_states, "at its end"),
    )
    return ", ".join(text for applies, text in parts if applies)
