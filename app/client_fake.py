"""A scripted stand-in for `app.client.ServiceClient`: same calls, no service, no clock, no chance.

Owns what a test says the service does. Knows nothing of HTTP or of who asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from app.client import Completed, GenerationOptions, Message, ModelStatus, ServiceStatus, TextDelta
from quantizer.errors import UserError

__all__ = ["COMPLETED", "LOADING", "READY", "ScriptedClient", "ScriptedReply"]

COMPLETED = Completed(
    finish_reason="stop",
    n_prompt_tokens=40,
    n_cached_tokens=0,
    n_output_tokens=12,
    time_to_first_token_s=0.25,
    prefill_tokens_per_s=160.0,
    decode_tokens_per_s=48.0,
)
READY = ModelStatus(id="guide", state="ready", progress=1.0, n_ctx=2048, notices=(), error=None)
LOADING = replace(READY, state="loading", progress=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """One answer. After `pause_after` deltas it waits until `ScriptedClient.resume` is called."""

    deltas: tuple[str, ...] = ()
    ending: Completed | UserError = COMPLETED
    pause_after: int | None = None


class ScriptedClient:
    """Answers the n-th question with the n-th reply; the last reply serves all later ones.

    `model` is what `status` reports. `requests` are the conversations it was sent, `n_aborted` counts answers that were
    closed before their end, `n_opened` and `n_closed` count uses of `opened`.
    """

    def __init__(self, *replies: ScriptedReply, model: ModelStatus = READY) -> None:
        self.model = model
        self.requests: list[tuple[Message, ...]] = []
        self.n_aborted = 0
        self.n_opened = 0
        self.n_closed = 0
        self._replies = replies or (ScriptedReply(deltas=("Hello.",)),)
        self._may_go_on = asyncio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ScriptedClient]:
        """Stand in for `app.launcher.open_service`."""
        self.n_opened += 1
        try:
            yield self
        finally:
            self.n_closed += 1

    def resume(self) -> None:
        """Let a paused answer go on."""
        self._may_go_on.set()

    async def status(self) -> ServiceStatus:
        """Return `model` as the service's only model."""
        return ServiceStatus(version="0", default_model=self.model.id, models=(self.model,))

    async def load(self, model: str, when_unfit: str = "") -> str:  # noqa: ARG002 - the one model stands for every name
        """Return the id of the only model."""
        return self.model.id

    async def chat(
        self,
        messages: Sequence[Message],
        model: str = "",  # noqa: ARG002 - the script answers, whatever is asked for
        options: GenerationOptions | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[TextDelta | Completed, None]:
        """Yield the scripted answer, waiting for the model to be ready as the service does."""
        self.requests.append(tuple(messages))
        reply = self._replies[min(len(self.requests), len(self._replies)) - 1]
        is_whole = False
        try:
            for index, delta in enumerate(reply.deltas):
                if index == reply.pause_after:
                    await self._paused()
                yield TextDelta(delta, n_tokens=index + 1)
            if reply.pause_after is not None and reply.pause_after >= len(reply.deltas):
                await self._paused()
            is_whole = True
            if isinstance(reply.ending, UserError):
                raise reply.ending
            yield reply.ending
        finally:
            self.n_aborted += not is_whole

    async def _paused(self) -> None:
        self._may_go_on.clear()
        await self._may_go_on.wait()
