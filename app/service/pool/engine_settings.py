"""The settings of engines: their command, their config, and how long idle ones stay loaded.

Owns the meaning of these settings, and refuses invalid ones at the start. Independent of models.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.engine.protocol.messages import EngineConfig, UnfitPolicy
from app.service.models.attachments import Attachments
from app.settings.parsing import parse_duration, parse_rpc_endpoints
from app.settings.settings import Settings
from quantizer.errors import RequestError, UsageError
from quantizer.process import python_command

__all__ = ["engine_config", "keep_alive_s", "worker_command"]

# Arguments of the worker. The fake engine needs no native code; its answers are random letters.
_ENGINES: Mapping[str, tuple[str, ...]] = {
    "llama": (),
    "fake": ("--fake", "--fake-step-ms", "5"),
    "fake-unfit": ("--fake", "--fake-unfit"),
}


def worker_command(settings: Settings) -> list[str]:
    """Return the command line of an engine worker. Raises UsageError for an engine that does not exist."""
    if settings.engine not in _ENGINES:
        raise UsageError(f"There is no engine {settings.engine!r}.", f"Known: {', '.join(_ENGINES)}.")
    return python_command("app.engine.worker", *_ENGINES[settings.engine])


def keep_alive_s(settings: Settings) -> float | None:
    """Return how long an idle model stays loaded after a request, None for no limit. Raises UsageError."""
    try:
        return parse_duration(settings.keep_alive)
    except RequestError as error:
        raise UsageError(f"keep_alive is {settings.keep_alive!r}.", error.remedy) from None


def engine_config(settings: Settings, attached: Attachments, when_unfit: UnfitPolicy | None) -> EngineConfig:
    """Return how to load a model with what is `attached`; `when_unfit` None is the policy of the settings.

    Raises UsageError.
    """
    return EngineConfig(
        n_ctx=settings.ctx,
        kv_type=settings.kv_type,
        context_shift=settings.context_shift,
        n_threads=settings.threads,
        n_sequences=settings.parallel,
        uses_gpu=settings.gpu,
        rpc=parse_rpc_endpoints(settings.rpc),
        when_unfit=when_unfit or _when_unfit(settings),
        lora=attached.lora,
        control_vectors=attached.control_vectors,
        draft_path=attached.draft_path,
    )


def _when_unfit(settings: Settings) -> UnfitPolicy:
    try:
        return UnfitPolicy(settings.when_unfit)
    except ValueError:
        known = ", ".join(UnfitPolicy)
        raise UsageError(f"when_unfit is {settings.when_unfit!r}, which is unknown.", f"Known: {known}.") from None
