"""llama-server's /slots: what each slot of the engine computes, by its options and tokens.

Owns these objects. A running answer has the slot of its place in order of arrival: the engine's own slots are those of
its cache, which outlive answers. Source of the fields: `server_slot::to_json` of llama-server (2026), without prompts,
grammars and stop strings, which are other users'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NoReturn

from fastapi import Request, Response
from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.engine import request as engine_request
from app.engine.protocol.messages import AnswerProgress, BackendFacts
from app.engine.request import SamplingParams
from app.service.api.app_state import model_of
from app.service.api.llamacpp.responses import GenerationSettings, generation_settings
from app.service.http.errors import LlamaCppError, RefusedError
from app.service.http.openapi import errors
from app.service.http.routing import Router
from app.service.http.streaming import JsonResponse

router = Router()

_NONE = -1


class NextToken(TypedDict):
    """How far an answer is; `n_remain` is -1 where it has no limit."""

    has_next_token: bool
    has_new_line: bool
    n_remain: int
    n_decoded: NonNegativeInt


class SlotState(TypedDict):
    """A slot; an idle one has no task, and the default options."""

    id: NonNegativeInt
    id_task: int
    n_ctx: NonNegativeInt
    speculative: Literal[True]
    is_processing: bool
    n_prompt_tokens: NonNegativeInt
    n_prompt_tokens_processed: NonNegativeInt
    n_prompt_tokens_cache: NonNegativeInt
    params: GenerationSettings
    next_token: list[NextToken]


class _NoSlotFields(TypedDict):
    code: Literal[503]
    message: Literal["no slot available"]
    type: Literal["unavailable_error"]


class NoSlotError(TypedDict):
    """Every slot is busy."""

    error: _NoSlotFields


_NO_SLOT: NoSlotError = {"error": {"code": 503, "message": "no slot available", "type": "unavailable_error"}}
_IDLE = AnswerProgress(
    request_id="",
    arrival=_NONE,
    n_prompt_tokens=0,
    n_cached_tokens=0,
    n_computed_tokens=0,
    n_output_tokens=0,
    has_new_line=False,
)
_DEFAULTS = engine_request.Request(request_id="", prompt="")


@router.get("/slots", openapi_extra=errors(404) | errors(503, kind=NoSlotError | LlamaCppError))
async def slots(
    request: Request, model: str = "", fail_on_no_slot: str = ""
) -> JsonResponse[list[SlotState]] | Response:
    """The slots, the busy ones first; with `fail_on_no_slot` 503 where none is idle."""
    served = await model_of(request, model)
    ready, observed = await served.ready(), await served.engine.metrics()
    running = observed.running if observed else ()
    if fail_on_no_slot and len(running) >= ready.n_sequences:
        return JsonResponse(_NO_SLOT, 503)
    requests = [served.engine.running_request(answer.request_id) or _DEFAULTS for answer in running]
    return JsonResponse(slot_states(ready, running, requests))


@router.post("/slots/{slot_id}", openapi_extra=errors(501))
async def change_slot(slot_id: str) -> NoReturn:
    """Refused: the engine saves and restores states by itself."""
    cause = f"The state of slot {slot_id[:20]!r} cannot be saved, restored or erased by hand."
    raise RefusedError(501, "not_implemented", cause, "Send the prompt again: what was computed is reused.")


def slot_states(
    facts: BackendFacts, running: Sequence[AnswerProgress], requests: Sequence[engine_request.Request]
) -> list[SlotState]:
    """Return the slots of an engine with `facts`, whose `running` answers are those to `requests`."""
    busy = sorted(zip(running, requests, strict=True), key=lambda pair: pair[0].arrival)
    idle = [(_IDLE, _DEFAULTS)] * (facts.n_sequences - len(busy))
    return [_state(slot, facts.n_ctx, *pair) for slot, pair in enumerate([*busy, *idle])]


def _state(slot: int, n_ctx: int, answer: AnswerProgress, request: engine_request.Request) -> SlotState:
    is_processing = answer is not _IDLE
    n_processed = min(answer.n_computed_tokens, answer.n_prompt_tokens) - answer.n_cached_tokens
    n_remain = _NONE if request.max_tokens is None else max(0, request.max_tokens - answer.n_output_tokens)
    shown = replace(request, stop=(), sampling=_without_grammar(request.sampling))
    return {
        "id": slot,
        "id_task": answer.arrival,
        "n_ctx": n_ctx,
        "speculative": True,
        "is_processing": is_processing,
        "n_prompt_tokens": answer.n_prompt_tokens,
        "n_prompt_tokens_processed": max(0, n_processed),
        "n_prompt_tokens_cache": answer.n_cached_tokens,
        "params": generation_settings(shown),
        "next_token": [
            {
                "has_next_token": is_processing,
                "has_new_line": answer.has_new_line,
                "n_remain": n_remain,
                "n_decoded": answer.n_output_tokens,
            }
        ],
    }


def _without_grammar(sampling: SamplingParams) -> SamplingParams:
    return replace(sampling, grammar="", calls=None)
