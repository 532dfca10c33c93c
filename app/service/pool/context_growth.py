"""A longer context for an engine: it is loaded again where a request needs more than the context it was loaded with.

A context that the user chose stays. `LoadQueue.fits` knows whether there is memory for a longer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from app.common.event_log import log_event
from app.engine.messages import EngineConfig
from app.engine.request import Request
from app.protocol.errors import ContextOverflowError
from app.service.pool.engine_client import EngineClient
from app.service.pool.memory import LoadQueue
from quantizer.system.errors import UserError

_USUAL_ROOM = 2048  # most turns of agents and most thoughts are shorter
_STEP = 1024
_NO_LIMIT = 1 << 40
_N_LENGTHS = 8  # of a context that is wanted before a prompt needs it: all of it, seven eighths …


def context_sizes(n_prompt: int, n_answer: int, n_ctx_train: int) -> Sequence[int]:
    """Return the contexts to try, a roomy one first, then just enough: each holds the prompt and at least one token of
    the answer, and none is longer than the model was trained for."""
    n_wanted = n_prompt + n_answer
    roomy, narrow = 1 << (n_wanted - 1).bit_length(), -(-n_wanted // _STEP) * _STEP
    sizes = [min(n_ctx, roomy, n_ctx_train) for n_ctx in (roomy, narrow)]
    return [n_ctx for n_ctx in dict.fromkeys(sizes) if n_ctx > n_prompt]


def lengths_to_try(n_ctx: int, n_ctx_now: int, n_ctx_train: int) -> Sequence[int]:
    """Return the contexts to try where `n_ctx` tokens are wanted, the longest first, each longer than the present one
    and none longer than the model was trained for, if that is known."""
    n_most = min(n_ctx, n_ctx_train) if n_ctx_train else n_ctx
    lengths = [n_most, *(n_ctx * eighths // _N_LENGTHS // _STEP * _STEP for eighths in range(_N_LENGTHS - 1, 0, -1))]
    return [length for length in lengths if n_ctx_now < length <= n_most]


def room_for_answer(request: Request) -> int:
    """Return how many tokens the answer to `request` should find room for; whoever sends token ids has counted."""
    n_usual = _USUAL_ROOM if isinstance(request.prompt, str) else 1
    return max(1, n_usual if request.max_tokens is None else min(request.max_tokens, _USUAL_ROOM))


class ContextGrowth:
    """The context of `engine`, which grows with what requests need as far as training and memory allow. Growing waits
    for the answers that run, and blocks new ones meanwhile. A load that fails is undone, and as long a context is not
    tried again."""

    def __init__(self, engine: EngineClient, queue: LoadQueue) -> None:
        self._engine = engine
        self._queue = queue
        self._turn = asyncio.Lock()
        self._became_idle = asyncio.Event()
        self._n_ctx = 0  # which was chosen here, if any
        self._n_ctx_failed = _NO_LIMIT
        self._loading: asyncio.Task[str] | None = None
        self._is_growing = False
        self._is_refused = False  # since the engine was loaded

    def on_idle(self) -> None:
        self._became_idle.set()

    def on_unloaded(self) -> None:
        self._is_refused = False  # the next load may find more memory

    @property
    def is_possible(self) -> bool:
        return self._is_chosen_here and not self._is_refused

    @property
    def _is_chosen_here(self) -> bool:
        return self._engine.config.n_ctx in (0, self._n_ctx)

    async def make_room(self, overflow: ContextOverflowError, n_answer: int, n_ctx_train: int) -> str:
        """Load the engine again so that the prompt of `overflow` fits with an answer of `n_answer` tokens. Return what
        to tell about it; "" where nothing was done, because another request has made room, or there is none and the
        prompt alone fits. Raises the overflow with what the user can do where the prompt cannot fit."""
        n_prompt = overflow.n_prompt_tokens
        n_wanted, sizes, remedy = n_prompt + n_answer, context_sizes(n_prompt, n_answer, n_ctx_train), ""
        async with self._turn:
            if self._has(n_wanted):
                return ""
            # Where no memory would help:
            if n_ctx_train and not sizes:
                remedy = f"Shorten it, or use another model: this one was trained on {n_ctx_train:,} tokens of context."
            elif not self._is_chosen_here or not n_ctx_train:
                n_ctx = sizes[0] if sizes else 1 << (n_wanted - 1).bit_length()
                remedy = f"Shorten it, start a new chat, or load the model with --ctx {n_ctx}."
            n_ctx = 0 if remedy else await self._fitting(sizes, more_than=overflow.n_ctx)
            if n_ctx:
                cause = f"a prompt has {n_prompt:,} tokens"
                remedy = await self._load_with(n_ctx, n_wanted, overflow.n_ctx, cause)
            if n_ctx and not remedy:
                self._is_refused = False
                if self._engine.config.n_ctx != n_ctx:  # another request has made room meanwhile
                    return ""
                return (
                    f"The model was loaded again with {n_ctx:,} tokens of context instead of {overflow.n_ctx:,}, "
                    f"because this prompt has {n_prompt:,}; --ctx {n_ctx} does so from the start."
                )
        self._is_refused = True
        if n_prompt < overflow.n_ctx:
            return ""
        remedy = remedy or (
            f"A context of {sizes[-1]:,} tokens does not fit into the free memory: shorten it, start a "
            "new chat, or use --kv-type q8_0 or a smaller model."
        )
        raise ContextOverflowError(n_prompt, overflow.n_ctx, remedy)

    async def lengthen(self, n_ctx: int, n_ctx_train: int) -> str:
        """Load the engine again with `n_ctx` tokens, or as many as fit, before a prompt needs them. Return why the
        context stays shorter than that, "" where it is as long."""
        async with self._turn:
            facts = self._engine.status.facts
            n_now = facts.n_ctx if facts is not None else 0
            if n_now >= n_ctx:
                return ""
            if not self._is_chosen_here:
                return f"it was loaded with --ctx {n_now}"
            length = await self._fitting(lengths_to_try(n_ctx, n_now, n_ctx_train), more_than=n_now)
            if length and (remedy := await self._load_with(length, n_ctx, n_now, f"{n_ctx:,} tokens are wanted")):
                return remedy
            if n_ctx_train and max(length, n_now) >= n_ctx_train:
                return f"it was trained on {n_ctx_train:,}"
            return "" if length == n_ctx else "there is no free memory for more"

    def _has(self, n_ctx: int) -> bool:
        facts = self._engine.status.facts
        return facts is not None and facts.n_ctx >= n_ctx

    async def settle(self) -> None:
        """Before a load: return to the usual context where the memory for the longer one is gone."""
        is_longer = bool(self._n_ctx) and self._engine.config.n_ctx == self._n_ctx
        if is_longer and not self._is_growing and not await self._queue.fits(self._engine, self._engine.config):
            self._engine.config = replace(self._engine.config, n_ctx=0)
            self._n_ctx = 0

    async def _fitting(self, sizes: Sequence[int], *, more_than: int) -> int:
        for n_ctx in sizes:
            config = replace(self._engine.config, n_ctx=n_ctx, n_cells=0)
            if more_than < n_ctx < self._n_ctx_failed and await self._queue.fits(self._engine, config):
                return n_ctx
        return 0

    async def _load_with(self, n_ctx: int, n_wanted: int, n_before: int, cause: str) -> str:
        """Load the engine with `n_ctx` once its answers have ended, unless `n_wanted` are there by then. Return what
        helps where that fails. `cause` is logged."""
        engine = self._engine
        with engine.closed():
            while engine.is_busy:
                self._became_idle.clear()
                await self._became_idle.wait()
            if self._has(n_wanted):
                return ""
            before = engine.config
            grows = f"its context grows from {n_before:,} to {n_ctx:,}"
            log_event("service", f"{engine.model_path.name} is loaded again: {cause}, so {grows}.")
            self._n_ctx, self._is_growing = n_ctx, True
            self._reload(replace(before, n_ctx=n_ctx, n_cells=0))
        # A client that goes away meanwhile must not leave a context behind that does not load.
        self._loading = asyncio.create_task(self._loaded(n_ctx, before))
        return await asyncio.shield(self._loading)

    async def _loaded(self, n_ctx: int, before: EngineConfig) -> str:
        try:
            await self._engine.ready()
        except UserError as error:
            self._n_ctx_failed, self._n_ctx = n_ctx, before.n_ctx
            self._reload(before)
            return f"Shorten it: a context of {n_ctx:,} tokens could not be loaded. {error.cause}"
        finally:
            self._is_growing = False
        return ""

    def _reload(self, config: EngineConfig) -> None:
        self._engine.reload(lambda _: config, until_unloaded=self._engine.has_temporary_config)
