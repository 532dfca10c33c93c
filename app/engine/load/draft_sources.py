"""What computes drafts for a loaded model: its own prediction layer, and a draft model that goes with it.

Owns the refusals. Runs in the worker; everything native is imported when called.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.backend import ModelFacts
from app.engine.load.auxiliary_models import MtpLayer
from app.engine.protocol.messages import EngineConfig
from app.engine.speculative.draft_heads import DraftHead
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.step_cost import StepCost
from app.engine.speculative.vocabulary import vocabulary_mismatch
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import LoadParameters
from quantizer.errors import ModelFileError

if TYPE_CHECKING:
    from app.engine.llama import LlamaBackend, LlamaModel

__all__ = ["load_draft_model", "make_draft_head", "mtp_notice"]

_CANNOT_TAKE_BACK = "what it computed cannot be taken back in part, as refused drafts must be"
_REMEDY = "Choose a smaller model of the same family for --draft, or leave it out."


def make_draft_head(backend: LlamaBackend, layer: MtpLayer | None, step_cost: StepCost) -> DraftHead | None:
    """Return what drafts from the prediction layer of a loaded model, None where it runs without."""
    from app.engine import llama

    if layer is None or not isinstance(backend, llama.MtpBackend):
        return None
    return DraftHead(backend.mtp, layer.n_bytes / max(1, backend.facts.model_bytes), step_cost)


def mtp_notice(name: str, head: DraftHead | None, facts: ModelFacts) -> str:
    """Return what a person is told of a model that has prediction layers."""
    if head is not None:
        return f"{name} drafts with its own multi-token-prediction layer."
    reason = "this engine cannot run them" if facts.supports_truncation else _CANNOT_TAKE_BACK
    return f"{name} has multi-token-prediction layers and answers without them: {reason}."


def load_draft_model(
    config: EngineConfig,
    setting: RuntimeSettings,
    target: LlamaModel,
    facts: ModelFacts,
    step_cost: StepCost,
    owned: ExitStack,
    place: Callable[[Path, EngineConfig], LoadParameters],
) -> DraftModel | None:
    """Load the draft model that `config` names, None where it names none, for a target with these `facts`.

    `place` says where its layers go, `owned` frees it. Its context is as long as the target's.

    Raises ModelFileError where the two do not go together, EngineError when llama.cpp cannot load it.
    """
    if not config.draft_path:
        return None
    from app.engine import llama

    path = Path(config.draft_path)
    if not facts.supports_truncation:
        raise _refusal(path, f"of the model that it drafts for, {_CANNOT_TAKE_BACK}")
    config = replace(config, n_ctx=facts.n_ctx)
    model = llama.LlamaModel(path, place(path, config), setting.extra_buffers, lambda _fraction: True)
    owned.callback(model.close)
    if difference := vocabulary_mismatch(target.vocabulary(), model.vocabulary()):
        raise _refusal(path, difference)
    backend = model.context(config, setting)
    owned.callback(backend.close)
    if not backend.facts.supports_truncation:
        raise _refusal(path, _CANNOT_TAKE_BACK)
    return DraftModel(backend, facts, step_cost)


def _refusal(path: Path, reason: str) -> ModelFileError:
    return ModelFileError(f"{path.name} cannot draft for this model: {reason}.", _REMEDY)
