"""The second model of an agent: a smaller and faster one for its small tasks, where it fits beside the main one.

Which models of the library may be it is decided purely. Whether one fits is the service's answer, which plans for it as
it would to load it; nothing is guessed and nothing is unloaded for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from app.client.service_client import ServiceClient
from app.launch.agents import SmallTasks, TargetModel
from app.launch.plan import SmallModel
from app.protocol.library import LocalModel
from app.protocol.status import Evictions
from app.settings.settings import GUIDE
from quantizer.system.errors import UserError

# Bounds of judgement, not measured: of the main model's bytes, and how many times as fast as it.
_MOST_SHARE, _LEAST_SHARE = 0.5, 1 / 40
_LEAST_GAIN = 1.2
_MOST_ASKED = 3  # each plan reads a file's header
_LIST_TIMEOUT_S, _LIST_INTERVAL_S = 10.0, 0.2


def small_candidates(
    models: Sequence[LocalModel], main: LocalModel, tasks: SmallTasks, n_ctx: int
) -> tuple[LocalModel, ...]:
    """Return those of `models` that may do the small `tasks` of an agent whose model is `main`, the largest first: half
    its bytes at most, faster where that is known, trained on `n_ctx` tokens, with the template that is needed."""

    def is_one(model: LocalModel) -> bool:
        has_template = model.has_tools if tasks.needs_tools else model.has_chat_template
        is_sound = not (model.damaged or model.mismatch or model.is_arriving)
        return (
            _is_small(model, main)
            and is_sound
            and has_template
            and model.n_ctx_train >= n_ctx
            and _gain(model, main) >= _LEAST_GAIN
        )

    return tuple(sorted(filter(is_one, models), key=lambda model: -model.n_bytes))


def _is_small(model: LocalModel, main: LocalModel) -> bool:
    """Return what is known at once, before a header is read. The guide knows localllm and nothing else."""
    return model.id != GUIDE and _LEAST_SHARE * main.n_bytes <= model.n_bytes <= _MOST_SHARE * main.n_bytes


def _gain(model: LocalModel, main: LocalModel) -> float:
    """Return how many times as fast as `main` the model decodes; infinite where that is not known."""
    rates = [each.fit.decode_tps if each.fit else None for each in (model, main)]
    return rates[0] / rates[1] if rates[0] and rates[1] else float("inf")


async def choose_small_model(client: ServiceClient, main: str, tasks: SmallTasks, n_main_ctx: int) -> SmallModel:
    """Return the largest model that may do `tasks` and fits beside `main`, which is loaded with `n_main_ctx` tokens;
    without a model where there is none. Loads nothing."""
    n_ctx, why_not = tasks.n_ctx or n_main_ctx, ""
    models, known = await _local_models(client, main)
    candidates = small_candidates(models, known, tasks, n_ctx) if known else ()
    for each in candidates[:_MOST_ASKED]:
        found = await client.evictions(each.id, n_ctx)
        if found.runs and not found.models:
            reason = f"{each.id} with {n_ctx:,} tokens of context, which fits beside {main}"
            return SmallModel(TargetModel(each.id, n_ctx), reason)
        why_not = why_not or f"for {each.id} with {n_ctx:,} tokens of context {_obstacle(found)}"
    if known is None:
        return SmallModel(None, f"{main} too: it is not in the library, so that no other can be compared with it")
    template = "whose template takes tools" if tasks.needs_tools else "with a chat template"
    missing = f"the library has no faster one of at most half its size {template}, trained on {n_ctx:,} tokens"
    return SmallModel(None, f"{main} too: {why_not or missing}")


def _obstacle(found: Evictions) -> str:
    return f"{', '.join(found.models)} would be unloaded" if found.runs else "there is not enough memory"


async def load_small_model(client: ServiceClient, wanted: TargetModel, main: str) -> SmallModel | None:
    """Load `wanted`, and return None if that went as planned, or the choice of `main` with the reason."""
    try:
        context = await client.lengthen_context(wanted.id, wanted.n_ctx)
    except UserError as error:
        return SmallModel(None, f"{main} too: {wanted.id} could not be loaded. {error.cause}")
    if context.n_ctx < wanted.n_ctx:
        return SmallModel(None, f"{main} too: {wanted.id} got {context.n_ctx:,} tokens of context of {wanted.n_ctx:,}")
    return None


async def _local_models(client: ServiceClient, main: str) -> tuple[tuple[LocalModel, ...], LocalModel | None]:
    """Return the library, and of it the model that answers to `main`. What is read of it in the background is waited
    for, some seconds at most, if there are small models: a second one is a gain, not a need."""
    deadline_s = time.monotonic() + _LIST_TIMEOUT_S
    while True:
        found = await client.library.models()
        known = next((model for model in found.models if main in (model.loaded_as, model.id)), None)
        has_small = known is not None and any(_is_small(model, known) for model in found.models)
        if found.is_complete or not has_small or time.monotonic() > deadline_s:
            return found.models, known
        await asyncio.sleep(_LIST_INTERVAL_S)
