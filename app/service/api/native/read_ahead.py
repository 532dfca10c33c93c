"""The route by which a client lets a model read what it is certain to ask, while the question is still written."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from starlette.requests import Request

from app.protocol.chat import PromptProgress
from app.service.api.app_state import app_state, model_of, turn_of
from app.service.api.native.status import error_body
from app.service.api.openai.requests import ChatCompletionBody
from app.service.api.text_request import with_model_defaults
from app.service.generation.progress import prompt_progress, with_progress
from app.service.generation.read_ahead import read_ahead_request
from app.service.http.routing import Router, errors
from app.service.http.streaming import DONE_EVENTS, EventStream

router = Router()


@router.post("/api/localllm/read-ahead", refusals=errors(404))
async def read_ahead(request: Request, body: ChatCompletionBody) -> EventStream[PromptProgress]:
    """Read what a question is certain to begin with: the body of a chat whose last message is not finished.

    The events say how much is read; the last one has all of it, unless a question came first. There are none where the
    model is not loaded, answers somebody or has no room, on battery, and where the settings forbid it. Closing the
    stream ends it; what was read stays in the cache.
    """
    model = await model_of(request, body.model or "")
    turn = await turn_of(app_state(request), model, with_model_defaults(body, model.file).turn)

    async def events() -> AsyncGenerator[PromptProgress, None]:
        wanted = await read_ahead_request(model, turn) if model.may_read_ahead else None
        if wanted is None:
            return
        progress = partial(prompt_progress, model, wanted.request_id)
        async with aclosing(with_progress(model.read_ahead(wanted), progress, only_growth=True)) as parts:
            async for part in parts:
                if isinstance(part, PromptProgress):
                    yield part
                else:
                    n_tokens = part.n_prompt_tokens
                    yield PromptProgress(n_tokens=n_tokens, n_cached=part.n_cached_tokens, n_read=n_tokens)

    return EventStream(events(), error_body, DONE_EVENTS)
