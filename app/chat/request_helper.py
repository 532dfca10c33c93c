"""What servers of others get of a chat during a call, once the person agreed: a filled form, an answer of its model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing

from app.chat.state import ChatState
from app.protocol.chat import AnswerDelta, Completed, GenerationOptions, Message
from app.tools.server_requests import Form, FormValue, SampledText, SamplingRequest


class ChatHelper:
    """Implements `app.tools.server_requests.RequestHelper`."""

    def __init__(self, chat: ChatState) -> None:
        self._chat = chat

    async def fill(self, form: Form) -> Mapping[str, FormValue] | None:
        return await self._chat.approvals.fill(form)

    async def sample(self, request: SamplingRequest) -> SampledText:
        """Return an answer to the request alone: a server reads nothing of the chat by it. Its tokens are few, so the
        model does not think first, and nothing of it is kept."""
        chat = self._chat
        client, model = await chat.client(), chat.model
        system = (Message("system", request.system),) if request.system else ()
        options = GenerationOptions(
            temperature=request.temperature,
            max_tokens=request.max_tokens,
            stop=request.stop or None,
            think="off" if chat.known_model is not None and chat.known_model.thinks else None,
            prompt_cache_retention="in_memory",
        )
        parts: list[str] = []
        is_cut = False
        async with aclosing(client.chat((*system, *request.messages), model=model, options=options)) as events:
            async for event in events:
                if isinstance(event, AnswerDelta):
                    parts.append(event.text)
                elif isinstance(event, Completed):
                    is_cut = event.finish_reason == "length"
        return SampledText("".join(parts), model, is_cut)
