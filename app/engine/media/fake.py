"""A deterministic encoder without native code, for tests and for work on everything around it.

A file whose text is `tiles N` becomes N chunks with a mark before each, one that begins with `damaged` is refused, and
any other becomes one chunk between two marks. Embeddings depend on all bytes of the file.
"""

from __future__ import annotations

import hashlib
import re
import threading

import numpy as np

from app.engine.media.chunks import Embeddings, MediaChunk, MediaLayout
from app.engine.request import MediaInput
from app.protocol.errors import RequestError
from quantizer.system.errors import EngineError

_TILES = re.compile(rb"tiles ([1-9])")
_DAMAGED, _FAILING = b"damaged", b"failing"
_BEGIN, _TILE, _END = (ord("<"),), (ord("|"),), (ord(">"),)


class FakeEncoder:
    """A `MediaEncoder` of chunks of `n_tokens` embeddings of width `n_embd`; a chunk takes `encode_s` seconds. With
    `n_columns` a chunk is a picture of a model with M-RoPE, of so many columns. The chunks of a file whose bytes begin
    with `failing` cannot be encoded. `n_laid_out` and `n_encoded` count the calls."""

    def __init__(
        self, n_embd: int = 8, n_tokens: int = 4, *, is_causal: bool = True, n_columns: int = 0, encode_s: float = 0.0
    ) -> None:
        assert n_columns == 0 or n_tokens % n_columns == 0, "rows are whole"
        self.n_laid_out = 0
        self.n_encoded = 0
        self.is_closed = False
        self.is_encoding = False  # and can be interrupted
        self._n_embd, self._n_tokens = n_embd, n_tokens
        self._is_causal, self._n_columns = is_causal, n_columns
        self._encode_s = encode_s
        self._known: dict[str, bytes] = {}
        self._interrupted = threading.Event()

    def layout(self, media: MediaInput) -> MediaLayout:
        data = media.data
        self.n_laid_out += 1
        if data.startswith(_DAMAGED):
            raise RequestError("The picture is damaged.", "Send a whole file.")
        tiles = _TILES.fullmatch(data)
        if tiles is None:
            return MediaLayout((_BEGIN, self._chunk(data, 0), _END))
        chunks = [self._chunk(data, index) for index in range(int(tiles[1]))]
        return MediaLayout(tuple(part for chunk in chunks for part in (_TILE, chunk)))

    def encode(self, chunk: MediaChunk) -> Embeddings:
        data = self._known[chunk.content_id]
        self._interrupted.clear()
        self.is_encoding = True
        is_interrupted = self._interrupted.wait(self._encode_s)
        self.is_encoding = False
        if is_interrupted:
            raise EngineError("The encoding was interrupted.", "Send the request again.")
        self.n_encoded += 1
        if data.startswith(_FAILING):
            raise EngineError("The picture could not be encoded.", "Try it again.")
        return fake_embeddings(chunk, self._n_embd)

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        self.is_closed = True

    def _chunk(self, data: bytes, index: int) -> MediaChunk:
        content_id = hashlib.sha256(b"fake/%d/" % index + data).hexdigest()
        self._known[content_id] = data
        if not self._n_columns:
            return MediaChunk(content_id, self._n_tokens, self._n_tokens, self._is_causal)
        n_rows = self._n_tokens // self._n_columns
        n_positions = max(n_rows, self._n_columns)
        rows, columns = np.divmod(np.arange(self._n_tokens), self._n_columns)
        assert rows[-1] == n_rows - 1, "all rows are there"
        grid = np.stack([np.zeros_like(rows), rows, columns], axis=1).astype(np.int32)
        return MediaChunk(content_id, self._n_tokens, n_positions, self._is_causal, grid)


def fake_embeddings(chunk: MediaChunk, n_embd: int) -> Embeddings:
    """Return what a FakeEncoder encodes `chunk` to, so that a fake model can tell whether it gets the right ones."""
    seed = int.from_bytes(hashlib.sha256(chunk.content_id.encode()).digest(), "little")
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (chunk.n_tokens, n_embd)).astype(np.float32)
