"""A model's context with a draft head: both caches change together, and the head gets the model's hidden states.

Owns which hidden states a head reads, and the format of a saved state of both. Independent of what a head computes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from app.engine.backend import Chunk, DecodeStatus, State
from app.engine.llama.context import LlamaBackend, NativeContext
from app.engine.llama.heads.autoregressive_context import AutoregressiveContext
from app.engine.llama.heads.head_context import HeadContext, Row
from app.engine.llama.native import hidden_states, layer_inputs, lib
from app.engine.request import AdapterSet

_LENGTH = struct.Struct("<Q")  # of the model's own part of a state, which comes first


class HeadBackend(LlamaBackend):
    """A backend with a head, which it owns; every change of its cache is applied to both."""

    def __init__(self, native: NativeContext, head: HeadContext) -> None:
        super().__init__(native)
        model, context = native.model, native.context
        self.head = head
        self._owned.callback(head.close)
        self._n_layers = lib.llama_model_n_layer(model)
        self._n_embd, self._n_embd_out = lib.llama_model_n_embd(model), lib.llama_model_n_embd_out(model)
        self._inputs = layer_inputs()
        self._reads_output = isinstance(head, AutoregressiveContext)
        for layer in head.spec.target_layers:
            if self._is_output(layer):
                hidden_states().llama_set_embeddings_nextn(context, True, False)
            else:
                self._inputs.enable(context, layer, True)

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        status = super().decode(chunks)
        has_tokens = chunks[0].media is None  # a head reads no picture: it begins anew after one
        if status is DecodeStatus.DONE and has_tokens:
            self.head.follow(chunks, self._features(sum(len(chunk.tokens) for chunk in chunks)))
        return status

    def set_adapters(self, adapters: AdapterSet) -> None:
        super().set_adapters(adapters)
        self.head.set_adapters(adapters)

    def share_cells(self, source_id: int, target_id: int, begin: int, end: int) -> None:
        super().share_cells(source_id, target_id, begin, end)
        self.head.share_cells(source_id, target_id, begin, end)

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        n_left = super().truncate(sequence_id, n_tokens)
        # Where a state went back further, the head keeps what it has: drafts continue the accepted tokens.
        self.head.truncate(sequence_id, n_tokens if n_left else 0)
        return n_left

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> None:
        super().shift(sequence_id, n_keep, n_discard)
        self.head.shift(sequence_id, n_keep, n_discard)

    def state_bytes(self, sequence_id: int) -> int:
        return _LENGTH.size + super().state_bytes(sequence_id) + self.head.state_bytes(sequence_id)

    def save_state(self, sequence_id: int) -> State:
        length, of_head = _LENGTH.pack(super().state_bytes(sequence_id)), self.head.save_state(sequence_id)
        before = length + self._saved_positions(sequence_id)
        return self._save(sequence_id, lib.LLAMA_STATE_SEQ_FLAGS_NONE, before=before, after=of_head)

    def restore_state(self, sequence_id: int, state: State) -> bool:
        view = memoryview(state)
        end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
        is_restored = super().restore_state(sequence_id, view[_LENGTH.size : end])
        if is_restored:
            self.head.restore_state(sequence_id, view[end:])
        return is_restored

    def restore_checkpoint(self, sequence_id: int, source_id: int | None, n_tokens: int, checkpoint: State) -> bool:
        if not super().restore_checkpoint(sequence_id, source_id, n_tokens, checkpoint):
            return False
        if source_id is not None and source_id != sequence_id:
            self.head.share_cells(source_id, sequence_id, 0, n_tokens)
        else:
            self.head.truncate(sequence_id, n_tokens)
        return True

    def _features(self, n_tokens: int) -> Row:
        """Return a copy of the hidden states of the last batch that the head reads, shape (n_tokens, width)."""
        return np.concatenate([self._hidden(layer, n_tokens) for layer in self.head.spec.target_layers], axis=1)

    def _hidden(self, layer: int, n_tokens: int) -> Row:
        if self._is_output(layer):
            pointer: Any = hidden_states().llama_get_embeddings_nextn(self._context)
            return np.ctypeslib.as_array(pointer, (n_tokens, self._n_embd_out))
        return np.ctypeslib.as_array(self._inputs.of(self._context, layer), (n_tokens, self._n_embd))

    def _is_output(self, layer: int) -> bool:
        """Return whether a head reads what the last layer gives; block heads get it as a further input."""
        return layer == self._n_layers and self._reads_output
