"""How much of the context a chat will use once the draft is sent.

Owns what is counted: the engine counts the draft, and each attachment once. The chat before it was counted with its
answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.chat.attachments.prompt import compose_prompt
from app.chat.conversation import Attachment, Draft
from quantizer.errors import RequestError
from tui.chat.conversation import estimated_tokens
from tui.connection import ChatBackend, ConnectionState

__all__ = ["ContextForecast", "DraftCounter"]

_TEMPLATE_TOKENS = 8  # what the chat template writes around a question, and before its answer


@dataclass(frozen=True, slots=True)
class ContextForecast:
    """The tokens in the context after sending, of `n_ctx`; 0 is unknown."""

    n_tokens: int
    n_ctx: int

    @property
    def is_too_long(self) -> bool:
        """Whether the question does not fit, an answer not included."""
        return 0 < self.n_ctx < self.n_tokens

    @property
    def text(self) -> str:
        limit = f"/{self.n_ctx}" if self.n_ctx else ""
        return f"{'too long' if self.is_too_long else 'after sending'}: ≈{self.n_tokens}{limit} tokens"


class DraftCounter:
    """Counts the tokens of drafts. Remembers the counts of the last draft's attachments."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}  # by model and text

    async def forecast(
        self, draft: Draft, n_before: int, client: ChatBackend, state: ConnectionState
    ) -> ContextForecast:
        """Return what the context is once `draft` is sent after `n_before` tokens of chat. Raises UserError.

        For an engine that counts nothing, the letters give an estimate.
        """
        model = state.model
        marks = compose_prompt(draft.text, [Attachment(each.name, "") for each in draft.attachments])
        contents = {(model, each.content) for each in draft.attachments}
        self._counts = {key: n_tokens for key, n_tokens in self._counts.items() if key in contents}
        for key in contents - self._counts.keys():
            self._counts[key] = await _count(client, key[1], model)
        n_attached = sum(self._counts[model, each.content] for each in draft.attachments)
        n_draft = await _count(client, marks, model)
        return ContextForecast(n_before + n_attached + n_draft + _TEMPLATE_TOKENS, state.n_ctx)


async def _count(client: ChatBackend, text: str, model: str) -> int:
    try:
        return await client.count_tokens(text, model)
    except RequestError:
        return estimated_tokens(text)
