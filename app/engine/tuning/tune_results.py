"""The speeds measured of models on this machine (`<cache>/tune.json`), and the setting chosen by them.

Independent of how a speed is measured, and of what shows the choice.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from app.engine.load.machine_file import MachineFile, fingerprint, model_key, this_build
from app.engine.load.type_tables import copies_here
from app.engine.messages import BackendFacts, EngineConfig, Truncation
from app.protocol.codec import decode_checked, encode
from app.protocol.status import LoadedSetting
from offload.devices.host import default_threads, usable_processors
from offload.footprint.auxiliary_models import PlannedProjector
from offload.footprint.kv_cache import parse_kv_types
from offload.format import format_memory
from offload.speed.type_costs import WeightLayout, is_copied
from quantizer.figures import format_speed
from quantizer.gguf.tensor_types import TENSOR_TYPES, tensor_type_named
from quantizer.gguf.validation import tensors_of

if TYPE_CHECKING:
    from app.engine.speculative.cost_model import StepCost
    from quantizer.gguf.header import Header, TensorInfo


DEFAULT_KV_TYPE = "f16"
# Exit status of a process whose measurements other programs disturbed: EX_TEMPFAIL of sysexits.h.
DISTURBED = 75
# How much faster x86 computes with plain weights of these types, by tokens a step (1 thread with AVX-512, 0.35–1.2B):
# 1: 0.9–0.97, 4: 0.85–1.0, 16: 0.97–1.2, 24: 1.1–1.16, 64: 1.4, 256: 1.55–1.7. Of Q4_0: 0.4–0.7 everywhere.
DUAL_TYPES = ("Q2_K", "Q4_K")
PLAIN_TYPES = frozenset(tensor_type_named(name).type_id for name in DUAL_TYPES)
PLAIN_FROM = 24
COPY_FROM = PLAIN_FROM  # tokens of a step that computes with copies of weights: of a prompt, not of drafts
AS_FAST = 0.02  # the figures of one setting differ by this from one tuning to the next
N_BATCHED = 4  # answers at once that are measured
# By how much a setting has to do the work of this model faster than the default to be taken though it loses a part.
_WORTH_A_LOSS = 1.1
_X86 = ("x86_64", "amd64")
# Earlier versions measured one setting after the other, while the machine grew faster or slower: six settings of a
# Gemma 3 1B changed places each time. And of models with states they timed steps in memory that was new.
_METHOD = "in turns with the default"
_USED_STEPS = "used steps"  # earlier versions stored usual costs as if they were measured, as `step_ratios`
_NOT_MEASURED = "not measured yet"
_NO_ROOM = "too little free memory for both"


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What decides speed: threads, flash attention, repacked weights (extra buffer types), tokens of a micro-batch
    (ubatch), and the types of the KV cache, which users choose and no measurement does. With `plain_from` repacked
    weights are mapped as the file has them too, for steps of at least so many tokens. With
    `repacked_types` only weights of these are repacked, else all that llama.cpp can. `copies` are pairs of a type and
    the kind into which its weights are copied for prompts."""

    n_threads: int
    flash_attention: bool
    extra_buffers: bool
    n_ubatch: int = 512
    kv_type: str = DEFAULT_KV_TYPE
    plain_from: int = 0
    repacked_types: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()

    @property
    def layout(self) -> WeightLayout:
        return WeightLayout(
            self.extra_buffers,
            self.repacked_types,
            self.plain_from,
            DUAL_TYPES,
            self.copies,
            COPY_FROM * bool(self.copies),
        )

    @property
    def weights(self) -> Literal["plain", "repacked", "both"]:
        """The layouts of the weights: as the file has them, repacked for the processor, or both."""
        if not self.extra_buffers:
            return "plain"
        return "both" if self.plain_from else "repacked"


@dataclass(frozen=True, slots=True)
class SpeedMeasurement:
    """Speeds of one setting, in tokens a second. `decode` is by depth: (tokens in the cache, speed), ascending.
    `step_ratios` is the time of a step of n tokens over that of one: (n, ratio), ascending. `batched_decode` is that of
    N_BATCHED answers at once, in all; 0 where there is no room for them. The `_noise` of each is the standard error of
    the pairs in which it was compared with the default, as a share of it."""

    setting: RuntimeSettings
    prefill: float
    decode: tuple[tuple[int, float], ...]
    step_ratios: tuple[tuple[int, float], ...]
    batched_decode: float = 0.0
    prefill_noise: float = 0.0
    decode_noise: float = 0.0
    batched_noise: float = 0.0


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """A validated model to tune; `n_threads` 0 uses the physical cores."""

    path: str
    n_threads: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Tokens computed in prefill and in decode, the mean depth of decode, and the mean tokens of a decode step: answers
    that run at once, with their drafts."""

    n_prefill: int
    n_decode: int
    depth: int
    n_step: float = 1.0


DEFAULT_WORKLOAD = Workload(n_prefill=512, n_decode=256, depth=768)


def plain_from_of(header: Header) -> int:
    """Return from how many tokens on steps gain by plain weights beside the repacked ones, 0 where none do."""
    return usual_plain_from() if any(tensor.type_id in PLAIN_TYPES for tensor in header.tensors) else 0


def usual_plain_from() -> int:
    """Return `plain_from_of` a model of any of DUAL_TYPES on this processor."""
    return PLAIN_FROM if platform.machine().lower() in _X86 else 0


def copies_of(
    tensors: Iterable[TensorInfo], cache_dir: Path, n_threads: int, *, is_repacked: bool
) -> tuple[tuple[str, str], ...]:
    """Return the copies by which prompts of a model with `tensors` gain on this processor, by what its types were
    measured to take; none before that."""
    faster = copies_here(cache_dir, n_threads, is_repacked=is_repacked)
    copied = {TENSOR_TYPES[tensor.type_id].name for tensor in tensors if is_copied(tensor, faster)}
    return tuple(sorted((name, faster[name]) for name in copied))


def default_setting(
    n_threads: int,
    *,
    has_gpu: bool,
    extra_buffers_are_safe: bool,
    plain_from: int = 0,
    copies: tuple[tuple[str, str], ...] = (),
) -> RuntimeSettings:
    """Return the settings to use before a model is measured, with its `plain_from` and `copies`. On a CPU fused
    attention halves decode at depth (14.1 to 6.5 tok/s at 1,800 tokens, 1.24B Q4_K_M, 2 AVX-512 cores); on a GPU it is
    the faster way."""
    has_both = extra_buffers_are_safe and not has_gpu
    return RuntimeSettings(
        n_threads,
        flash_attention=has_gpu,
        extra_buffers=extra_buffers_are_safe,
        plain_from=plain_from if has_both else 0,
        copies=() if has_gpu else copies,
    )


def with_kv_type(setting: RuntimeSettings, kv_type: str) -> RuntimeSettings:
    """Return `setting` with another KV cache type, and with fused attention where that type needs it."""
    needs_flash = parse_kv_types(kv_type).needs_flash_attention
    return replace(setting, kv_type=kv_type, flash_attention=setting.flash_attention or needs_flash)


def seconds(measured: SpeedMeasurement, work: Workload) -> float:
    """Return how long `work` takes; decode speed is linear between measured depths and constant beyond them, and so is
    the cost of a step between measured sizes."""
    prefill_s = work.n_prefill / measured.prefill
    n_steps = work.n_decode / work.n_step
    step_ratio = _between([(1, 1.0), *measured.step_ratios], work.n_step)
    return prefill_s + n_steps * step_ratio / _between(measured.decode, work.depth)


def decode_speed(measured: SpeedMeasurement, work: Workload) -> float:
    """Return the tokens a second of all answers of `work` together."""
    return work.n_decode / (seconds(measured, work) - work.n_prefill / measured.prefill)


def fastest(measured: Sequence[SpeedMeasurement], work: Workload) -> SpeedMeasurement:
    """Return the measurement that does `work` in the least time. `measured` must not be empty. Among those that are as
    fast, one without copies, which take memory, and then the one that decodes several answers fastest: fused attention
    skips the cells of the others, and may take longer for one long answer."""
    limit_s = (1 + AS_FAST) * min(seconds(candidate, work) for candidate in measured)
    as_fast = [candidate for candidate in measured if seconds(candidate, work) <= limit_s]
    return min(as_fast, key=lambda found: (bool(found.setting.copies), -found.batched_decode, seconds(found, work)))


def choose(
    measured: Sequence[SpeedMeasurement], default: SpeedMeasurement, work: Workload, *, is_used: bool
) -> SpeedMeasurement:
    """Return the setting of `measured` for `work`: the `default`, unless another is better. `is_used`: the model had
    that work, else it is a guess."""
    better = [item for item in measured if item is not default and _is_better(item, default, work, is_used=is_used)]
    if default.setting.copies:  # which only take memory where prompts are as fast without
        without, least = replace(default.setting, copies=()), default.prefill * (1 - AS_FAST)
        better += [item for item in measured if item.setting == without and item.prefill >= least]
    return fastest([default, *better], work)


def _is_better(item: SpeedMeasurement, default: SpeedMeasurement, work: Workload, *, is_used: bool) -> bool:
    """Return whether `item` does `work` faster than the `default`, and neither prompts nor an answer nor several at
    once slower, each by more than its noise. What the model is used for may outweigh a slower prompt or single answer,
    never slower answers beside each other: nobody knows how many programs will ask at once."""

    def limit(noise: float) -> float:
        return max(AS_FAST, 2 * noise)

    gain = seconds(default, work) / seconds(item, work)
    if gain <= 1 + limit(max(item.prefill_noise, item.decode_noise)):
        return False
    if item.batched_decode and item.batched_decode < default.batched_decode * (1 - limit(item.batched_noise)):
        return False
    is_slow_prompt = item.prefill < default.prefill * (1 - limit(item.prefill_noise))
    depths = {depth for depth, _ in (*item.decode, *default.decode)}
    shares = [_between(item.decode, depth) / _between(default.decode, depth) for depth in depths]
    is_slow_answer = min(shares) < 1 - limit(item.decode_noise)
    return not (is_slow_prompt or is_slow_answer) or (is_used and gain >= _WORTH_A_LOSS)


def unasked(measured: Iterable[SpeedMeasurement]) -> list[SpeedMeasurement]:
    """Return those of `measured` that may be chosen for a user who asked for nothing: not smaller KV cache types."""
    # How far log probabilities are from F32's, over the distance of llama-server's default setting (README of this
    # folder): any attention, layout, micro-batch, threads and steps 0.98 to 1.04, q8_0 1.03 to 1.05, q4_0 3.6 to 4.1.
    return [item for item in measured if item.setting.kv_type == DEFAULT_KV_TYPE]


def _between(points: Sequence[tuple[int, float]], place: float) -> float:
    """Return the value at `place`, linear between `points` and constant beyond."""
    lower = max((point for point in points if point[0] <= place), default=points[0])
    upper = min((point for point in points if point[0] >= place), default=points[-1])
    if lower[0] >= upper[0]:
        return lower[1]
    share = (place - lower[0]) / (upper[0] - lower[0])
    return lower[1] + share * (upper[1] - lower[1])


class TuneFile:
    """The measurements of one machine, by default of this one with this build of llama.cpp, by model fingerprint."""

    def __init__(self, cache_dir: Path, machine: str = "") -> None:
        self._file = MachineFile(cache_dir / "tune.json", machine or this_build())

    def measured(self, model: str) -> tuple[SpeedMeasurement, ...]:
        """Return the measurements of `model`, none where one is damaged or of another version: it is tuned again."""
        measured = self._file.entry(model).get("measured", [])
        try:
            return tuple(_sound(decode_checked(SpeedMeasurement, entry)) for entry in measured)
        except (ValueError, TypeError):
            return ()

    def work(self, model: str) -> Workload:
        """Return the workload that `model` has had so far, DEFAULT_WORKLOAD before its first use."""
        try:
            work = decode_checked(Workload, self._file.entry(model)["work"])
        except (KeyError, ValueError):
            return DEFAULT_WORKLOAD
        is_work = min(work.n_prefill, work.n_decode, work.depth) >= 0 and work.n_prefill + work.n_decode > 0
        return work if is_work and work.n_step >= 1 else DEFAULT_WORKLOAD

    def store(self, model: str, name: str, measured: Sequence[SpeedMeasurement]) -> None:
        self._file.update(model, {"name": name, "measured": encode(measured)})

    def add(self, model: str, name: str, measured: SpeedMeasurement) -> None:
        """Add a measurement of `model`, in place of an earlier one of the same setting: the default stays the first."""
        by_setting = {item.setting: item for item in self.measured(model)} | {measured.setting: measured}
        self.store(model, name, [*by_setting.values()])

    def drop(self, model: str) -> None:
        if self._file.entry(model):
            self._file.update(model, {"measured": [], _USED_STEPS: {}})

    def step_ratios(self, model: str) -> dict[int, float]:
        """Return the costs of the steps that `model` took in its last use by their size, empty before its first."""
        ratios = self._file.entry(model).get(_USED_STEPS, {})
        try:
            return {int(n_tokens): float(ratio) for n_tokens, ratio in ratios.items()}
        except (ValueError, TypeError, AttributeError, OverflowError):  # damaged: it is measured by the next use
            return {}

    def record_use(self, model: str, work: Workload, step_ratios: Mapping[int, float]) -> None:
        self._file.update(model, {"work": encode(work), _USED_STEPS: dict(step_ratios)})

    def names(self) -> Mapping[str, str]:
        """Return model fingerprint → file name of every measured model."""
        entries = self._file.entries().items()
        return {model: str(entry.get("name", "")) for model, entry in entries if entry.get("measured")}


def _sound(item: SpeedMeasurement) -> SpeedMeasurement:
    """Return a measurement that can be counted with. Raises ValueError for a speed of nothing."""
    measured = (item.prefill, *(speed for _, speed in item.decode), *(ratio for _, ratio in item.step_ratios))
    if not item.decode or min(measured) <= 0:
        raise ValueError("a speed that is none")
    return item


def tune_key(header: Header) -> str:
    """Return the key of measurements of the model with `header`: its weights, the build, and how it is measured."""
    return fingerprint(header.path, model_key(header.path), _METHOD)


def best_measurement(header: Header, cache_dir: Path) -> SpeedMeasurement | None:
    """Return the measurement of the model with `header` that is chosen for its workload unasked; None before it was
    tuned."""
    known, key = TuneFile(cache_dir), tune_key(header)
    measured, work = unasked(known.measured(key)), known.work(key)
    # The default is measured first and the others in turns with it.
    return choose(measured, measured[0], work, is_used=work != DEFAULT_WORKLOAD) if measured else None


def known_step_cost(header: Header, cache_dir: Path) -> StepCost | None:
    """Return the step cost of a model on the processor, as of its last use, else as tuned; of sizes that were not
    measured as its types make expect. None before anything of it was measured."""
    from app.engine.load.type_tables import expected_step_ratios
    from app.engine.speculative.cost_model import StepCost
    from offload.footprint.model import PlannedModel, RunConfig

    best, threads = best_measurement(header, cache_dir), default_threads()
    setting = best.setting if best else default_setting(threads, has_gpu=False, extra_buffers_are_safe=True)
    run_config = RunConfig(is_fused=setting.flash_attention, layout=setting.layout)
    expected = expected_step_ratios(PlannedModel(header, tensors_of(header)), run_config, cache_dir, setting.n_threads)
    measured = {**dict(best.step_ratios if best else ()), **TuneFile(cache_dir).step_ratios(tune_key(header))}
    return StepCost.from_measured(measured, expected=expected) if measured or expected else None


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
    copies: tuple[tuple[str, str], ...] = (),
) -> SettingChoice:
    """Return the setting to load with; `is_safe` is whether this build can run repacked weights, `plain_from` and
    `copies` are the model's. Measurements with other copies than these do not count."""
    n_threads = config.n_threads or default_threads()
    setting = default_setting(
        n_threads, has_gpu=has_gpu, extra_buffers_are_safe=is_safe, plain_from=plain_from, copies=copies
    )
    setting = with_kv_type(setting, config.kv_type)
    known = tuple(
        item
        for item in measured
        if item.setting.kv_type == config.kv_type
        and (is_safe or not item.setting.extra_buffers)
        and item.setting.copies in ((), setting.copies)
    )
    default = next((item for item in known if replace(item.setting, n_threads=n_threads) == setting), None)
    if default is None:
        return SettingChoice(setting)  # nothing was measured, or not yet the default that others have to beat
    best = choose(known, default, work, is_used=work != DEFAULT_WORKLOAD)
    # A container may have got fewer processors since, which no key of these measurements contains.
    n_threads = config.n_threads or min(best.setting.n_threads, usable_processors())
    setting = replace(best.setting, n_threads=n_threads)
    return SettingChoice(setting, best, known, work)


def describe_settings(
    choice: SettingChoice,
    loaded: RuntimeSettings,
    requested: EngineConfig,
    facts: BackendFacts,
    copied_bytes: int = 0,
) -> tuple[LoadedSetting, ...]:
    """Return what a model runs with and why: `loaded` is the setting of `choice`, as far as memory allowed it.
    `copied_bytes` are those of its copies."""
    weights = _part(choice, loaded, "weights", lambda setting: (setting.weights, setting.repacked_types), _weights)
    if choice.setting.weights == "both" != loaded.weights:
        weights = LoadedSetting("weights", _weights(loaded), "default", _NO_ROOM)
    attention = _part(choice, loaded, "attention", lambda setting: setting.flash_attention, _attention)
    if parse_kv_types(loaded.kv_type).needs_flash_attention:
        attention = LoadedSetting("attention", _attention(loaded), "option", f"a KV cache of {loaded.kv_type} needs it")
    elif loaded.flash_attention != choice.setting.flash_attention:
        attention = LoadedSetting("attention", _attention(loaded), "default", "as planned for the layers on GPUs")
    threads = _part(choice, loaded, "threads", lambda item: item.n_threads, lambda item: f"{item.n_threads}")
    if requested.n_threads:
        threads = LoadedSetting("threads", f"{loaded.n_threads}", "option")
    micro_batch = _part(choice, loaded, "micro-batch", lambda item: item.n_ubatch, lambda item: f"{item.n_ubatch}")
    if loaded.n_ubatch < choice.setting.n_ubatch:
        reason = f"{choice.setting.n_ubatch} would take too much memory with {facts.n_cells:,} cells"
        micro_batch = LoadedSetting("micro-batch", f"{loaded.n_ubatch}", "default", reason)
    elif loaded.n_ubatch > choice.setting.n_ubatch:
        reason = "a GPU fetches the processor's weights once for each"
        micro_batch = LoadedSetting("micro-batch", f"{loaded.n_ubatch}", "default", reason)
    has_kv_option = requested.kv_type not in ("", DEFAULT_KV_TYPE)
    return (
        attention,
        weights,
        *_prompt_weights(choice, loaded, copied_bytes),
        threads,
        micro_batch,
        LoadedSetting("KV cache", loaded.kv_type, "option" if has_kv_option else "default"),
        LoadedSetting("truncation", _describe_truncation(facts.truncation), "model"),
    )


def _prompt_weights(choice: SettingChoice, loaded: RuntimeSettings, n_bytes: int) -> tuple[LoadedSetting, ...]:
    """Return the copies for prompts; nothing of a model that has none, in whatever setting."""
    if not choice.setting.copies and not any(item.setting.copies for item in choice.known):
        return ()
    name = "weights for prompts"
    if choice.setting.copies and not loaded.copies:
        return (LoadedSetting(name, _copies(loaded), "default", _NO_ROOM),)
    part = _part(choice, loaded, name, lambda setting: setting.copies, _copies)
    if part.reason == _NOT_MEASURED:
        part = replace(part, reason="these types read slowly here")
    return (replace(part, value=f"{part.value}, {format_memory(n_bytes)}") if n_bytes else part,)


def describe_drafts(names: Sequence[str], *, has_draft_model: bool) -> LoadedSetting:
    return LoadedSetting("drafts", ", ".join(names) or "none", "option" if has_draft_model else "default")


def describe_projector(
    planned: PlannedProjector | None, facts: BackendFacts, device: str, *, is_chosen: bool
) -> tuple[LoadedSetting, ...]:
    """Return the projector of a loaded model, its bytes and its `device` (empty: the processor); none without one."""
    can = (("sees", facts.sees), ("hears", facts.hears), ("speaks", facts.speaks))
    takes = " and ".join(verb for verb, does in can if does)
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
    others = [item for item in choice.known if value_of(item.setting) != value_of(loaded)]
    if choice.best is None or value_of(loaded) != value_of(choice.best.setting) or not others:
        return LoadedSetting(name, text_of(loaded), "default", _NOT_MEASURED)
    other = fastest(others, choice.work)
    reason = f"{_speeds(choice.best, choice.work)}, {text_of(other.setting)} {_speeds(other, choice.work)}"
    return LoadedSetting(name, text_of(loaded), "measured", reason)


def _speeds(item: SpeedMeasurement, work: Workload) -> str:
    return f"{format_speed(item.prefill)} + {format_speed(decode_speed(item, work))} tok/s"


def _attention(setting: RuntimeSettings) -> str:
    return "fused" if setting.flash_attention else "plain"


def _weights(setting: RuntimeSettings) -> str:
    if setting.weights == "plain":
        return "as in the file"
    repacked = f"{', '.join(setting.repacked_types)} repacked" if setting.repacked_types else "repacked"
    both = f", from {setting.plain_from} tokens a step as in the file" if setting.weights == "both" else ""
    return repacked + both


def _copies(setting: RuntimeSettings) -> str:
    if not setting.copies:
        return "the same"
    named = ", ".join(f"{name} as {kind}" for name, kind in setting.copies)
    return f"{named} from {COPY_FROM} tokens a step"


def _describe_truncation(truncation: Truncation) -> str:
    if truncation.is_unlimited:
        return "anywhere"
    parts = (
        (truncation.n_window, f"within a window of {truncation.n_window} tokens"),
        (truncation.n_rollback, f"by {truncation.n_rollback} tokens"),
        (truncation.n_holds, f"to {truncation.n_holds} held states"),
        (truncation.has_states, "at its end"),
    )
    return ", ".join(text for applies, text in parts if applies)
