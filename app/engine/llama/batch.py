"""The input of a decode: the arrays of a batch, and the flag that interrupts it.

Owns the memory that native code reads.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.llama.native import lib

__all__ = ["Batch", "Interrupt"]


class Batch:
    """The arrays of a llama_batch for up to `n_tokens` tokens.

    With `n_embd` each token has a row in `states`, shape (n_tokens, n_embd).
    """

    def __init__(self, n_tokens: int, n_embd: int = 0) -> None:
        self.states: NDArray[np.float32] = np.zeros((n_tokens, n_embd), np.float32)
        integers = ctypes.c_int32 * n_tokens  # faster to write a few values to than arrays of numpy
        self._token, self._position, self._sequence_id = integers(), integers(), integers()
        self._logits = (ctypes.c_int8 * n_tokens)()
        begin, width = ctypes.addressof(self._sequence_id), ctypes.sizeof(ctypes.c_int32)
        self._batch = lib.llama_batch()
        self._own: dict[str, ctypes.Array[Any]] = {
            "token": self._token,
            "pos": self._position,
            "n_seq_id": integers(*[1] * n_tokens),
            "seq_id": (ctypes.c_void_p * n_tokens)(*range(begin, begin + n_tokens * width, width)),
            "logits": self._logits,
        }
        if n_embd:
            self._own["embd"] = np.ctypeslib.as_ctypes(self.states)
        for field, array in self._own.items():
            setattr(self._batch, field, ctypes.cast(array, dict(lib.llama_batch._fields_)[field]))

    def fill(self, chunks: Sequence[Chunk]) -> lib.llama_batch:
        """Return the native batch of `chunks`; it is valid until the next call."""
        end = 0
        for chunk in chunks:
            n_tokens = len(chunk.tokens)
            begin, end = end, end + n_tokens
            self._token[begin:end] = [*chunk.tokens]
            self._position[begin:end] = [*range(chunk.position, chunk.position + n_tokens)]
            self._sequence_id[begin:end] = [*repeat(chunk.sequence_id, n_tokens)]
            self._logits[begin:end] = [*repeat(0, n_tokens - chunk.n_logits), *repeat(1, chunk.n_logits)]
        self._batch.n_tokens = end
        return self._batch


class Interrupt:
    """A flag that llama.cpp reads between graph nodes without entering Python.

    The abort callback is the C library's strlen over our buffer: 0, so false, while the buffer is empty.
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
