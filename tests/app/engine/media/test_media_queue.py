from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.engine.media.chunks import Embeddings, MediaChunk, MediaLayout
from app.engine.media.fake import FakeEncoder
from app.engine.media.media_queue import MediaQueue
from app.engine.media.media_store import MediaStore
from app.engine.request import IN_MEMORY, MediaInput
from app.protocol.errors import RequestError
from quantizer.system.errors import EngineError, UserError
from tests.app.engine.media.files import as_media
from tests.patience import PATIENCE_S


class GatedEncoder(FakeEncoder):
    """Encodes one chunk at each `release`, and records the order."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.encoded: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._gate = threading.Semaphore(0)

    def release(self, n_chunks: int = 1) -> None:
        self._gate.release(n_chunks)

    def encode(self, chunk: MediaChunk) -> Embeddings:
        self.begun.put(chunk.content_id)
        assert self._gate.acquire(timeout=PATIENCE_S)
        self.encoded.put(chunk.content_id)
        return super().encode(chunk)


class BrokenEncoder(FakeEncoder):
    def layout(self, media: MediaInput) -> MediaLayout:
        raise ZeroDivisionError("a bug")


class Forgetful(FakeEncoder):
    """Has only the content of the last layout at hand."""

    def layout(self, media: MediaInput) -> MediaLayout:
        self._known.clear()
        return super().layout(media)


class Client:
    """The engine's side: it waits for what the queue calls."""

    def __init__(self, encoder: FakeEncoder, folder: Path, max_disk_bytes: int = 1 << 30, **options: int) -> None:
        self.encoder = encoder
        self._woken = threading.Semaphore(0)
        self.queue = MediaQueue(encoder, MediaStore(folder, max_disk_bytes), self._woken.release, **options)

    def prepare(self, owner: str, *files: bytes, conversation: str = "chat") -> tuple[MediaLayout, ...] | UserError:
        prepared: queue.SimpleQueue[tuple[MediaLayout, ...] | UserError] = queue.SimpleQueue()
        self.queue.prepare(owner, [as_media(file) for file in files], conversation, prepared.put)
        return prepared.get(timeout=PATIENCE_S)

    def chunks(self, owner: str, *files: bytes, conversation: str = "chat") -> list[MediaChunk]:
        layouts = self.prepare(owner, *files, conversation=conversation)
        assert isinstance(layouts, tuple)
        return [part for layout in layouts for part in layout.parts if isinstance(part, MediaChunk)]

    def wait(self) -> None:
        assert self._woken.acquire(timeout=PATIENCE_S)

    def wait_until_encoding(self) -> None:
        while not self.encoder.is_encoding:
            time.sleep(0.001)

    def embeddings(self, chunk: MediaChunk) -> Embeddings:
        while (found := self.queue.get(chunk)) is None:
            self.wait()
        return found

    def seen(self, *files: bytes, owner: str = "request", conversation: str = "chat") -> list[Embeddings]:
        """The embeddings of a request with `files`, which ends."""
        found = [self.embeddings(chunk) for chunk in self.chunks(owner, *files, conversation=conversation)]
        self.queue.end(owner)
        return found

    def close(self) -> None:
        self.queue.close()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    made = Client(FakeEncoder(), tmp_path)
    yield made
    made.close()


def test_each_file_of_a_request_is_laid_out(client: Client) -> None:
    layouts = client.prepare("request", b"one", b"tiles 3")
    assert isinstance(layouts, tuple)
    assert [layout.n_tokens for layout in layouts] == [6, 15]


def test_embeddings_come_after_the_engine_was_woken(tmp_path: Path) -> None:
    client = Client(GatedEncoder(), tmp_path)
    (chunk,) = client.chunks("request", b"one")
    assert client.queue.get(chunk) is None
    assert client.queue.get(chunk) is None
    assert isinstance(client.encoder, GatedEncoder)
    client.encoder.release()
    client.wait()
    found = client.queue.get(chunk)
    assert found is not None
    assert found.shape == (4, 8)
    assert client.encoder.n_encoded == 1
    client.close()


def test_a_damaged_file_fails_the_request(client: Client) -> None:
    assert isinstance(client.prepare("request", b"one", b"damaged"), RequestError)
    client.queue.end("request")
    assert client.seen(b"one")


def test_the_error_of_an_encoder_is_raised_until_its_requests_end(client: Client) -> None:
    (chunk,) = client.chunks("request", b"failing")
    with pytest.raises(EngineError, match="could not be encoded"):
        client.embeddings(chunk)
    with pytest.raises(EngineError, match="could not be encoded"):
        client.queue.get(chunk)
    client.queue.end("request")
    (chunk,) = client.chunks("again", b"failing")
    assert client.queue.get(chunk) is None


def test_a_known_picture_is_neither_laid_out_nor_encoded(client: Client) -> None:
    first = client.seen(b"one")
    again = client.seen(b"one", owner="another", conversation="other chat")
    assert np.array_equal(first, again)
    assert (client.encoder.n_laid_out, client.encoder.n_encoded) == (1, 1)


def test_a_known_picture_is_neither_laid_out_nor_encoded_after_a_restart(tmp_path: Path) -> None:
    first, second = FakeEncoder(n_tokens=6, n_columns=3), FakeEncoder(n_tokens=6, n_columns=3)
    client = Client(first, tmp_path)
    expected = client.seen(b"one", b"tiles 2")
    client.close()
    client = Client(second, tmp_path)
    chunks = client.chunks("request", b"one", b"tiles 2")
    positions = [chunk.positions.tolist() for chunk in chunks if chunk.positions is not None]
    assert positions == [[[0, row, column] for row in range(2) for column in range(3)]] * 3
    assert np.array_equal([client.embeddings(chunk) for chunk in chunks], expected)
    assert (second.n_laid_out, second.n_encoded) == (0, 0)
    client.close()


def test_a_saved_layout_without_embeddings_is_encoded_again(tmp_path: Path) -> None:
    client = Client(FakeEncoder(), tmp_path)
    client.chunks("request", b"one")
    client.close()
    encoder = FakeEncoder()
    client = Client(encoder, tmp_path)
    assert client.seen(b"one")
    assert (encoder.n_laid_out, encoder.n_encoded) == (1, 1)
    client.close()


def test_a_chunk_whose_content_is_gone_is_decoded_again(tmp_path: Path) -> None:
    client = Client(Forgetful(), tmp_path)
    first, second = client.chunks("request", b"one", b"two")
    assert not np.array_equal(client.embeddings(first), client.embeddings(second))
    assert client.encoder.n_laid_out == 4
    client.close()


def test_what_is_in_memory_only_never_reaches_the_disk(tmp_path: Path) -> None:
    client = Client(FakeEncoder(), tmp_path)
    client.seen(b"one", conversation=IN_MEMORY)
    client.seen(b"one", conversation=IN_MEMORY)
    assert client.encoder.n_encoded == 1
    client.close()
    assert not list(tmp_path.iterdir())


def test_what_was_in_memory_only_is_saved_for_a_conversation_that_may_be_on_disk(tmp_path: Path) -> None:
    client = Client(FakeEncoder(), tmp_path)
    client.seen(b"one", conversation=IN_MEMORY)
    client.seen(b"one", conversation="chat")
    client.close()
    encoder = FakeEncoder()
    client = Client(encoder, tmp_path)
    client.seen(b"one")
    assert (encoder.n_laid_out, encoder.n_encoded) == (0, 0)
    client.close()


def test_a_picture_that_was_only_counted_is_saved_when_it_is_sent(tmp_path: Path) -> None:
    client = Client(FakeEncoder(), tmp_path)
    client.chunks("count", b"one", conversation=IN_MEMORY)
    client.queue.end("count")
    assert not list(tmp_path.iterdir())
    client.seen(b"one")
    client.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_reaches_the_disk_where_nothing_may_be_saved(tmp_path: Path) -> None:
    client = Client(FakeEncoder(), tmp_path, max_disk_bytes=0)
    client.seen(b"one")
    client.close()
    assert not list(tmp_path.iterdir())


def test_a_forgotten_conversation_is_encoded_again(tmp_path: Path) -> None:
    client = Client(FakeEncoder(), tmp_path)
    client.seen(b"one", conversation="first")
    client.seen(b"two", conversation="second")
    client.queue.forget({"first"})
    client.close()
    encoder = FakeEncoder()
    client = Client(encoder, tmp_path)
    client.seen(b"two")
    assert encoder.n_encoded == 0
    client.seen(b"one")
    assert encoder.n_encoded == 1
    client.close()


def test_what_is_forgotten_while_it_is_encoded_is_not_saved(tmp_path: Path) -> None:
    encoder = GatedEncoder()
    client = Client(encoder, tmp_path)
    (chunk,) = client.chunks("request", b"one", conversation="first")
    client.queue.get(chunk)
    client.queue.forget({"first"})
    encoder.release()
    assert client.embeddings(chunk).shape == (4, 8)
    client.close()
    assert not list(tmp_path.iterdir())


def test_what_is_asked_for_again_while_it_is_encoded_is_encoded_once(tmp_path: Path) -> None:
    encoder = GatedEncoder()
    client = Client(encoder, tmp_path, max_disk_bytes=0)
    first, second = client.chunks("request", b"tiles 2")
    client.queue.get(first)
    encoder.begun.get(timeout=PATIENCE_S)
    client.queue.get(first)
    encoder.release(3)
    client.embeddings(first)
    client.embeddings(second)
    client.close()
    assert [encoder.encoded.get() for _ in range(encoder.encoded.qsize())] == [first.content_id, second.content_id]


def test_requests_take_turns(tmp_path: Path) -> None:
    encoder = GatedEncoder()
    client = Client(encoder, tmp_path)
    many = client.chunks("many", b"tiles 4")
    (one,) = client.chunks("one", b"one")
    for chunk in (*many, one):
        client.queue.get(chunk)
    encoder.release(5)
    for chunk in (*many, one):
        client.embeddings(chunk)
    order = [encoder.encoded.get() for _ in range(5)]
    assert order.index(one.content_id) <= 1
    client.close()


def test_the_work_of_an_aborted_request_is_dropped(tmp_path: Path) -> None:
    encoder = GatedEncoder()
    client = Client(encoder, tmp_path)
    many = client.chunks("many", b"tiles 4")
    (one,) = client.chunks("one", b"one")
    for chunk in (*many, one):
        client.queue.get(chunk)
    client.queue.end("many")
    encoder.release(2)
    assert client.embeddings(one).shape == (4, 8)
    client.close()
    assert encoder.n_encoded <= 2


def test_the_running_work_of_an_aborted_request_is_interrupted(tmp_path: Path) -> None:
    client = Client(FakeEncoder(encode_s=PATIENCE_S), tmp_path)
    (chunk,) = client.chunks("request", b"one")
    client.queue.get(chunk)
    client.wait_until_encoding()
    client.queue.end("request")
    client.wait()
    assert client.encoder.n_encoded == 0
    client.close()


def test_work_that_was_interrupted_is_done_for_a_request_that_came_meanwhile(tmp_path: Path) -> None:
    class Patient(FakeEncoder):
        """Notices an interruption only when it may."""

        may_notice = threading.Event()

        def encode(self, chunk: MediaChunk) -> Embeddings:
            is_first, self.is_encoding = not self.may_notice.is_set(), True
            assert self.may_notice.wait(PATIENCE_S)
            if is_first:
                raise EngineError("The encoding was interrupted.", "Send the request again.")
            return super().encode(chunk)

    encoder = Patient()
    client = Client(encoder, tmp_path)
    (chunk,) = client.chunks("first", b"one")
    client.queue.get(chunk)
    client.wait_until_encoding()
    client.queue.end("first")
    client.queue.prepare("second", [as_media(b"one")], "chat", lambda _result: None)
    client.queue._owners["second"].chunks = {chunk.content_id: (chunk, as_media(b"one"))}
    client.queue.get(chunk)
    encoder.may_notice.set()
    assert client.embeddings(chunk).shape == (4, 8)
    client.close()


def test_closing_interrupts_the_running_work(tmp_path: Path) -> None:
    client = Client(FakeEncoder(encode_s=PATIENCE_S), tmp_path)
    (chunk,) = client.chunks("request", b"one")
    client.queue.get(chunk)
    client.wait_until_encoding()
    client.close()
    assert client.encoder.n_encoded == 0


def test_an_owner_that_ended_is_not_called(tmp_path: Path) -> None:
    started, may_end = threading.Event(), threading.Event()

    class Slow(FakeEncoder):
        def layout(self, media: MediaInput) -> MediaLayout:
            started.set()
            assert may_end.wait(PATIENCE_S)
            return super().layout(media)

    client = Client(Slow(), tmp_path)
    called: list[object] = []
    client.queue.prepare("request", [as_media(b"one")], "chat", called.append)
    assert started.wait(PATIENCE_S)
    client.queue.end("request")
    may_end.set()
    assert client.seen(b"two", owner="another")
    assert called == []
    client.close()


def test_memory_is_bounded_and_keeps_what_was_not_fetched(tmp_path: Path) -> None:
    client = Client(FakeEncoder(), tmp_path, max_disk_bytes=0, max_memory_bytes=4 * 8 * 4)
    chunks = client.chunks("request", b"tiles 3")
    for chunk in chunks:
        assert client.queue.get(chunk) is None
    for _ in chunks:
        client.wait()
    assert all(client.queue.get(chunk) is not None for chunk in chunks)
    client.queue.end("request")
    assert client.encoder.n_encoded == 3
    client.seen(b"tiles 3", owner="again")
    assert client.encoder.n_encoded >= 5
    client.close()


def test_a_bug_of_the_encoder_is_raised_in_the_engine(tmp_path: Path) -> None:
    client = Client(BrokenEncoder(), tmp_path)
    client.queue.prepare("request", [as_media(b"one")], "chat", lambda _result: None)
    client.wait()
    with pytest.raises(ZeroDivisionError):
        client.queue.prepare("another", [as_media(b"one")], "chat", lambda _result: None)
    client.close()


def test_closing_the_queue_closes_the_encoder(tmp_path: Path) -> None:
    client = Client(FakeEncoder(), tmp_path)
    client.close()
    assert client.encoder.is_closed
