"""A chat that goes on turn by turn.

Owns the messages. Knows nothing of what is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.bench.client import Answer, Client, Message
from app.bench.prose import Prose

__all__ = ["Conversation"]

_SYSTEM_TOKENS = 600
_USER_WORDS = 40
_ANSWER_TOKENS = 48


@dataclass(slots=True)
class Conversation:
    """`messages` as they are sent; each turn appends the user's and the model's."""

    messages: list[Message]

    @classmethod
    def fresh(cls, prose: Prose) -> Conversation:
        """Begin one with a system prompt of 600 tokens of its own."""
        return cls([{"role": "system", "content": prose.tokens(_SYSTEM_TOKENS)}])

    def sibling(self) -> Conversation:
        """Begin another one with the same system prompt."""
        return Conversation(self.messages[:1])

    async def turn(self, client: Client, prose: Prose) -> Answer:
        """Say 40 words and wait for an answer of 48 tokens."""
        self.messages.append({"role": "user", "content": prose.words(_USER_WORDS).strip()})
        sampling = {"temperature": 0.8, "top_k": 40, "seed": prose.seed(), "ignore_eos": True}
        answer = await client.chat(self.messages, _ANSWER_TOKENS, **sampling)
        self.messages.append({"role": "assistant", "content": answer.text})
        return answer
