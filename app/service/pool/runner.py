"""An engine with the names that it answers under: those that come to one file and want it loaded alike.

Owns that it stays loaded for as long as one of them holds it, and which of their paths it is loaded from. Knows nothing
of what a name says and does beside the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.library.local.model_files import FileIdentity, identity_of
from app.service.pool.door import Watcher
from app.service.pool.engine_client import EngineClient
from app.service.pool.keep_alive import KeepAlive
from app.service.pool.prefill_ahead import PrefillAhead

__all__ = ["EngineKey", "Runner"]


@dataclass(frozen=True, slots=True)
class EngineKey:
    """What names must have in common to share an engine: the file, and what of its loading they do not leave open.

    `n_ctx` is the context that a recipe asks for beyond the usual one, else 0. A draft model changes no answer, and how
    a file is loaded again for a person holds for all of its names.
    """

    identity: FileIdentity
    lora: tuple[tuple[str, str], ...] = ()
    control_vectors: tuple[tuple[str, float], ...] = ()
    n_ctx: int = 0


class Runner:
    """The `engine` of the file with that `identity`; nobody's at first."""

    def __init__(self, engine: EngineClient, identity: FileIdentity) -> None:
        self.engine = engine
        self.identity = identity
        self.prefill_ahead = PrefillAhead(engine)
        self._holds: dict[Path, KeepAlive] = {}
        engine.door.watch(Watcher(rest=self._rest, gone=self._lose))

    @property
    def has_names(self) -> bool:
        return bool(self._holds)

    def take_in(self, path: Path, idle_s: float | None) -> KeepAlive:
        """Answer under the name that the file has at `path`, too, and return that name's hold."""
        hold = self._holds[path] = KeepAlive(self.engine, idle_s, self._let_go_unheld)
        return hold

    def put_out(self, path: Path) -> None:
        """Answer under the name at `path` no more; while another one holds the engine it changes nothing else."""
        self._holds.pop(path).let_go()

    def path(self) -> Path:
        """Return where to load from: a path that is still the file's, else where it was. Asks the disk."""
        here = (path for path in tuple(self._holds) if identity_of(path) == self.identity)
        return next(here, self.engine.model_path)

    def cancel_background(self) -> None:
        """End what nobody has asked for."""
        self.prefill_ahead.cancel_background()

    async def end(self) -> None:
        """End for good."""
        self.cancel_background()
        self._lose()
        await self.engine.stop()

    def _rest(self) -> None:
        for hold in self._holds.values():
            hold.rest()
        self._let_go_unheld()

    def _lose(self) -> None:
        for hold in self._holds.values():
            hold.lose()

    def _let_go_unheld(self) -> None:
        if not any(hold.is_holding for hold in self._holds.values()):
            self.cancel_background()
            self.engine.unload()  # one that is still at work is asked again when that is done
