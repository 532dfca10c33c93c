"""One turn of a model, measured: how long it waits, how fast its prompt is computed and its answer comes.

Owns the measurement. Knows nothing of what it means.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from app.bench.client import Answer, Client
from app.bench.prose import calibrated_prose
from app.client import ModelStatus
from app.keys import own_key
from app.launcher import load_model, open_service
from app.settings import Settings
from quantizer.errors import ServiceError

__all__ = ["Turn", "measured_turn"]

_N_PROMPT, _N_ANSWER = 512, 48


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds of waiting behind `n_ahead` answers, and tokens a second."""

    queue_s: float
    n_ahead: int
    prefill_tps: float
    decode_tps: float


async def measured_turn(model: str, settings: Settings, on_status: Callable[[ModelStatus], None]) -> Turn:
    """Ask `model` for one answer, of the service that runs or of one for this. Raises what makes that fail."""
    async with open_service(settings, model) as service:
        status = await load_model(service, model, on_status)
        async with Client(service.base_url, status.id, own_key(settings)) as client:
            prose = await calibrated_prose(client, secrets.randbits(32))
            now = (await service.status()).model(status.id)
            prompt = prose.tokens(min(_N_PROMPT, status.n_ctx // 2))
            answer = await client.complete(prompt, _N_ANSWER, temperature=0.8, seed=prose.seed(), ignore_eos=True)
    occupancy = now.occupancy if now else None
    return _turn(answer, occupancy.n_running + occupancy.n_waiting if occupancy else 0)


def _turn(answer: Answer, n_ahead: int) -> Turn:
    if not answer.prefill_rate:
        raise ServiceError("The service did not say how fast it computed the prompt.", "Update the service that runs.")
    computing_s = (answer.n_prompt - answer.n_cached) / answer.prefill_rate
    return Turn(max(0.0, answer.first_token_s - computing_s), n_ahead, answer.prefill_rate, answer.decode_rate)
