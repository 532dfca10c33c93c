"""The typed messages between the service and an engine worker, and their encoding on the pipe.

A message is four bytes of length (big-endian) and that many bytes of JSON, `{"type": NAME, ...fields}`, where fields
have the form of `app.protocol.codec`. Independent of senders and processes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from app.engine.loop.counters import Counters
from app.engine.request import Adapter, FinishReason, MediaInput, Request, Timings, TokenLogprob, Usage
from app.protocol import codec
from app.protocol.chat import ThreadUse
from app.protocol.plan import Plan
from app.protocol.speech import SpeechSampling
from app.protocol.status import LoadedSetting, Occupancy
from quantizer.system.errors import ErrorInfo

MAX_MESSAGE_BYTES = 256 << 20


class UnfitPolicy(StrEnum):
    """Policy for a model that fits only partly: load it with a warning, ask first, or load it without a warning. A
    model that does not fit at all is loaded only with LOAD."""

    WARN = "warn"
    ASK = "ask"
    LOAD = "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of loading a model. 0 means: choose for this model and machine. `draft_path` is the file of a draft model
    or head; without one `finds_head` uses the head that is beside the model, and `uses_copy` a low-bit copy of it where
    it has no head and the copy pays."""

    n_ctx: int = 0
    n_cells: int = 0
    kv_type: str = ""  # TYPE or K_TYPE,V_TYPE
    context_shift: bool = False  # for requests without a setting of their own
    is_deterministic: bool = False  # as well
    n_threads: int = 0
    n_sequences: int = 4
    n_batch: int = 0
    uses_gpu: bool = True
    numa: str = "auto"  # or a strategy of `offload.devices.numa`
    rpc: tuple[str, ...] = ()  # host:port of servers whose devices are used like those of this machine
    when_unfit: UnfitPolicy = UnfitPolicy.WARN
    draft_path: str = ""
    finds_head: bool = False
    uses_copy: bool = False
    lora: tuple[tuple[str, str], ...] = ()  # (path, name) of each validated adapter
    control_vectors: tuple[tuple[str, float], ...] = ()  # (path, scale); they add up
    saves_prefixes: bool = True  # on disk
    corpora_folder: str = ""  # of texts of projects that drafts are looked up in; none: requests name them in vain
    copies_weights: bool = True  # of types that this machine reads slowly, where memory allows
    projector_path: str = ""  # turns pictures or sounds into embeddings; none: the model reads text only
    passed_over: tuple[str, ...] = ()  # why files that may be its projector are not: notices of the load
    has_chosen_projector: bool = False  # by the user: it is loaded even where the model fits worse with it
    max_bytes: int = 0  # of memory for all models, 0 for no limit: saved states get what the model leaves of it
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
class EndThought:
    """Request to end the reasoning of an answer at its next step; without effect where it has ended, or has no tags."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Tokenize:
    call_id: str
    text: str
    add_special: bool
    parse_special: bool
    with_pieces: bool = False
    media: tuple[MediaInput, ...] = ()  # as in a request; their tokens are negative


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
    """Request for a vector of each of `inputs`, texts or token ids; one that is too long is cut, or else an error."""

    call_id: str
    inputs: tuple[str | tuple[int, ...], ...]
    cuts: bool = False


@dataclass(frozen=True, slots=True)
class Rerank:
    """Request for scores of how well each of `documents` answers `query`."""

    call_id: str
    query: str
    documents: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speak:
    """Request to say `sentences` one after the other, in the voice of a sound where there is one."""

    request_id: str
    sentences: tuple[str, ...]
    voice: MediaInput | None = None
    sampling: SpeechSampling = field(default_factory=SpeechSampling)


@dataclass(frozen=True, slots=True)
class ForgetConversations:
    """Request to drop what is cached and saved of conversations, as requests name them."""

    call_id: str
    conversations: tuple[str, ...]


# Worker to service


@dataclass(frozen=True, slots=True)
class LoadProgress:
    fraction: float


@dataclass(frozen=True, slots=True)
class Planned:
    plan: Plan


@dataclass(frozen=True, slots=True)
class Truncation:
    """Where a sequence can be truncated: by default at every position.

    With `n_window` some layers attend only to the last tokens, so the window before the position must still be held.
    With `has_states` (recurrent, hybrid) layers keep a state of the whole sequence, which cannot be computed backwards.
    Such a sequence goes back to its end, to the point where it was held (`Backend.hold`; `n_holds` sequences at once),
    or by up to `n_rollback` of the tokens that one batch computed after its first, if all sequences of that batch had
    equally many tokens.
    """

    has_states: bool = False
    n_window: int = 0
    n_rollback: int = 0
    n_holds: int = 0

    @property
    def is_unlimited(self) -> bool:
        """Whether every position will do, whatever was computed since."""
        return not self.has_states and not self.n_window

    def allows_rejection(self, n_sequences: int) -> bool:
        """Return whether each of `n_sequences` can lose all but the first of the tokens that a batch computes."""
        return not self.has_states or self.n_holds >= n_sequences

    def n_rejected_freely(self, lengths: Sequence[int]) -> int:
        """Return how many tokens a sequence can lose of a batch with `lengths` by sequence, without being held."""
        if not self.has_states:
            return max(lengths, default=0)
        return self.n_rollback if len(set(lengths)) == 1 else 0


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """Facts about a loaded model and its cache; counts are in tokens unless they say otherwise."""

    description: str
    n_vocab: int
    n_ctx: int  # the longest sequence
    n_ctx_train: int
    n_cells: int  # shared by all sequences
    n_sequences: int  # answers that may run at once
    n_seq_max: int  # sequences that the cache may hold
    truncation: Truncation
    n_batch: int
    n_parameters: int
    model_bytes: int
    layout: str = ""  # saved states are valid for the same one only
    supports_shift: bool = False  # tokens can move to other positions
    is_on_host: bool = True  # the cache is read no faster than states are saved and restored; a GPU's is
    passes_over_cells: bool = False  # attention takes time for cells that a window has left
    can_generate: bool = True  # an encoder only embeds or ranks whole texts; what speaks writes none
    has_attention: bool = True
    adapters: tuple[Adapter, ...] = ()
    n_ubatch: int = 512  # the most tokens of a picture whose tokens attend to each other
    sees: bool = False  # pictures, with a projector
    hears: bool = False
    speaks: bool = False
    n_batch_answers: int = 0  # of batches that may run at once, in a context of their own; 0: as others do
    n_outputs: int = 0  # the most tokens of a batch that may have logits; 0: all
    fetches_weights: bool = False  # a GPU fetches the processor's weights for each step of a prompt

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU computes, if only prompts."""
        return self.fetches_weights or not self.is_on_host

    @property
    def n_window(self) -> int:
        return self.truncation.n_window

    @property
    def supports_truncation(self) -> bool:
        """Whether a part of a sequence can be shared and kept: not of a model with states."""
        return not self.truncation.has_states


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded; `settings` are what it runs with, and why."""

    facts: BackendFacts
    settings: tuple[LoadedSetting, ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning to show to the user once; the engine continues."""

    text: str


@dataclass(frozen=True, slots=True)
class Output:
    """New text of an answer: always whole characters, never part of a stop string. `n_tokens` so far. `logprobs`, if
    requested, are those of the tokens whose text is complete now; `tokens`, if requested, are the ids of all that were
    sampled since the last output, of an end token and a stop string too. An echoed prompt comes first, with 0
    tokens. The first output of an answer has the `usage` of its prompt."""

    request_id: str
    text: str
    n_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    tokens: tuple[int, ...] = ()
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Spoken:
    """Sentence number `index` of a text that is said: mono samples of 16 bits, little-endian. One that `is_cut` reached
    its longest time before the model ended it."""

    request_id: str
    index: int
    samples: bytes
    sample_rate: int
    is_cut: bool = False


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
class Forgotten:
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerProgress:
    """An answer that is being computed: the number of its request in order of arrival, and its tokens so far.
    `n_computed_tokens` of prompt and answer are in the cache, `n_cached_tokens` of the prompt were there before. Its
    prompt is being read for `prompt_s` and will be for about `prompt_left_s` more; None where that is not known."""

    request_id: str
    arrival: int
    n_prompt_tokens: int
    n_cached_tokens: int
    n_computed_tokens: int
    n_output_tokens: int
    has_new_line: bool
    prompt_s: float = 0.0
    prompt_left_s: float | None = None


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    call_id: str
    counters: Counters
    occupancy: Occupancy
    running: tuple[AnswerProgress, ...] = ()
    threads: ThreadUse | None = None


@dataclass(frozen=True, slots=True)
class Embedded:
    """A vector of length 1 for each input, as little-endian float32; `n_tokens` of all inputs, of which `n_cut` were
    longer."""

    call_id: str
    vectors: tuple[bytes, ...]
    n_tokens: int
    n_cut: int = 0


@dataclass(frozen=True, slots=True)
class Reranked:
    """A score for each document, the higher the better, as the model's head gives it."""

    call_id: str
    scores: tuple[float, ...]
    n_tokens: int


Order = Load | Request | Speak | Abort | EndThought | ForgetConversations
Call = Tokenize | Detokenize | Embed | Rerank | GetMetrics
Report = LoadProgress | Planned | Ready | Notice | Output | Spoken | Finished | Failed
Reply = Tokenized | Detokenized | Embedded | Reranked | Forgotten | EngineMetrics
WorkerMessage = Order | Call | Report | Reply


_LENGTH = struct.Struct(">I")
_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in WorkerMessage.__args__}
_FIELDS = {cls: [item.name for item in fields(cls)] for cls in WorkerMessage.__args__}
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=codec.json_default)  # made once: each token is a message


def encode(message: WorkerMessage) -> bytes:
    """Return `message` as bytes, its length first."""
    cls = type(message)
    body = _ENCODER.encode({"type": cls.__name__} | {name: getattr(message, name) for name in _FIELDS[cls]}).encode()
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> WorkerMessage:
    """Return the message in `body` (without its length). Raises ValueError for anything else."""
    data = json.loads(body)
    cls = _TYPES.get(data.pop("type", ""))
    if cls is None or data.keys() != set(_FIELDS[cls]):
        raise ValueError(f"not a message: {body[:80]!r}")
    message: WorkerMessage = codec.decode(cls, data)
    return message


def message_length(prefix: bytes) -> int:
    """Return how many bytes follow the four of `prefix`. Raises ValueError past MAX_MESSAGE_BYTES."""
    length: int = _LENGTH.unpack(prefix)[0]
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return length


def read_message(read: Callable[[int], bytes]) -> WorkerMessage | None:
    """Return the next message of a blocking stream, None at its end. `read(n)` gives n bytes, fewer only at the end."""
    prefix = read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        return None
    length = message_length(prefix)
    body = read(length)
    return decode(body) if len(body) == length else None
