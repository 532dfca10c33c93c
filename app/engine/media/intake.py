"""Requests and token counts with pictures and sounds, from their arrival until their layouts are known.

Owns which of them are being prepared, and what an abort meanwhile does. Independent of the loop and of how files are
laid out; the engine's thread makes all calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from app.engine.media.chunks import MediaLayout
from app.engine.media.media_queue import MediaQueue
from app.engine.protocol.messages import Tokenize
from app.engine.request import IN_MEMORY, Request
from app.protocol.errors import RequestError
from quantizer.system.errors import UserError

_Message: TypeAlias = Request | Tokenize


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
            raise RequestError(
                "This model takes no pictures or sounds: no projector (mmproj) is loaded with it.",
                "Choose a model that does: `localllm list` marks those with a projector.",
            )
        owner = owner_of(message)
        conversation = message.conversation if isinstance(message, Request) else IN_MEMORY  # counting saves nothing
        self._preparing[owner] = message
        self._queue.prepare(owner, message.media, conversation, lambda result: self._post(Prepared(message, result)))

    def layouts(self, prepared: Prepared) -> Mapping[str, MediaLayout] | None:
        """Return the layouts of a message by marker, None if it was aborted meanwhile. Raises its error.

        `end` must be called once they are no longer needed.
        """
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
    """Return the id of a request or call."""
    return message.request_id if isinstance(message, Request) else message.call_id
