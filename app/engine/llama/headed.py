"""A backend over a model with a prediction head: both caches go the same way.

Owns the head, and what a saved state of both looks like. Knows nothing of what the head computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.engine.adapters import AdapterSet
from app.engine.backend import Chunk, DecodeStatus, ModelFacts
from app.engine.llama.context import LlamaBackend
from app.engine.llama.head import LlamaHead
from app.engine.llama.native import hidden_states, lib
from app.engine.llama.steering import Steering

__all__ = ["HeadedBackend"]

_LENGTH_BYTES = 8  # of the model's own part of a state, which comes first


class HeadedBackend(LlamaBackend):
    """A backend whose model has a head: what is done to its cache is done to that of `head`, which it owns."""

    def __init__(self, model: int, context: int, facts: ModelFacts, steering: Steering, head: LlamaHead) -> None:
        super().__init__(model, context, replace(facts, layout=f"{facts.layout}-head"), steering)
        self.head = head
        self._owned.callback(head.close)
        self._n_embd = lib.llama_model_n_embd_out(model)
        hidden_states().llama_set_embeddings_nextn(context, True, False)

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        status = super().decode(chunks)
        if status is DecodeStatus.DONE:
            shape = (sum(len(chunk.tokens) for chunk in chunks), self._n_embd)
            pointer = hidden_states().llama_get_embeddings_nextn(self._context)
            self.head.follow(chunks, np.ctypeslib.as_array(pointer, shape))
        return status

    def use_adapters(self, adapters: AdapterSet) -> None:
        super().use_adapters(adapters)
        self.head.use_adapters(adapters)

    def share(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        super().share(source_id, target_id, begin, end)
        self.head.share(source_id, target_id, begin, end)

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        self.head.truncate(sequence_id, n_tokens)
        return super().truncate(sequence_id, n_tokens)

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:
        super().shift(sequence_id, n_keep, n_discard)
        self.head.shift(sequence_id, n_keep, n_discard)

    def state_bytes(self, sequence_id: int) -> int:
        return _LENGTH_BYTES + super().state_bytes(sequence_id) + self.head.state_bytes(sequence_id)

    def save(self, sequence_id: int) -> bytearray:
        state = super().save(sequence_id)
        return bytearray(len(state).to_bytes(_LENGTH_BYTES, "little")) + state + self.head.save(sequence_id)

    def restore(self, sequence_id: int, state: bytes | bytearray) -> bool:
        view = memoryview(state)
        end = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
        is_restored = super().restore(sequence_id, bytes(view[_LENGTH_BYTES:end]))
        if is_restored:
            self.head.restore(sequence_id, bytes(view[end:]))
        return is_restored
