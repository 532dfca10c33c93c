from __future__ import annotations

import base64

import numpy as np
import pytest

from app.engine.media.chunks import MediaChunk
from app.engine.media.fake import FakeEncoder
from app.engine.request import MediaInput
from app.protocol.errors import RequestError
from quantizer.system.errors import EngineError


def media(data: bytes) -> MediaInput:
    return MediaInput("<marker>", base64.b64encode(data).decode())


def chunks_of(encoder: FakeEncoder, data: bytes) -> list[MediaChunk]:
    return [part for part in encoder.layout(media(data)).parts if isinstance(part, MediaChunk)]


def test_embeddings_depend_on_every_byte_of_the_file() -> None:
    encoder = FakeEncoder()
    first, again, other = (chunks_of(encoder, data)[0] for data in (b"a picture", b"a picture", b"a Picture"))
    assert np.array_equal(encoder.encode(first), encoder.encode(again))
    assert not np.array_equal(encoder.encode(first), encoder.encode(other))


def test_tiles_are_chunks_of_their_own() -> None:
    encoder = FakeEncoder(n_tokens=3)
    chunks = chunks_of(encoder, b"tiles 3")
    assert len({chunk.content_id for chunk in chunks}) == 3
    assert encoder.layout(media(b"tiles 3")).n_tokens == 12


def test_a_picture_under_m_rope_has_a_grid_of_positions() -> None:
    chunk = chunks_of(FakeEncoder(n_tokens=6, n_columns=3), b"wide")[0]
    assert chunk.positions is not None
    assert chunk.positions.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 1, 1], [0, 1, 2]]
    assert chunk.n_positions == 3


def test_damaged_and_failing_files_raise() -> None:
    encoder = FakeEncoder()
    with pytest.raises(RequestError):
        encoder.layout(media(b"damaged"))
    with pytest.raises(EngineError):
        encoder.encode(chunks_of(encoder, b"failing")[0])
