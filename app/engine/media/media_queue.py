"""Requests with pictures and sounds: waiting for their layouts, and the thread that lays out and encodes.

Requests take turns, so that one with many pictures does not delay another with one. A request is an owner here, and so
is a call that only counts tokens. Independent of the loop, which asks for embeddings and is woken, and of how an
encoder works.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from app.engine.media.chunks import Embeddings, MediaChunk, MediaEncoder, MediaLayout
from app.engine.media.media_store import MediaStore
from app.engine.messages import Tokenize
from app.engine.request import IN_MEMORY, MediaInput, Request
from app.protocol.errors import RequestError
from quantizer.system.errors import EngineError, UserError

MAX_MEMORY_BYTES = 256 << 20  # of embeddings that were fetched and may be asked for again
_MAX_LAYOUTS = 1024
_NICE = 5  # of the thread, so that answers that run meanwhile keep most of the processor

OnPrepared: TypeAlias = Callable[[tuple[MediaLayout, ...] | UserError], None]
_Message: TypeAlias = Request | Tokenize


@dataclass(slots=True)
class _Owner:
    """A request or token count with its media; `chunks` are those of its layouts, with the file of each. `turn` grows
    with each piece of work; the owner with the lowest is next."""

    media: tuple[MediaInput, ...]
    conversation: str
    on_prepared: OnPrepared
    turn: int
    layouts: list[MediaLayout] = field(default_factory=list)
    chunks: dict[str, tuple[MediaChunk, MediaInput]] = field(default_factory=dict)
    is_prepared: bool = False


class MediaQueue:
    """Pictures and sounds of all requests: a `MediaEmbeddings` for the loop. One thread makes all calls but `close`;
    callbacks come from the queue's own thread. `wake` is called when embeddings are there, or cannot be. The queue owns
    `encoder`, and calls it from its thread only."""

    def __init__(
        self,
        encoder: MediaEncoder,
        store: MediaStore,
        wake: Callable[[], None],
        max_memory_bytes: int = MAX_MEMORY_BYTES,
    ) -> None:
        self._encoder, self._store, self._wake = encoder, store, wake
        self._max_memory_bytes = max_memory_bytes
        self._changed = threading.Condition()  # guards all below
        self._owners: dict[str, _Owner] = {}
        self._n_turns = 0
        self._wanted: set[str] = set()
        self._ready: OrderedDict[str, Embeddings] = OrderedDict()  # the least recently used first
        self._unfetched: set[str] = set()
        self._failed: dict[str, UserError] = {}
        self._layouts: OrderedDict[str, MediaLayout] = OrderedDict()
        self._fault: BaseException | None = None
        self._running, self._is_interrupted = "", False  # the content that is encoded now
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="media-encoder", daemon=True)
        self._thread.start()

    def prepare(self, owner: str, media: Sequence[MediaInput], conversation: str, on_prepared: OnPrepared) -> None:
        """Lay out `media` and call `on_prepared` with a layout of each, or with the error of the first that fails.
        `end` must be called for the owner, who then gets no more calls."""
        with self._changed:
            self._raise_fault()
            assert owner not in self._owners, "an owner prepares once"
            self._n_turns += 1
            self._owners[owner] = _Owner(tuple(media), conversation, on_prepared, self._n_turns)
            self._changed.notify()

    def get(self, chunk: MediaChunk) -> Embeddings | None:
        with self._changed:
            self._raise_fault()
            if error := self._failed.get(chunk.content_id):
                raise error
            if (embeddings := self._ready.get(chunk.content_id)) is not None:
                self._ready.move_to_end(chunk.content_id)
                self._unfetched.discard(chunk.content_id)
                return embeddings
            assert any(chunk.content_id in owner.chunks for owner in self._owners.values()), "its request is here"
            self._wanted.add(chunk.content_id)
            self._changed.notify()
            return None

    def end(self, owner: str) -> None:
        """Drop the work of an owner that finished or was aborted; of one that is not known, nothing."""
        with self._changed:
            if self._owners.pop(owner, None) is None:
                return
            others = {content_id for each in self._owners.values() for content_id in each.chunks}
            self._wanted &= others
            self._unfetched &= others
            self._failed = {content_id: error for content_id, error in self._failed.items() if content_id in others}
            if self._running and self._running not in others:
                self._is_interrupted = True
                self._encoder.interrupt()
            self._shrink()

    def forget(self, conversations: Collection[str]) -> None:
        """Remove what was saved of `conversations`, and what is in memory of anyone; nothing of them is saved later."""
        with self._changed:
            for owner in self._owners.values():
                if owner.conversation in conversations:
                    owner.conversation = IN_MEMORY
            for content_id in [each for each in self._ready if each not in self._unfetched]:
                del self._ready[content_id]
            self._layouts.clear()
        self._store.forget(conversations)

    def close(self) -> None:
        """End the thread, whose encoding is interrupted, and close the encoder."""
        with self._changed:
            self._is_closing = True
            self._encoder.interrupt()
            self._changed.notify()
        self._thread.join()
        self._encoder.close()

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _shrink(self) -> None:
        n_bytes = sum(embeddings.nbytes for embeddings in self._ready.values())
        for content_id in list(self._ready):
            if n_bytes <= self._max_memory_bytes:
                return
            if content_id not in self._unfetched:
                n_bytes -= self._ready.pop(content_id).nbytes

    # The queue's thread

    def _run(self) -> None:
        if sys.platform == "linux":  # where threads have priorities, and those that libmtmd starts inherit them
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            while (work := self._next_work()) is not None:
                work()
        except BaseException as fault:
            with self._changed:
                self._fault = fault
            self._wake()

    def _next_work(self) -> Callable[[], None] | None:
        """Wait for the next piece of work and return it, None at the end."""
        with self._changed:
            while not self._is_closing:
                for name, owner in sorted(self._owners.items(), key=lambda item: item[1].turn):
                    wanted = next((content_id for content_id in owner.chunks if content_id in self._wanted), "")
                    if owner.is_prepared and not wanted:
                        continue
                    self._n_turns += 1
                    owner.turn = self._n_turns
                    if not owner.is_prepared:
                        return partial(self._lay_out, name, owner)
                    self._wanted.discard(wanted)
                    self._running = wanted
                    return partial(self._encode, owner, *owner.chunks[wanted])
                self._changed.wait()
        return None

    def _lay_out(self, name: str, owner: _Owner) -> None:
        """Lay out the next picture or sound of an owner; with the last one it is prepared."""
        result: tuple[MediaLayout, ...] | UserError
        try:
            if len(owner.layouts) < len(owner.media):
                media = owner.media[len(owner.layouts)]
                owner.layouts.append(self._layout(media, owner))
            result = tuple(owner.layouts)
        except UserError as error:
            result = error
        if isinstance(result, tuple) and len(result) < len(owner.media):
            return
        chunks: dict[str, tuple[MediaChunk, MediaInput]] = {}
        if isinstance(result, tuple):
            pairs = ((part, file) for file, layout in zip(owner.media, result, strict=True) for part in layout.parts)
            chunks = {part.content_id: (part, file) for part, file in pairs if isinstance(part, MediaChunk)}
        with self._changed:
            owner.chunks, owner.is_prepared = chunks, True
            is_here = self._owners.get(name) is owner
        if is_here:
            owner.on_prepared(result)
        # Embeddings that a request encoded which may be in memory only may be on disk for this one.
        for content_id in owner.chunks:
            with self._changed:
                embeddings = self._ready.get(content_id)
            if embeddings is not None and not self._store.has_embeddings(content_id):
                self._store.save_embeddings(content_id, embeddings, owner.conversation)

    def _layout(self, media: MediaInput, owner: _Owner) -> MediaLayout:
        key = hashlib.sha256(media.data).hexdigest()
        with self._changed:
            layout = self._layouts.get(key)
        if layout is None:
            layout = self._store.layout(key) or self._encoder.layout(media)
        if not self._store.has_layout(key):  # new, or so far of a request that may be in memory only
            self._store.save_layout(key, layout, owner.conversation)
        with self._changed:
            self._layouts[key] = layout
            self._layouts.move_to_end(key)
            if len(self._layouts) > _MAX_LAYOUTS:
                self._layouts.popitem(last=False)
        return layout

    def _encode(self, owner: _Owner, chunk: MediaChunk, media: MediaInput) -> None:
        embeddings, is_new, error = self._store.embeddings(chunk.content_id), False, None
        if embeddings is None or embeddings.shape[0] != chunk.n_tokens:
            try:
                embeddings, is_new = self._encoded(chunk, media), True
            except UserError as failure:
                error = failure
        with self._changed:
            is_interrupted, self._is_interrupted, self._running = self._is_interrupted, False, ""
            others = [each for each in self._owners.values() if chunk.content_id in each.chunks]
            is_asked_for = bool(others)
            self._wanted.discard(chunk.content_id)  # asked for again meanwhile
            if error is not None and is_interrupted:
                self._wanted |= {chunk.content_id} if is_asked_for else set()  # by a request that came meanwhile
            elif error is not None and is_asked_for:
                self._failed[chunk.content_id] = error
            elif embeddings is not None:
                self._ready[chunk.content_id] = embeddings
                self._unfetched |= {chunk.content_id} if is_asked_for else set()
                self._shrink()
        self._wake()
        if is_new and embeddings is not None:
            for each in (owner, *others):
                if not self._store.has_embeddings(chunk.content_id):
                    self._store.save_embeddings(chunk.content_id, embeddings, each.conversation)

    def _encoded(self, chunk: MediaChunk, media: MediaInput) -> Embeddings:
        """Encode a chunk; its file is decoded again if the encoder dropped its content."""
        try:
            return self._encoder.encode(chunk)
        except KeyError:
            self._encoder.layout(media)
        try:
            return self._encoder.encode(chunk)
        except KeyError as error:  # a saved layout that is not this projector's any more
            raise EngineError("A picture or sound has another layout than before.", "Send it again.") from error


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message whose media are laid out, a layout of each in order, or the error of the first that cannot be."""

    message: _Message
    result: tuple[MediaLayout, ...] | UserError


class MediaIntake:
    """The messages with media that are being prepared by `queue`; `post` gets each when it is, from another thread."""

    def __init__(self, queue: MediaQueue | None, post: Callable[[Prepared], None]) -> None:
        self._queue = queue
        self._post = post
        self._preparing: dict[str, _Message] = {}

    def begin(self, message: _Message) -> None:
        """Have the media of `message` laid out. Raises RequestError where the model takes none."""
        if self._queue is None:
            cause = "This model takes no pictures or sounds: no projector (mmproj) is loaded with it."
            raise RequestError(cause, "Choose a model that does: `localllm list` marks those with a projector.")
        owner = owner_of(message)
        conversation = message.conversation if isinstance(message, Request) else IN_MEMORY  # counting saves nothing
        self._preparing[owner] = message
        self._queue.prepare(owner, message.media, conversation, lambda result: self._post(Prepared(message, result)))

    def layouts(self, prepared: Prepared) -> Mapping[str, MediaLayout] | None:
        """Return the layouts of a message by marker, None if it was aborted meanwhile. Raises its error. `end` must be
        called once they are no longer needed."""
        owner = owner_of(prepared.message)
        if self._preparing.get(owner) is not prepared.message:
            return None
        del self._preparing[owner]
        if isinstance(prepared.result, UserError):
            raise prepared.result
        markers = (each.marker for each in prepared.message.media)
        return dict(zip(markers, prepared.result, strict=True))

    def abort(self, owner: str) -> bool:
        """Drop a message that is being prepared; return whether there was one."""
        if self._preparing.pop(owner, None) is None:
            return False
        self.end(owner)
        return True

    def end(self, owner: str) -> None:
        """Drop what is at hand for a request or call that has ended; of one without media there is nothing."""
        if self._queue is not None:
            self._queue.end(owner)


def owner_of(message: Request | Tokenize) -> str:
    return message.request_id if isinstance(message, Request) else message.call_id
