"""Which engine a name gets: the one that runs its file already, or a new one.

Owns the engines of the service, each once, and how they are made. Knows nothing of names but their files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from app.engine.protocol.messages import UnfitPolicy
from app.service.models.attachments import Attachments
from app.service.models.model_file import ModelFile
from app.service.pool.door import Watcher
from app.service.pool.engine_client import EngineClient
from app.service.pool.engine_life import EngineLife
from app.service.pool.engine_settings import engine_config
from app.service.pool.idle_tuning import IdleTuning
from app.service.pool.load_queue import LoadQueue
from app.service.pool.memory import Memory
from app.service.pool.runner import EngineKey, Runner
from app.settings.settings import Settings
from offload.footprint.context import DEFAULT_N_CTX
from quantizer.process import python_command

__all__ = ["EnginePool"]


class EnginePool:
    """Engines in `memory`, run by `command`; `tuning` measures each file once, while nothing else goes on."""

    def __init__(self, settings: Settings, command: Sequence[str], memory: Memory, tuning: IdleTuning) -> None:
        self._settings = settings
        self._command = tuple(command)
        self._tuning = tuning
        self._runners: dict[EngineKey, Runner] = {}
        self._admission = LoadQueue(memory, lambda: self._runners.values())

    @property
    def are_busy(self) -> bool:
        """Whether any engine loads, answers or is asked something."""
        return any(runner.engine.is_busy for runner in self._runners.values())

    def of(self, path: Path, file: ModelFile, attached: Attachments, when_unfit: UnfitPolicy | None) -> Runner:
        """Return the engine for `file`, a new one at `path` where none is there that was made alike.

        `when_unfit` None is what the settings say; it is for a new one. Raises UsageError.
        """
        key = EngineKey(file.identity, attached.lora, attached.control_vectors, self._own_n_ctx(file))
        if key not in self._runners:
            self._tune(path, file)
            self._runners[key] = self._made(path, key, attached, when_unfit)
        return self._runners[key]

    async def leave(self, runner: Runner, path: Path) -> None:
        """Let `runner` answer under the name at `path` no more; it ends with its last name."""
        runner.put_out(path)
        if not runner.has_names:
            self._runners = {key: other for key, other in self._runners.items() if other is not runner}
            await runner.end()

    async def close(self) -> None:
        """End every engine."""
        await asyncio.gather(*(runner.end() for runner in self._runners.values()))

    def _own_n_ctx(self, file: ModelFile) -> int:
        """Return the context that a recipe asks for where the usual one is too short for it, else 0.

        A longer one than it asks for changes no answer. A shorter one for all of a file's names is never made.
        """
        usual = self._settings.ctx or min(file.n_ctx_train or DEFAULT_N_CTX, DEFAULT_N_CTX)
        return file.recipe_n_ctx if file.recipe_n_ctx > usual else 0

    def _made(self, path: Path, key: EngineKey, attached: Attachments, when_unfit: UnfitPolicy | None) -> Runner:
        config = engine_config(self._settings, attached, when_unfit)
        config = replace(config, n_ctx=key.n_ctx or config.n_ctx)

        async def admit(engine: EngineLife) -> None:
            engine.model_path = await asyncio.to_thread(runner.path)  # one of the file's names may have gone
            await self._admission.admit(engine)

        engine = EngineClient(path, config, self._command, admit=admit)
        engine.door.watch(self._admission.watcher())
        engine.door.watch(Watcher(work=self._tuning.interrupt))
        runner = Runner(engine, key.identity)
        return runner

    def _tune(self, path: Path, file: ModelFile) -> None:
        is_known = any(runner.identity == file.identity for runner in self._runners.values())
        if self._settings.idle_tune and self._settings.engine == "llama" and not is_known:
            threads = str(self._settings.threads)
            self._tuning.add(python_command("app.engine.tuning.tuner", str(path), threads, "--idle"))
