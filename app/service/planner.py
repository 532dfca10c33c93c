"""Plans for whoever asks the service, each in milliseconds: headers and the look at this machine are kept for a while.

Owns what is kept. The arithmetic is `offload`'s, the ways to a model are `app.library`'s. Knows nothing of HTTP. What
imports numbers is imported when it is first asked.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from app.plan_wish import PlanWish
from app.service.machine_look import MachineLook, Occupant, with_room_of
from app.settings import Settings

if TYPE_CHECKING:
    from app.library.fit import Circumstances
    from offload.machine import Machine
    from offload.model import PlannedModel
    from offload.plan import Plan

__all__ = ["Planner"]

_N_MODELS, _MODEL_KEPT_S = 8, 300.0
_N_MEASURED = 64


@dataclass(frozen=True, slots=True)
class _Known:
    """A model that was asked for: its header, what to say of how it was found, and since when that is known."""

    model: PlannedModel
    notice: str
    changed_s: float
    since_s: float

    @property
    def is_current(self) -> bool:
        """Whether its file is still the same; of one that is elsewhere, whether it was asked for of late."""
        if self.notice:
            return time.monotonic() - self.since_s < _MODEL_KEPT_S
        return self.changed_s == _changed_s(self.model)


class Planner:
    """Answers wishes under `settings`. Its methods take their time and may be called in several threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, wish: PlanWish, occupants: Sequence[Occupant] = ()) -> dict[str, Any]:
        """Return the object of `localllm plan --json` for `wish`, with what was measured of the model here.

        Raises UnknownModelError, HubError or ModelFileError for a model that cannot be had, UsageError for a wish that
        makes no sense, EngineError where the machine or llama.cpp cannot be asked.
        """
        from offload.kv_cache import KV_TYPES, KvTypes, can_have
        from offload.plan_json import plan_json

        settings = _settings_for(wish, self._settings)
        known = self._model(wish, settings)
        wanted = self._circumstances(wish, settings, known, occupants)
        found = _planned(wish, settings, known, wanted)
        has_records = wish.is_here and not known.notice
        return plan_json(found) | {
            "model": wish.model,
            "is_full": wish.is_full,
            "gpu_layers": dict(wish.gpu_layers) if wish.gpu_layers is not None else None,
            "n_ctx_train": known.model.n_ctx_train,
            "kv_types": [name for name in KV_TYPES if can_have(KvTypes(name, name), known.model.kv_shape)],
            "measured": self._measured(known.model, wanted.machine) if has_records else [],
        }

    @cached_property
    def _look(self) -> MachineLook:
        from app.engine.machine import survey
        from app.engine.rpc import endpoints_of
        from offload.host_memory import host_memory

        endpoints = endpoints_of(self._settings.rpc)
        return MachineLook(lambda: survey(endpoints).machine, lambda: host_memory().free_bytes)

    def _model(self, wish: PlanWish, settings: Settings) -> _Known:
        """Return the model that is meant, its header read once for as long as the file stays the same."""
        from app.library.fit import circumstances
        from app.library.lookup import find_model

        with self._lock:
            known = self._known.get(wish.model)
        if known is None or not known.is_current:

            def here() -> Circumstances:
                return circumstances(settings, self._machine(wish, ()))

            model, notice = find_model(wish.model, settings, here)
            known = _Known(model, notice, 0.0 if notice else _changed_s(model), time.monotonic())
        with self._lock:
            self._known[wish.model] = known
            self._known.move_to_end(wish.model)
            while len(self._known) > _N_MODELS:
                self._known.popitem(last=False)
        return known

    def _machine(self, wish: PlanWish, occupants: Sequence[Occupant]) -> Machine:
        from app.library.given_machine import given_machine

        def here() -> Machine:
            return self._look.machine(occupants, is_fresh=wish.is_fresh)

        return here() if wish.is_here else given_machine(here, wish.vram, wish.ram or None)

    def _circumstances(
        self, wish: PlanWish, settings: Settings, known: _Known, occupants: Sequence[Occupant]
    ) -> Circumstances:
        from app.library.fit import circumstances, circumstances_here

        machine = self._machine(wish, occupants)
        if wish.is_here:
            wanted = circumstances_here(settings, with_room_of(machine, known.model.header.path, occupants))
        else:
            wanted = circumstances(settings, machine)
        return replace(wanted, question=replace(wanted.question, gpu_layers=wish.gpu_layers))

    def _measured(self, model: PlannedModel, machine: Machine) -> list[dict[str, Any]]:
        """Return how fast the newest answers and prompts of the model were here, the oldest first."""
        from app.engine.rates import machine_key, run_history
        from app.engine.store import model_key

        key = model_key(model.header.path)
        records = run_history(self._settings.cache_dir).records(machine_key(machine))
        return [
            {
                "kind": record.kind,
                "depth": record.depth,
                "tps": round(record.tokens_per_s, 3),
                "gpu_layers": record.gpu_layers,
                "at_s": record.at_s,
            }
            for record in [record for record in records if record.model == key][-_N_MEASURED:]
        ]


def _settings_for(wish: PlanWish, settings: Settings) -> Settings:
    return replace(
        settings,
        ctx=wish.n_ctx or settings.ctx,
        kv_type=wish.kv_type or settings.kv_type,
        parallel=wish.n_sequences or settings.parallel,
        threads=wish.n_threads or settings.threads,
    )


def _planned(wish: PlanWish, settings: Settings, known: _Known, wanted: Circumstances) -> Plan:
    from app.library.planning import plan_of, plan_of_absent

    if not wish.is_full:
        return wanted.plan(known.model, wants_remedies=False)
    if known.notice:
        return plan_of_absent(known.model, known.notice, wanted)
    return plan_of(known.model, settings, wanted, is_here=wish.is_here)


def _changed_s(model: PlannedModel) -> float:
    return model.header.path.stat().st_mtime
