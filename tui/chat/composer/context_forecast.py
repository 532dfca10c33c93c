"""How much of the context a chat will use once the draft is sent, and how much of that is each attachment.

Owns what is counted: the engine counts the draft, and each text, picture and sound once. The chat before it was counted
with its answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from app.chat.attachments.prompt import compose_prompt
from app.chat.backend import ChatBackend, ConnectionState
from app.chat.compaction import estimated_tokens
from app.chat.conversation import Attachment, MediaFile, MessageContent
from app.protocol.chat import MediaPart
from app.protocol.errors import RequestError

MediaParts = Callable[[Sequence[MediaFile]], Awaitable[Mapping[str, MediaPart]]]
_TEMPLATE_TOKENS = 8  # what the chat template writes around a question, and before its answer
_N_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The tokens of an attachment, and those of the context that it goes to; 0 is unknown. A count that `is_too_large`
    does not fit beside what the context has already."""

    n_tokens: int
    n_ctx: int = 0
    is_estimated: bool = False
    is_too_large: bool = False


@dataclass(frozen=True, slots=True)
class ContextForecast:
    """The tokens in the context after sending, of `n_ctx`; 0 is unknown. `n_uncounted` attachments come on top."""

    n_tokens: int
    n_ctx: int
    n_uncounted: int = 0

    @property
    def is_too_long(self) -> bool:
        """Whether the question does not fit, an answer not included."""
        return 0 < self.n_ctx < self.n_tokens


class DraftCounter:
    """Counts the tokens of drafts; `parts` returns their pictures and sounds. Remembers the latest counts."""

    def __init__(self, parts: MediaParts) -> None:
        self._parts = parts
        self._counts: dict[tuple[str, str], TokenCount] = {}  # by model, and text or SHA-256

    async def count(
        self, attachment: Attachment, n_before: int, client: ChatBackend, state: ConnectionState
    ) -> TokenCount | None:
        """Return the tokens of an attachment after `n_before` tokens of chat; None for pictures and sounds that the
        model does not read, or whose tokens its engine does not count. For an engine that counts nothing, the letters
        of a text give an estimate. Raises UserError."""
        if any(not state.reads(file) for file in attachment.media):
            return None
        content = attachment.sent_content
        counts = [await self._counted(state.model, content, partial(_count_text, content, client, state))]
        try:
            for file in attachment.media:
                count = partial(self._count_file, file, client, state)
                counts.append(await self._counted(state.model, file.sha256, count))
        except RequestError:  # it has no way to count them, or refuses one: its answer says why
            return None
        n_tokens = sum(count.n_tokens for count in counts)
        is_too_large = 0 < state.n_ctx < n_before + n_tokens
        return TokenCount(n_tokens, state.n_ctx, counts[0].is_estimated, is_too_large)

    async def forecast(
        self, draft: MessageContent, n_before: int, client: ChatBackend, state: ConnectionState
    ) -> ContextForecast:
        """Return what the context is once `draft` is sent after `n_before` tokens of chat. Raises UserError."""
        marks = compose_prompt(draft.content, [replace(each, content="") for each in draft.attachments])
        counts = [await self.count(each, n_before, client, state) for each in draft.attachments]
        n_attached = sum(count.n_tokens for count in counts if count is not None)
        n_draft = (await _count_text(marks, client, state)).n_tokens
        return ContextForecast(n_before + n_attached + n_draft + _TEMPLATE_TOKENS, state.n_ctx, counts.count(None))

    async def _count_file(self, file: MediaFile, client: ChatBackend, state: ConnectionState) -> TokenCount:
        parts = await self._parts([file])
        return TokenCount(await client.count_media_tokens(tuple(parts.values()), state.model))

    async def _counted(self, model: str, content: str, count: Callable[[], Awaitable[TokenCount]]) -> TokenCount:
        key = (model, content)
        found = self._counts.pop(key, None) or await count()
        self._counts[key] = found
        while len(self._counts) > _N_REMEMBERED:
            del self._counts[next(iter(self._counts))]
        return found


async def _count_text(text: str, client: ChatBackend, state: ConnectionState) -> TokenCount:
    if not text:
        return TokenCount(0)
    try:
        return TokenCount(await client.count_tokens(text, state.model))
    except RequestError:
        return TokenCount(estimated_tokens(text), is_estimated=True)
