"""What the engine needs of something that can run a model.

Two implementations ship: `app.engine.llama` over llama.cpp and `app.engine.fake.backend`, deterministic and without native
code. This module knows nothing of either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.engine.adapters import Adapter, AdapterSet
from app.engine.request import SamplingParams
from quantizer.errors import EngineError

__all__ = ["Backend", "Chunk", "DecodeStatus", "MemoryShortError", "ModelFacts", "Sampler"]


class MemoryShortError(EngineError):
    """A device has not the memory that a model or a context was to have there."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a loaded model is. `n_ctx` is the longest sequence in tokens, `n_cells` what all sequences share.

    `n_sequences` answers may run at once; the cache keeps `n_seq_max` sequences. With `supports_truncation` a sequence can be
    truncated and copied anywhere; without (recurrent, hybrid, sliding window) only as a whole. With `supports_shift` its
    tokens can move to other positions. Saved states fit where the `layout` is the same. A cache that `is_on_host` is
    read no faster than states are saved and restored; that of a GPU is. Without `can_generate` the model (an encoder)
    only embeds or ranks whole texts.
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
class Chunk:
    """Tokens of one sequence to compute in this step, the first at `position`; the last `n_logits` get logits."""

    sequence_id: int
    position: int
    tokens: Sequence[int]
    n_logits: int


class DecodeStatus(Enum):
    """How a decode ended. After NO_SLOT the cache is as before; after INTERRUPTED parts of the batch may be in it."""

    DONE = 0
    NO_SLOT = 1
    INTERRUPTED = 2


class Sampler(Protocol):
    """Chooses tokens for one sequence and remembers them for its penalties and grammar."""

    def sample(self, row: int) -> int:
        """Choose, remember and return a token from the logits of `row`, an index into the last batch."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """A loaded model with its cache. All calls come from one thread, but for `interrupt`."""

    @property
    def facts(self) -> ModelFacts: ...

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...

    def piece(self, token: int) -> bytes:
        """Return the bytes of `token`, none for a special one. A character may span tokens."""
        ...

    def label(self, token: int) -> bytes:
        """Return the bytes of `token`, the text of a special one too."""
        ...

    def is_eog(self, token: int) -> bool: ...

    def new_sampler(self, params: SamplingParams, ignore_eos: bool, history: Sequence[int] = ()) -> Sampler:
        """Return a sampler that remembers `history`, the prompt, for its penalties.

        Raises RequestError for a grammar that cannot be used and for a bias of a token that does not exist.
        """
        ...

    def set_adapters(self, adapters: AdapterSet) -> None:
        """Let the decodes from now on compute under `adapters`, whose keys are those of `facts.adapters`."""
        ...

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        """Compute `chunks` as one batch of at most `facts.n_batch` tokens.

        Row r of a later `Sampler.sample` is the r-th token of the batch. Raises EngineError when the batch is fatal.
        """
        ...

    def logits(self, row: int) -> NDArray[np.float32]:
        """Return a copy of the logits of `row` as the model gave them, shape (n_vocab,)."""
        ...

    def share(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        """Let `target_id` use the cells of `source_id` for positions `begin` to `end`, in place of any of its own.

        Models that cannot be cut share only whole sequences, from the begin.
        """
        ...

    def overlay(self, source_id: int, target_id: int) -> None:
        """Let `target_id` attend to the cells of `source_id` too, beside its own of the same positions.

        What it says from then on makes no sense, but costs what as much text would. Only models that can be cut.
        """
        ...

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        """Forget the sequence from position `n_tokens` on and return how many tokens are left.

        Models whose state cannot be cut (recurrent, sliding window) forget all of it and return 0.
        """
        ...

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:
        """Forget `n_discard` tokens behind the first `n_keep` and let those behind them move up.

        Only with `facts.supports_shift`, and only where no other sequence shares the cells that move.
        """
        ...

    def state_bytes(self, sequence_id: int) -> int:
        """Return how large what `save` returns would be."""
        ...

    def save(self, sequence_id: int) -> bytearray:
        """Return the state of the whole sequence, for `restore` into a backend of the same model and layout."""
        ...

    def restore(self, sequence_id: int, state: bytes | bytearray) -> bool:
        """Let the empty sequence be what was saved. Return False, leaving it empty, where state or cells do not fit."""
        ...

    def interrupt(self) -> None:
        """End the decode that runs now, from any thread. Coming late it may end the next one, which is repeated."""
        ...

    def close(self) -> None: ...
