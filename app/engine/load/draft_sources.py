"""The draft sources that are loaded with a model: its own MTP layer and a draft model.

Owns why one cannot draft for the other. Runs in the worker; native code is imported when called.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.protocol.messages import BackendFacts, EngineConfig
from app.engine.speculative.draft_heads import DraftHead
from app.engine.speculative.draft_model import DraftModel, vocabulary_mismatch
from app.engine.speculative.step_cost import StepCost
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import LoadParameters
from quantizer.errors import ModelFileError

if TYPE_CHECKING:
    from app.engine.llama import LlamaBackend, LlamaModel

__all__ = ["load_draft_model", "make_draft_head", "mtp_notice"]

_NO_TRUNCATION = "cache cannot drop rejected draft tokens"
_REMEDY = "Choose a smaller model of the same family for --draft, or leave it out."


def make_draft_head(backend: LlamaBackend, layer_bytes: int | None, step_cost: StepCost) -> DraftHead | None:
    """Return the draft source of the MTP layer (of `layer_bytes`) of a loaded model, None when it does not run."""
    from app.engine import llama

    if layer_bytes is None or not isinstance(backend, llama.MtpBackend):
        return None
    return DraftHead(backend.mtp, layer_bytes / max(1, backend.facts.model_bytes), step_cost)


def mtp_notice(name: str, head: DraftHead | None, facts: BackendFacts) -> str:
    """Return the notice for a model that has MTP layers."""
    if head is not None:
        return f"{name} drafts with its own multi-token-prediction layer."
    reason = "this engine cannot run them" if facts.supports_truncation else f"its {_NO_TRUNCATION}"
    return f"{name} has multi-token-prediction layers and answers without them: {reason}."


def load_draft_model(
    config: EngineConfig,
    setting: RuntimeSettings,
    target: LlamaModel,
    facts: BackendFacts,
    step_cost: StepCost,
    owned: ExitStack,
    place: Callable[[Path, EngineConfig], LoadParameters],
) -> DraftModel | None:
    """Load the draft model that `config` names for a target with these `facts`; return None when it names none.

    `place` returns where its layers go, `owned` frees it. Its context is as long as the target's.

    Raises ModelFileError when the two do not match, EngineError when llama.cpp cannot load it.
    """
    if not config.draft_path:
        return None
    from app.engine import llama

    path = Path(config.draft_path)
    if not facts.supports_truncation:
        raise _mismatch(path, f"this model's {_NO_TRUNCATION}")
    config = replace(config, n_ctx=facts.n_ctx)
    model = llama.LlamaModel(path, place(path, config), setting.extra_buffers, lambda _fraction: True)
    owned.callback(model.close)
    if difference := vocabulary_mismatch(target.vocabulary(), model.vocabulary()):
        raise _mismatch(path, difference)
    backend = model.context(config, setting)
    owned.callback(backend.close)
    if not backend.facts.supports_truncation:
        raise _mismatch(path, f"its {_NO_TRUNCATION}")
    return DraftModel(backend, facts, step_cost)


def _mismatch(path: Path, reason: str) -> ModelFileError:
    return ModelFileError(f"{path.name} cannot draft for this model: {reason}.", _REMEDY)
