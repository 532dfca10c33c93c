"""The backend protocol: what the engine requires of a loaded model.

Two implementations exist: `app.engine.llama` over llama.cpp, and `app.engine.fake`, deterministic and without native
code. This module is independent of both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.engine.media.chunks import MediaRows
from app.engine.messages import BackendFacts
from app.engine.request import AdapterSet, SamplingParams
from quantizer.system.errors import EngineError

State: TypeAlias = bytes | bytearray | memoryview  # of a sequence, as saved; opaque

_MAX_BATCH, _MIN_BATCH = 512, 64
_MAX_LOGIT_BYTES, _LOGIT_BYTES = 128 << 20, 4


class MemoryShortError(EngineError):
    """A device lacks the memory for its part of a model or context."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence to compute in this step, the first at `position`; the last `n_logits` get logits.
    Placeholders of a picture or sound come with their embeddings in `media`; such a chunk is a batch of its own.
    `position` counts the sequence's tokens, whatever positions a model gives to those of a picture."""

    sequence_id: int
    position: int
    tokens: Sequence[int]
    n_logits: int
    media: MediaRows | None = None


class DecodeStatus(Enum):
    """Result of a decode. After NO_SLOT the cache is unchanged; after INTERRUPTED it may contain parts of the batch."""

    DONE = 0
    NO_SLOT = 1
    INTERRUPTED = 2


@dataclass(frozen=True, slots=True)
class Choice:
    """What a sampler chooses from: `tokens`, the likeliest first, and the probability of each."""

    tokens: NDArray[np.int32]
    probabilities: NDArray[np.float64]


class Sampler(Protocol):
    """Token choice for one sequence, with the history that penalties and grammar need."""

    def sample(self, row: int) -> int:
        """Choose, record and return a token from the logits of `row`, an index into the last batch."""

    def choice(self, row: int) -> Choice:
        """Return what `sample` would choose from, and record nothing."""

    def foresee(self, logits: NDArray[np.float32], n_ahead: int) -> tuple[int, float] | None:
        """Return the token that `sample` would choose `n_ahead` tokens after the next if the model gave `logits`, those
        of a draft, and how sure that is, from 0.5 to 1. None where it cannot be known."""

    def accept(self, token: int) -> None:
        """Record `token` as if it had been chosen. Raises RequestError if a grammar does not allow it."""

    def close(self) -> None: ...


class BindableSampler(Sampler, Protocol):
    """A sampler whose text is bound by one grammar after another, and free in between."""

    def sample_other(self, row: int, refused: Collection[int]) -> int:
        """Choose, record and return a token that is none of `refused`, which `sample` returned for this `row`."""

    def bind(self, grammar: str, visible: Collection[int] = ()) -> None:
        """Allow from now on what the GBNF `grammar` allows, from its root; with "" anything. Text under a grammar is
        whole: no special tokens but those that are `visible`, and no invalid UTF-8. Raises RequestError for a grammar
        that is invalid."""

    def is_complete(self) -> bool:
        """Return whether the text under the bound grammar may end here."""


class Backend(Protocol):
    """A loaded model with its cache. One thread makes all calls except `interrupt`."""

    @property
    def facts(self) -> BackendFacts: ...

    @property
    def has_copies(self) -> bool:
        """Whether steps of many tokens compute with copies of slow weights now."""

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...

    def piece(self, token: int) -> bytes:
        """Return the bytes of `token`, none for a special token. A character may span tokens."""

    def label(self, token: int) -> bytes:
        """Return the bytes of `token`, including the text of a special token."""

    def is_eog(self, token: int) -> bool: ...

    def new_sampler(
        self, params: SamplingParams, ignore_eos: bool, history: Sequence[int] = (), visible: Collection[int] = ()
    ) -> Sampler:
        """Return a sampler whose penalties include the text of `history`, the prompt. Of special tokens those are text
        under a grammar that are `visible`, and those that it asks for by id or name. Raises RequestError for an invalid
        grammar and for a bias of a token that does not exist."""

    def new_bindable_sampler(
        self, params: SamplingParams, ignore_eos: bool, history: Sequence[int] = ()
    ) -> BindableSampler:
        """Return a sampler as `new_sampler` does, which can be bound; `params` have no grammar."""

    def set_adapters(self, adapters: AdapterSet) -> None:
        """Use `adapters`, by the keys of `facts.adapters`, in all decodes from now on."""

    def set_threads(self, n_threads: int) -> None:
        """Compute with `n_threads` from the next decode on."""

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        """Compute `chunks` as one batch of at most `facts.n_batch` tokens. Row r of a later `Sampler.sample` is the
        r-th token of the batch. Raises EngineError when the batch is fatal."""

    def logits(self, row: int) -> NDArray[np.float32]:
        """Return a copy of the model's logits of `row`, shape (n_vocab,)."""

    def share_cells(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        """Share the cells of `source_id` at positions `begin` to `end` with `target_id`, replacing its own there. Where
        `facts.truncation` has states only whole sequences can be shared. Begins at what the source still holds."""

    def hold(self, sequence_id: int) -> None:
        """Let `truncate` return to the end that the sequence has now, until it is held again or loses it. Costs next to
        nothing, and has no effect unless `facts.truncation` has states. Of more than its `n_holds` sequences the one
        held first is held no longer."""

    def first_held(self, sequence_id: int) -> int:
        """Return the first position that all layers still hold: later than 0 only with `facts.n_window`."""

    def overlay(self, source_id: int, target_id: int) -> None:
        """Make `target_id` attend to the cells of `source_id` in addition to its own at the same positions. Its output
        is meaningless from then on but costs as much as that text. Where `facts.truncation` has states, both have
        equally many tokens, and the state becomes that of the source."""

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        """Remove the sequence's tokens from position `n_tokens` on and return how many remain. Where `facts.truncation`
        does not allow that position, more is removed: all tokens since the sequence was held, or the whole sequence.
        Within a picture or sound the backend may remove all of it."""

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:
        """Remove `n_discard` tokens after the first `n_keep` and move the later ones up. Requires
        `facts.supports_shift`, and that no other sequence shares the cells that move."""

    def state_bytes(self, sequence_id: int) -> int:
        """Return the size of the state that `save_state` would return."""

    def save_state(self, sequence_id: int) -> State:
        """Return the state of the whole sequence, for `restore_state` into a backend of the same model and layout."""

    def restore_state(self, sequence_id: int, state: State) -> bool:
        """Restore a state into an empty sequence. Return False, leaving it empty, if state or cells do not fit."""

    def save_checkpoint(self, sequence_id: int) -> State:
        """Return the states of the sequence without the cells of its attention, for `restore_checkpoint`. Cells of
        layers with a window, as far as it reaches back, are part of the states."""

    def prepare_checkpoints(self) -> None:
        """Provide memory for the next checkpoints; called while nothing is computed."""

    def restore_checkpoint(self, sequence_id: int, source_id: int | None, n_tokens: int, checkpoint: State) -> bool:
        """Make a sequence the first `n_tokens` of `source_id`, after which these tokens had the states of `checkpoint`.
        The two may be one sequence; otherwise the target is empty and shares the source's cells. Without
        `facts.has_attention` there are no cells, and the source is None. Return False, leaving the target empty, if the
        checkpoint does not fit."""

    def interrupt(self) -> None:
        """Interrupt the running decode, from any thread. A late call may interrupt the next one, which is repeated."""

    def close(self) -> None: ...


def holds_window(first_held: int, n_tokens: int, n_window: int) -> bool:
    """Return whether a sequence that is held from `first_held` on can be truncated to `n_tokens`: the next token
    attends to itself and the `n_window` - 1 before it (source: `is_masked_swa` in src/llama-hparams.h of llama.cpp)."""
    return not n_window or first_held <= max(0, n_tokens - n_window + 1)


def n_batch_with_logits(n_vocab: int) -> int:
    """Return how many tokens a batch may have when each gets logits, which llama.cpp stores: fewer for large
    vocabularies."""
    return max(_MIN_BATCH, min(_MAX_BATCH, _MAX_LOGIT_BYTES // (_LOGIT_BYTES * max(1, n_vocab))))
