"""What goes into a decode: the arrays of a batch, and the flag that ends it early.

Owns the memory that native code reads. Knows nothing of what the tokens mean.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.llama.native import lib

__all__ = ["Batch", "Interrupt"]


class Batch:
    """The arrays of a llama_batch for up to `n_tokens` tokens of one sequence each.

    With `n_embd` each token brings its row of `states` along, shape (n_tokens, n_embd).
    """

    def __init__(self, n_tokens: int, n_embd: int = 0) -> None:
        self.states: NDArray[np.float32] = np.zeros((n_tokens, n_embd), np.float32)
        self._token = np.zeros(n_tokens, np.int32)
        self._position = np.zeros(n_tokens, np.int32)
        self._sequence_id = np.zeros(n_tokens, np.int32)
        self._n_sequence_ids = np.ones(n_tokens, np.int32)
        self._logits = np.zeros(n_tokens, np.int8)
        address, width = self._sequence_id.ctypes.data, self._sequence_id.itemsize
        self._sequence_id_at = np.arange(address, address + n_tokens * width, width, dtype=np.uintp)
        self._batch = lib.llama_batch()
        arrays: dict[str, NDArray[Any]] = {
            "token": self._token,
            "pos": self._position,
            "n_seq_id": self._n_sequence_ids,
            "seq_id": self._sequence_id_at,
            "logits": self._logits,
        }
        if n_embd:
            arrays["embd"] = self.states
        for field, array in arrays.items():
            kind = dict(lib.llama_batch._fields_)[field]
            setattr(self._batch, field, ctypes.cast(ctypes.c_void_p(array.ctypes.data), kind))

    def fill(self, chunks: Sequence[Chunk]) -> lib.llama_batch:
        """Return the native batch of `chunks`; it is valid until the next call."""
        end = 0
        for chunk in chunks:
            begin, end = end, end + len(chunk.tokens)
            self._token[begin:end] = chunk.tokens
            self._position[begin:end] = np.arange(chunk.position, chunk.position + end - begin)
            self._sequence_id[begin:end] = chunk.sequence_id
            self._logits[begin:end] = 0
            self._logits[end - chunk.n_logits : end] = 1
        self._batch.n_tokens = end
        return self._batch


class Interrupt:
    """A flag that llama.cpp reads between graph nodes without entering Python.

    The abort callback is the C library's strlen over a buffer of ours: 0, hence false, while the buffer is empty.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        library = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
        self.callback = ctypes.cast(library.strlen, lib.ggml_abort_callback)
        self.data = ctypes.cast(self._buffer, ctypes.c_void_p)

    def set(self) -> None:
        self._buffer[0] = b"!"

    def clear(self) -> None:
        self._buffer[0] = b"\0"
