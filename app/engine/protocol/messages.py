"""The typed messages between the service and an engine worker.

Owns the list of messages. Independent of their encoding (`codec`), their senders and processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.engine.loop.counters import Counters
from app.engine.request import Adapter, FinishReason, Request, Timings, TokenLogprob, Usage
from app.protocol.plan import Plan
from app.protocol.status import Occupancy
from quantizer.errors import ErrorInfo

__all__ = [
    "Abort",
    "BackendFacts",
    "Detokenize",
    "Detokenized",
    "Embed",
    "Embedded",
    "EngineConfig",
    "EngineMetrics",
    "Failed",
    "Finished",
    "GetMetrics",
    "Load",
    "LoadProgress",
    "Notice",
    "Output",
    "Planned",
    "Ready",
    "Rerank",
    "Reranked",
    "Tokenize",
    "Tokenized",
    "UnfitPolicy",
    "WorkerMessage",
]


class UnfitPolicy(StrEnum):
    """Policy for a model that fits only partly: load it with a warning, ask first, or load it without a warning.

    A model that does not fit at all is loaded only with LOAD.
    """

    WARN = "warn"
    ASK = "ask"
    LOAD = "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of loading a model. 0 means: choose for this model and machine. `draft_path` is a draft model's file."""

    n_ctx: int = 0
    n_cells: int = 0
    kv_type: str = ""  # TYPE or K_TYPE,V_TYPE
    context_shift: bool = False  # for requests without a setting of their own
    n_threads: int = 0
    n_sequences: int = 4
    n_batch: int = 0
    uses_gpu: bool = True
    rpc: tuple[str, ...] = ()  # host:port of servers whose devices are used like those of this machine
    when_unfit: UnfitPolicy = UnfitPolicy.WARN
    draft_path: str = ""
    lora: tuple[tuple[str, str], ...] = ()  # (path, name) of each validated adapter
    control_vectors: tuple[tuple[str, float], ...] = ()  # (path, scale); they add up
    gpu_layers: Mapping[str, int] | None = None  # layers by GPU chosen by the user; None: as planned


# Service to worker, besides `Request`


@dataclass(frozen=True, slots=True)
class Load:
    """Request to load a file; always the first message. A failed self-test is reported as a Notice."""

    model_path: str
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Tokenize:
    call_id: str
    text: str
    add_special: bool
    parse_special: bool
    with_pieces: bool = False


@dataclass(frozen=True, slots=True)
class Detokenize:
    call_id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GetMetrics:
    """Request for counters and occupancy; answered at once, even in the middle of a batch, but not while loading."""

    call_id: str


@dataclass(frozen=True, slots=True)
class Embed:
    """Request for a vector of each of `inputs`, texts or token ids."""

    call_id: str
    inputs: tuple[str | tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Rerank:
    """Request for scores of how well each of `documents` answers `query`."""

    call_id: str
    query: str
    documents: tuple[str, ...]


# Worker to service


@dataclass(frozen=True, slots=True)
class LoadProgress:
    fraction: float


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of the load that is about to begin."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """Facts about a loaded model. `n_ctx` is the longest sequence in tokens; all sequences share `n_cells`.

    `n_sequences` answers may run at once; the cache holds up to `n_seq_max` sequences. With `supports_truncation` a
    sequence can be truncated and copied at any position; without (recurrent, hybrid, sliding window) only as a whole.
    With `supports_shift` its tokens can move to other positions. Saved states are valid for the same `layout` only. A
    cache that `is_on_host` is read no faster than states are saved and restored; a GPU's is. Without `can_generate` the
    model (an encoder) only embeds or ranks whole texts.
    """

    description: str
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_cells: int
    n_sequences: int
    n_seq_max: int
    supports_truncation: bool
    n_batch: int
    n_parameters: int
    model_bytes: int
    layout: str = ""
    supports_shift: bool = False
    is_on_host: bool = True
    can_generate: bool = True
    adapters: tuple[Adapter, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded."""

    facts: BackendFacts


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning to show to the user once; the engine continues."""

    text: str


@dataclass(frozen=True, slots=True)
class Output:
    """New text of an answer: always whole characters, never part of a stop string. `n_tokens` so far.

    `logprobs`, if requested, are those of the tokens whose text is complete now. An echoed prompt comes first, with 0
    tokens.
    """

    request_id: str
    text: str
    n_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer has ended; `stopped_by` is the stop string that ended it, if one did."""

    request_id: str
    reason: FinishReason
    usage: Usage
    timings: Timings
    stopped_by: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Failure of a request or call (its id), or of the load (empty id)."""

    request_id: str
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Token ids of a text. `pieces`, if requested, is the text of each token, which may be part of a character."""

    call_id: str
    tokens: tuple[int, ...]
    pieces: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Detokenized:
    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    call_id: str
    counters: Counters
    occupancy: Occupancy


@dataclass(frozen=True, slots=True)
class Embedded:
    """A vector of length 1 for each input, as little-endian float32; `n_tokens` of all inputs."""

    call_id: str
    vectors: tuple[bytes, ...]
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Reranked:
    """A score for each document, the higher the better, as the model's head gives it."""

    call_id: str
    scores: tuple[float, ...]
    n_tokens: int


WorkerMessage = (
    Load
    | Request
    | Abort
    | Tokenize
    | Detokenize
    | Embed
    | Rerank
    | GetMetrics
    | LoadProgress
    | Planned
    | Ready
    | Notice
    | Output
    | Finished
    | Failed
    | Tokenized
    | Detokenized
    | Embedded
    | Reranked
    | EngineMetrics
)
