"""What of the attachments a model does not read, and which local models do; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.chat.backend import ConnectionState
from app.chat.conversation import Attachment
from app.protocol.library import LocalModel

_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class UnreadMedia:
    """That the draft has pictures or sounds that its model does not read."""

    has_pictures: bool
    has_sounds: bool

    def text(self, model: str, others: Sequence[str] | None = None, key: str = "") -> str:
        """Return a line about it: that `key` switches to the first of the `others` that read them; None is unknown."""
        senses = (("see pictures", self.has_pictures), ("hear sounds", self.has_sounds))
        verbs = " or ".join(verb for verb, is_unread in senses if is_unread)
        cause = f"{model} does not {verbs}."
        if others is None:
            return cause
        if not others:
            return f"{cause} No local model does: F6 downloads one."
        more = f" (or {', '.join(others[1:_MAX_NAMED])})" if len(others) > 1 else ""
        return f"{cause} {key} switches to {others[0]}{more}."


def unread_media(attachments: Iterable[Attachment], state: ConnectionState) -> UnreadMedia | None:
    """Return what of `attachments` the model does not read; None if that is nothing, or unknown."""
    unread = [file for attachment in attachments for file in attachment.media if not state.reads(file)]
    if not unread:
        return None
    return UnreadMedia(not all(file.is_sound for file in unread), any(file.is_sound for file in unread))


def models_that_read(unread: UnreadMedia, models: Iterable[LocalModel]) -> list[LocalModel]:
    """Return the models that read all of it, loaded ones first."""
    found = [
        model
        for model in models
        if not model.damaged and (model.sees or not unread.has_pictures) and (model.hears or not unread.has_sounds)
    ]
    return sorted(found, key=lambda model: (model.state != "ready", model.n_bytes))
