"""The engines of the service: one for a file, shared by all names of that file.

Decides which engine a name gets and how the settings make it (invalid ones are refused). An engine stays loaded while
one of its names holds it: during requests, and for an idle time after them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from app.engine.messages import EngineConfig, UnfitPolicy
from app.library.local.index import MISMATCH_REMEDY, Index
from app.library.local.model_files import FileIdentity, ModelRef, identity_of
from app.protocol.errors import RequestError
from app.service.models.model_file import Attachments, ModelFile
from app.service.pool.background import IdleTuning, PrefillAhead
from app.service.pool.context_growth import ContextGrowth
from app.service.pool.engine_client import EngineClient, EngineOwner
from app.service.pool.memory import LoadQueue, Memory
from app.service.pool.worker_process import StartWorker
from app.settings.parsing import parse_byte_size, parse_duration, parse_rpc_endpoints
from app.settings.private_files import CORPORA
from app.settings.settings import NO_DRAFT, Settings
from offload.footprint.kv_cache import DEFAULT_N_CTX
from quantizer.system.errors import UsageError
from quantizer.system.process import python_command

CopyWanted: TypeAlias = Callable[[Path, str], None]

_FIRST_USE_S = 60.0  # from loading to the first use: who loads a model beforehand is about to ask it


@dataclass(frozen=True, slots=True)
class EngineKey:
    """What names have in common that share an engine: the file, and what changes its answers when it is loaded. `n_ctx`
    is the context that a recipe asks for beyond the usual one, else 0. `projector` identifies the file that lets it see
    or hear. A draft model changes no answer."""

    identity: FileIdentity
    lora: tuple[tuple[str, str], ...] = ()
    control_vectors: tuple[tuple[str, float], ...] = ()
    n_ctx: int = 0
    projector: FileIdentity = ()


@dataclass(frozen=True, slots=True)
class IdleLimit:
    """The idle time that a request sets: `idle_s` seconds, None for no end."""

    idle_s: float | None


class KeepAlive:
    """Holds `engine` from a use on until it was idle for `idle_s`; None holds it until another model needs the memory.

    A limit that a request sets is one of the present hold: the next one begins with the usual limit again, as Ollama's
    does (source: its server/sched.go, 0.33: `load` starts from the default). `on_release` is called at the end of each
    hold. `loop` is the clock, the running loop by default.
    """

    def __init__(
        self,
        engine: EngineClient,
        idle_s: float | None,
        on_release: Callable[[], object],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._loop = loop
        self._engine = engine
        self._usual_idle_s = self._idle_s = idle_s
        self._on_release = on_release
        self._n_uses = 0
        self._n_requests = 0
        self._is_held = False
        self._awaits_use = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_used(self) -> bool:
        """Whether a request uses the engine under this name, or waits for it."""
        return self._n_uses > 0

    @property
    def is_holding(self) -> bool:
        return self._n_uses > 0 or self._is_held

    @property
    def expires_s(self) -> float | None:
        """The time since 1970 at which the hold ends without another request; None for no end."""
        if self._idle_s is None:
            return None
        left_s = self._timer.when() - self._clock.time() if self._timer is not None else self._idle_time_s
        return time.time() + left_s

    @contextmanager
    def in_use(self, limit: IdleLimit | None = None) -> Iterator[None]:
        """Hold the engine inside the context, and for the idle time after it; `limit` replaces that time."""
        self._n_uses += 1
        self._awaits_use = False
        if limit is not None:
            self._idle_s = limit.idle_s
        self._stop_timer()
        try:
            yield
        finally:
            self._n_uses -= 1
            self._is_held = self._engine.status.state != "unloaded"
            self._forget_limit()
            self.restart_timer()

    @contextmanager
    def in_request(self) -> Iterator[None]:
        """Keep the hold inside the context, where one request may use the engine several times, or not at all."""
        self._n_requests += 1
        try:
            yield
        finally:
            self._n_requests -= 1
            self.ensure_timer()

    def hold(self) -> None:
        """Hold the engine for its first use, at least a minute; the timer starts when it is idle next."""
        self._is_held = self._awaits_use = True

    def set_idle_limit(self, idle_s: float | None) -> None:
        """Hold for that many idle seconds from the next idle time on; None holds until the memory is needed."""
        self._idle_s = idle_s
        self._awaits_use = False

    def set_usual_limit(self, idle_s: float | None) -> None:
        self._usual_idle_s = idle_s
        self.set_idle_limit(idle_s)

    def expire(self) -> None:
        """End the present hold at once, or after the uses and requests that have begun."""
        if self.is_holding:
            self.set_idle_limit(0)
            self.restart_timer()

    def restart_timer(self) -> None:
        """Count idle seconds from now on, if the engine is held and not in use."""
        self._stop_timer()
        is_idle = not (self._n_uses or self._n_requests) and self._engine.status.state == "ready"
        if self._idle_s is not None and self._is_held and is_idle:
            self._timer = self._clock.call_later(self._idle_time_s, self._end_idle_time)

    def ensure_timer(self) -> None:
        if self._timer is None:
            self.restart_timer()

    def release(self) -> None:
        self.clear()
        self._on_release()

    def clear(self) -> None:
        """Note that the engine was unloaded; a use that waits for it goes on waiting."""
        self._stop_timer()
        self._is_held = False
        self._forget_limit()

    def _end_idle_time(self) -> None:
        self._timer = None
        if not self._n_requests:
            self.release()

    def _forget_limit(self) -> None:
        """Return to the usual limit, unless a hold with a limit of its own goes on."""
        if not self.is_holding:
            self._idle_s = self._usual_idle_s

    @property
    def _idle_time_s(self) -> float:
        assert self._idle_s is not None
        return max(self._idle_s, _FIRST_USE_S) if self._awaits_use else self._idle_s

    @property
    def _clock(self) -> asyncio.AbstractEventLoop:
        return self._loop or asyncio.get_running_loop()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class SharedEngine(EngineOwner):
    """The engine of a file with the names that it answers under; without names at first."""

    def __init__(
        self,
        path: Path,
        identity: FileIdentity,
        config: EngineConfig,
        start_worker: StartWorker,
        queue: LoadQueue,
        tuning: IdleTuning,
        cache_dir: Path,
        on_copy_wanted: CopyWanted,
    ) -> None:
        self.identity = identity
        self._cache_dir = cache_dir
        self._on_copy_wanted = on_copy_wanted
        self.engine = EngineClient(path, config, start_worker, self)
        self.prefill_ahead = PrefillAhead(self.engine)
        self.growth = ContextGrowth(self.engine, queue)
        self._queue = queue
        self._tuning = tuning
        self._holds: dict[ModelRef, KeepAlive] = {}

    @property
    def has_names(self) -> bool:
        return bool(self._holds)

    def add_name(self, ref: ModelRef, idle_s: float | None) -> KeepAlive:
        hold = self._holds[ref] = KeepAlive(self.engine, idle_s, self._unload_unheld)
        return hold

    def remove_name(self, ref: ModelRef) -> None:
        """Stop answering under the name of `ref`; the engine stays while another name holds it."""
        self._holds.pop(ref).release()

    async def stop(self) -> None:
        self.prefill_ahead.cancel()
        self.on_unloaded()
        await self.engine.stop()

    async def admit(self, engine: EngineClient) -> None:
        # Names are removed and replaced: a path that is still the file's, else the last one.
        paths, last = tuple(ref.path for ref in self._holds), engine.model_path
        engine.model_path = await asyncio.to_thread(
            lambda: next((path for path in paths if identity_of(path) == self.identity), last)
        )
        await self.growth.settle()
        await self._queue.admit(engine)

    async def load_notices(self, engine: EngineClient) -> tuple[str, ...]:
        def mismatch() -> str:
            with Index(self._cache_dir) as index:
                return index.mismatch(engine.model_path)

        found = await asyncio.to_thread(mismatch)
        return (f"`localllm verify` found a damaged file: {found} {MISMATCH_REMEDY}",) if found else ()

    def on_work(self) -> None:
        self._tuning.interrupt()

    def on_idle(self) -> None:
        plan = self.engine.status.plan if self.engine.status.state == "ready" else None
        for draft in plan.drafts if plan is not None and self.engine.config.uses_copy else ():
            if draft.file_type and draft.pays:  # the worker found no copy, and one would pay
                self._on_copy_wanted(self.engine.model_path, draft.file_type)
        self._queue.look_again()
        self.growth.on_idle()
        for hold in self._holds.values():
            hold.ensure_timer()
        self._unload_unheld()

    def on_worker_ended(self) -> None:
        self._queue.look_again()

    def on_unloaded(self) -> None:
        self.growth.on_unloaded()
        for hold in self._holds.values():
            hold.clear()

    def on_eviction(self) -> None:
        self.prefill_ahead.cancel()

    def _unload_unheld(self) -> None:
        if not any(hold.is_holding for hold in self._holds.values()):
            self.prefill_ahead.cancel()
            self.engine.unload()  # a busy engine is asked again when it is idle


class EnginePool:
    """Engines in `memory`, in workers of `start_worker`; `tuning` measures each file once, in idle times. Where a
    low-bit copy of a model would draft for it, `on_copy_wanted` is called with the model and a type."""

    def __init__(
        self,
        settings: Settings,
        start_worker: StartWorker,
        memory: Memory,
        tuning: IdleTuning,
        on_copy_wanted: CopyWanted = lambda _path, _file_type: None,
    ) -> None:
        self._settings = settings
        self._start_worker = start_worker
        self._tuning = tuning
        self._on_copy_wanted = on_copy_wanted
        self._shared: dict[EngineKey, SharedEngine] = {}
        self._queue = LoadQueue(memory, lambda: [shared.engine for shared in self._shared.values()])

    @property
    def is_busy(self) -> bool:
        return any(shared.engine.is_busy for shared in self._shared.values())

    def engine_for(
        self, path: Path, file: ModelFile, attached: Attachments, when_unfit: UnfitPolicy | None
    ) -> SharedEngine:
        """Return the engine of `file`, a new one at `path` if none is loaded alike: with `when_unfit`, None is the
        policy of the settings. Raises UsageError."""
        projector = identity_of(Path(file.projector_path)) if file.projector_path else ()
        # A longer context than a recipe asks for changes no answer, and no shorter one is made for all names of a file.
        usual_n_ctx = self._settings.ctx or min(file.n_ctx_train or DEFAULT_N_CTX, DEFAULT_N_CTX)
        n_ctx = file.recipe_n_ctx if file.recipe_n_ctx > usual_n_ctx else 0
        key = EngineKey(file.identity, attached.lora, attached.control_vectors, n_ctx, projector)
        if key not in self._shared:
            is_known = any(shared.identity == file.identity for shared in self._shared.values())
            if self._settings.idle_tune and self._settings.engine == "llama" and not is_known:
                threads = str(self._settings.threads)
                if not self._shared:  # of the machine, so once
                    self._tuning.add(python_command("app.engine.tuning.type_tuner", threads, "--idle"))
                self._tuning.add(python_command("app.engine.tuning.tuner", str(path), threads, "--idle"))
            config = _engine_config(self._settings, file, attached, key.n_ctx, when_unfit)
            parts = (config, self._start_worker, self._queue, self._tuning, self._settings.cache_dir)
            shared = SharedEngine(path, key.identity, *parts, self._on_copy_wanted)
            self._shared[key] = shared
        return self._shared[key]

    async def evicted_for(
        self, path: Path, file: ModelFile, attached: Attachments, n_ctx: int
    ) -> list[EngineClient] | None:
        """Return which engines would be unloaded to load `file`, at `path`, with a context of `n_ctx` tokens, 0 for the
        usual one; None where it would not run even alone. Opens and loads nothing. Raises as `LoadQueue.evicted_for`.
        """
        n_ctx = max(n_ctx, self._settings.ctx, file.recipe_n_ctx)  # it is never loaded with less than these
        return await self._queue.evicted_for(path, _engine_config(self._settings, file, attached, n_ctx, None))

    async def remove_name(self, shared: SharedEngine, ref: ModelRef) -> None:
        shared.remove_name(ref)
        if not shared.has_names:
            self._shared = {key: other for key, other in self._shared.items() if other is not shared}
            await shared.stop()

    async def close(self) -> None:
        await asyncio.gather(*(shared.stop() for shared in self._shared.values()))


def keep_alive_s(settings: Settings) -> float | None:
    """Return how long an idle model stays loaded after a request, None for no limit. Raises UsageError."""
    try:
        return parse_duration(settings.keep_alive)
    except RequestError as error:
        raise UsageError(f"keep_alive is {settings.keep_alive!r}.", error.remedy) from None


def _engine_config(
    settings: Settings, file: ModelFile, attached: Attachments, n_ctx: int, when_unfit: UnfitPolicy | None
) -> EngineConfig:
    try:
        usual = UnfitPolicy(settings.when_unfit)
    except ValueError:
        known = ", ".join(UnfitPolicy)
        raise UsageError(f"when_unfit is {settings.when_unfit!r}, which is unknown.", f"Known: {known}.") from None
    return EngineConfig(
        n_ctx=n_ctx or settings.ctx,
        kv_type=settings.kv_type,
        context_shift=settings.context_shift,
        is_deterministic=settings.deterministic_answers,
        max_bytes=parse_byte_size(settings.max_memory) if settings.max_memory else 0,
        n_threads=settings.threads,
        n_sequences=settings.parallel,
        uses_gpu=settings.gpu,
        numa=settings.numa,
        rpc=parse_rpc_endpoints(settings.rpc),
        when_unfit=when_unfit or usual,
        lora=attached.lora,
        control_vectors=attached.control_vectors,
        draft_path=attached.draft_path,
        finds_head=settings.draft != NO_DRAFT,
        uses_copy=attached.uses_copy,
        saves_prefixes=settings.save_prefixes,
        corpora_folder=str(settings.cache_dir / CORPORA) if settings.draft_corpus else "",
        copies_weights=settings.weight_copies,
        projector_path=file.projector_path,
        has_chosen_projector=file.projector.is_chosen,
        passed_over=file.projector.passed_over,
    )
