"""What drafts for a loaded model: its own layers, a draft head or a draft model, and why a file cannot.

Owns loading them beside the model, and their notices. `app.engine.speculative` drafts with them. Runs in the worker;
native code is imported when called.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.load.auxiliary_models import has_mtp_layers, mtp_layer_bytes
from app.engine.load.head_file import is_head, read_head
from app.engine.load.machine_file import model_key
from app.engine.load.planner import LoadAttempt
from app.engine.protocol.messages import BackendFacts, EngineConfig
from app.engine.speculative.cost_model import StepCost
from app.engine.speculative.draft_heads import AutoregressiveHeadSource, BlockHeadSource, HeadKind, HeadSpec
from app.engine.speculative.draft_model import DraftModel, vocabulary_mismatch
from app.engine.speculative.draft_source import DraftSource
from app.engine.tuning.tune_results import RuntimeSettings
from offload.footprint.auxiliary_models import PlannedDraft
from offload.placement.load_parameters import LoadParameters
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import Header

if TYPE_CHECKING:
    from app.engine.llama import LlamaBackend, LlamaModel, LoadedHead

Place = Callable[[Path, EngineConfig], LoadParameters]
"""Returns where the layers of another file go."""

_NO_TRUNCATION = "cache cannot drop rejected draft tokens"
_REMEDY = "Choose a smaller model of the same family for --draft, or leave it out."


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A draft head that belongs to the model."""

    path: Path
    spec: HeadSpec


def head_file(draft: PlannedDraft | None, header: Header) -> HeadFile | None:
    """Return the draft head of the model with `header`, None without a draft file and for a draft model."""
    if draft is None or not is_head(draft.header):
        return None
    return HeadFile(draft.header.path, read_head(draft.header, header))


def load_head(head: HeadFile, attempt: LoadAttempt, place: Place, owned: ExitStack) -> LoadedHead:
    """Load the weights of a head, which `owned` frees. Raises EngineError when llama.cpp cannot."""
    from app.engine import llama

    parameters, extra_buffers = place(head.path, attempt.config), attempt.setting.extra_buffers
    model = llama.LlamaModel(head.path, parameters, extra_buffers, lambda _fraction: True)
    owned.callback(model.close)
    return llama.LoadedHead(model, head.spec, model_key(head.path))


def load_draft_sources(
    model: LlamaModel,
    backend: LlamaBackend,
    header: Header,
    attempt: LoadAttempt,
    place: Place,
    step_cost: StepCost,
    owned: ExitStack,
    on_notice: Callable[[str], None],
) -> tuple[DraftSource, ...]:
    """Load the draft sources of the loaded `model` with this `header`, with a notice of each.

    `owned` frees them. Raises ModelFileError for a draft model that does not match it.
    """
    facts, config = backend.facts, attempt.config
    head = make_head_source(backend, step_cost, mtp_layer_bytes(header))
    if head is not None and head.name != HeadKind.MTP.source_name:
        on_notice(f"{Path(config.draft_path).name} drafts for {header.path.name}: {head.name}.")
        return (head,)
    if has_mtp_layers(header):
        on_notice(_mtp_notice(header.path.name, facts, can_draft=head is not None))
    draft_model = load_draft_model(config, attempt.setting, model, facts, step_cost, owned, place)
    return tuple(source for source in (head, draft_model) if source is not None)


def make_head_source(
    backend: LlamaBackend, step_cost: StepCost, mtp_bytes: int | None = None
) -> AutoregressiveHeadSource | BlockHeadSource | None:
    """Return the draft source of the head that a backend was made with, None without one.

    `mtp_bytes` are those of the model's MTP layers, which are no model of their own.
    """
    from app.engine import llama

    if not isinstance(backend, llama.HeadBackend):
        return None
    head = backend.head
    kind = head.spec.kind
    n_bytes = mtp_bytes if kind is HeadKind.MTP and mtp_bytes else head.facts.model_bytes
    share = n_bytes / max(1, backend.facts.model_bytes)
    if isinstance(head, llama.AutoregressiveContext):
        return AutoregressiveHeadSource(kind.source_name, head, share, step_cost)
    assert isinstance(head, llama.BlockContext), "heads predict one token further, or a block"
    return BlockHeadSource(kind.source_name, head, share, step_cost)


def _mtp_notice(name: str, facts: BackendFacts, *, can_draft: bool) -> str:
    """Return the notice for a model that has MTP layers."""
    if can_draft:
        return f"{name} drafts with its own multi-token-prediction layer."
    reason = "its layers have windows" if facts.n_window else "this engine cannot run them"
    return f"{name} has multi-token-prediction layers and answers without them: {reason}."


def load_draft_model(
    config: EngineConfig,
    setting: RuntimeSettings,
    target: LlamaModel,
    facts: BackendFacts,
    step_cost: StepCost,
    owned: ExitStack,
    place: Place,
) -> DraftModel | None:
    """Load the draft model that `config` names for a target with these `facts`; return None when it names none.

    `place` returns where its layers go, `owned` frees it. Its context is as long as the target's.

    Raises ModelFileError when the two do not match, EngineError when llama.cpp cannot load it.
    """
    if not config.draft_path:
        return None
    from app.engine import llama

    path = Path(config.draft_path)
    if not facts.truncation.allows_rejection(facts.n_sequences):
        raise _mismatch(path, f"this model's {_NO_TRUNCATION}")
    config = replace(config, n_ctx=facts.n_ctx)
    model = llama.LlamaModel(path, place(path, config), setting.extra_buffers, lambda _fraction: True)
    owned.callback(model.close)
    if difference := vocabulary_mismatch(target.vocabulary(), model.vocabulary()):
        raise _mismatch(path, difference)
    backend = model.context(config, setting)
    owned.callback(backend.close)
    if not backend.facts.truncation.allows_rejection(facts.n_sequences):
        raise _mismatch(path, f"its {_NO_TRUNCATION}")
    return DraftModel(backend, facts, step_cost)


def _mismatch(path: Path, reason: str) -> ModelFileError:
    return ModelFileError(f"{path.name} cannot draft for this model: {reason}.", _REMEDY)
