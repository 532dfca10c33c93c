"""The status of the service: its models, what their engines hold and have done, and what a temporary key used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.protocol.chat import ThreadUse
from app.protocol.library import ModelState
from app.protocol.plan import Plan
from app.protocol.sampling import ModelSampling
from quantizer.system.errors import ErrorInfo


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Waiting times in seconds: their number, median and 95th percentile (None before the first) and sum. A bucket is
    (upper bound, count); the bound of the last one is None."""

    n_samples: int
    p50: float | None
    p95: float | None
    total_s: float = 0.0
    buckets: tuple[tuple[float | None, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """Sums since an engine started. Rates are tokens a second of each answer; `cached_share` is of prompt tokens."""

    n_finished: int
    n_prompt_tokens: int
    n_output_tokens: int
    cached_share: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    n_drafted_tokens: int
    n_accepted_tokens: int
    first_token_s: LatencySummary
    inter_token_s: LatencySummary
    n_steps: int = 0
    busy_s: float = 0.0
    n_cached_tokens: int = 0
    n_read_ahead_tokens: int = 0  # before a question was asked
    n_vain_tokens: int = 0  # of them, for no question


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The load of an engine at this moment: running and waiting answers, used cells of its KV cache, and the memory of
    chats that left them and can come back."""

    n_running: int
    n_waiting: int
    n_cells_used: int
    n_cells: int
    saved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadedSetting:
    """A setting that a loaded model runs with. `source` says who chose it, `reason` why, with the measured figures.
    "option" is the user's choice, "measured" that of `localllm tune` or of idle moments, "default" the one before any
    measurement, "model" what the model or its file decides."""

    name: str
    value: str
    source: Literal["option", "measured", "default", "model"]
    reason: str = ""

    @property
    def words(self) -> str:
        return f"{self.name} {self.value} ({self.source}{f': {self.reason}' if self.reason else ''})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One model of the service. `progress` runs from 0 to 1 while its weights are read, which takes about
    `load_left_s` more (None: unknown); `error` is set when it failed.

    `warnings` are the planner's, where only a part of the model fits. `occupancy` and `counters` are None while its
    engine cannot report them, `plan` until loading has one. `n_bytes` is the memory of its worker, 0 where unknown.
    `shares_with` are other names of its file that use the same engine: its figures are theirs too. `settings` are what
    a loaded model runs with, empty for any other. It `sees` pictures and `hears` sounds, its chat template
    `takes_tools`, and it `thinks` where it is told to, or by default; None is unknown. The context of one that
    `can_grow` becomes longer than `n_ctx` where a prompt needs it, if there is memory. `threads` compute now, fewer
    than it was loaded with where the machine is busy; None where their number is fixed. `sampling` is what a request is
    sampled with that does not say it; None is unknown.
    """

    id: str
    state: ModelState
    progress: float
    n_ctx: int
    notices: tuple[str, ...]
    error: ErrorInfo | None
    warnings: tuple[str, ...] = ()
    occupancy: Occupancy | None = None
    counters: EngineCounters | None = None
    plan: Plan | None = None
    n_running: int = 0
    worker_pid: int | None = None
    n_bytes: int = 0
    shares_with: tuple[str, ...] = ()
    settings: tuple[LoadedSetting, ...] = ()
    sees: bool | None = None
    hears: bool | None = None
    takes_tools: bool | None = None
    thinks: bool | None = None
    thinks_by_default: bool | None = None
    can_grow: bool = False
    threads: ThreadUse | None = None
    sampling: ModelSampling | None = None
    load_left_s: float | None = None


LEAST_MEASURED_TOKENS = 8  # fewer say more about one step than about the speed


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord:
    """The figures of one answer, without any text. `at_s` counts from 1970. Rates are tokens a second, None where the
    answer was too short to measure them."""

    model: str
    at_s: float
    n_prompt_tokens: int
    n_cached_tokens: int
    n_output_tokens: int
    first_token_s: float
    prefill_tps: float | None
    decode_tps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """The service and its models. `answers` are the newest since it started (`answers_since_s` from 1970, 0 is
    unknown), also of models that are unloaded, the newest first. `default_model` answers requests that name none.
    `stays_until` is "jobs-end" where it outlives the user interface that started it until its last job has ended.
    `n_attending` is the number of other clients for which it outlives that one. `is_unused` says that it only stays for
    the next command; `settings_digest` differs between services that answer otherwise."""

    version: str
    default_model: str
    models: tuple[ModelStatus, ...]
    stays_until: Literal["", "jobs-end"] = ""
    n_attending: int = 0
    is_unused: bool = False
    settings_digest: str = ""
    answers: tuple[AnswerRecord, ...] = ()
    answers_since_s: float = 0.0

    def model(self, model_id: str) -> ModelStatus | None:
        return next((model for model in self.models if model.id == model_id), None)


@dataclass(frozen=True, slots=True)
class MeteredKey:
    """A key that is valid while its stream is open: `id` names it in routes, `secret` is sent by clients."""

    id: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredUsage:
    """Sums over the answers that came whole; `n_failed` requests got an error instead. `first_token_s` is the median
    time to first token, queue included; None before the first answer. The first prompt is that of the first request
    with tools, or of the first one at all where none has tools."""

    n_answers: int = 0
    n_failed: int = 0
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_output_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: float | None = None
    n_first_prompt_tokens: int = 0
    n_first_cached_tokens: int = 0

    @property
    def cached_share(self) -> float:
        return self.n_cached_tokens / self.n_prompt_tokens if self.n_prompt_tokens else 0.0

    @property
    def later_cached_share(self) -> float:
        """The share of the prompt tokens besides the first prompt's that were in the cache."""
        n_later = self.n_prompt_tokens - self.n_first_prompt_tokens
        return (self.n_cached_tokens - self.n_first_cached_tokens) / n_later if n_later else 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Computed prompt tokens a second; 0 where none were."""
        return (self.n_prompt_tokens - self.n_cached_tokens) / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens a second of an answer after its first; 0 where there were none."""
        return (self.n_output_tokens - self.n_answers) / self.decode_s if self.decode_s else 0.0


@dataclass(frozen=True, slots=True)
class Evictions:
    """What loading a model would unload: the ids in `models`. It may not run even alone: `runs` is False then."""

    runs: bool
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextLength:
    """The context of a loaded model and that of its training (0: unknown), in tokens; `reason` says why it is shorter
    than was asked for, empty where it is not."""

    n_ctx: int
    n_ctx_train: int
    reason: str = ""
