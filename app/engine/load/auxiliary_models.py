"""What the engine loads beside a model (draft model, adapters, projector, MTP layer), read from its files for a plan.

Owns the validation of those files, and what a file must contain before llama.cpp may run its MTP layer: llama.cpp ends
the process when something is missing. Their bytes are `offload`'s. Source: graph_mtp in llama.cpp src/models as
vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from app.engine.load.head_file import find_head, is_head, read_head
from app.engine.load.projector_file import validate_projector
from app.engine.protocol.messages import EngineConfig
from offload.footprint.auxiliary_models import AuxiliaryModels, PlannedAdapter, PlannedDraft, PlannedProjector
from offload.plan import PlacementPlan
from quantizer.gguf.adapters import validate_adapter
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import Header
from quantizer.gguf.layer_caches import layer_caches_of
from quantizer.gguf.validation import tensors_of, validate_gguf


def read_auxiliary_models(
    header: Header, *, draft_path: str = "", adapters: Sequence[Path] = (), projector: Path | None = None
) -> AuxiliaryModels:
    """Return what is loaded beside the model of `header`, including its own MTP layer if that can draft.

    Raises ModelFileError for a file of another kind, and for one that does not match the model.
    """
    return AuxiliaryModels(
        draft=_draft(Path(draft_path), header) if draft_path else None,
        adapters=tuple(PlannedAdapter(path.name, validate_adapter(path, header.path).tensors) for path in adapters),
        projector=_projector(projector, header) if projector else None,
        has_mtp_layer=not layer_caches_of(header).n_window and mtp_layer_bytes(header) is not None,
    )


def with_found_head(config: EngineConfig, header: Header) -> tuple[EngineConfig, tuple[str, ...]]:
    """Return `config` with the head beside the model of `header` if it is to be found, and why others do not draft."""
    if config.draft_path or not config.finds_head:
        return config, ()
    path, passed_over = find_head(header)
    return replace(config, draft_path=str(path or "")), passed_over


def with_sound_projector(config: EngineConfig, header: Header) -> tuple[EngineConfig, str]:
    """Return `config` without a projector that was found, not chosen, and cannot be loaded; and why, or ""."""
    if not config.projector_path or config.has_chosen_projector:
        return config, ""
    try:
        _projector(Path(config.projector_path), header)
    except ModelFileError as error:
        return replace(config, projector_path=""), f"The model takes no pictures or sounds: {error.cause}"
    return config, ""


def left_out_notice(head: Path, with_head: PlacementPlan, without: PlacementPlan) -> str:
    """Return why a head that was found is not loaded: only the model fits better. Empty where both fit as well."""
    if not _fits_better(without, with_head):
        return ""
    return f"{head.name} does not draft: without it more of the model fits. Pass it as --draft to load it all the same."


def left_out_projector_notice(projector: Path, with_it: PlacementPlan, without: PlacementPlan) -> str:
    """Return why a projector that was found is not loaded, as `left_out_notice` does of a head."""
    if not _fits_better(without, with_it):
        return ""
    return (
        f"The model takes no pictures or sounds: without {projector.name} more of it fits. Pass that as --projector to "
        "load it all the same."
    )


def _fits_better(one: PlacementPlan, other: PlacementPlan) -> bool:
    return one.assessment.verdict.rank < other.assessment.verdict.rank


def _draft(path: Path, model: Header) -> PlannedDraft:
    header = validate_gguf(path)
    if is_head(header):
        read_head(header, model)
    return PlannedDraft(path.name, header, tensors_of(header))


def _projector(path: Path, model: Header) -> PlannedProjector:
    return PlannedProjector.of(validate_projector(path, model), model)


_NEXT = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm", "attn_output")
_EXPERTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
_SHARED_EXPERT = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
_FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")
_GATED_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "post_attention_norm")
_LATENT = ("attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv_a_mqa", "attn_kv_a_norm", "attn_k_b", "attn_v_b")
# Tensors of the layer by architecture. Left out: those with a window, and those that llama.cpp loads and never runs.
_NEEDED: dict[str, tuple[str, ...]] = {
    "glm4moe": (*_NEXT, *_EXPERTS, "post_attention_norm"),
    "hy_v3": (*_NEXT, *_EXPERTS, *_SHARED_EXPERT, "attn_q_norm", "attn_k_norm", "ffn_norm"),
    "qwen35": (*_NEXT, *_GATED_ATTENTION, *_FEED_FORWARD),
    "qwen35moe": (*_NEXT, *_GATED_ATTENTION, *_EXPERTS, *_SHARED_EXPERT, "ffn_gate_inp_shexp"),
    "qwen3next": (*_NEXT, *_GATED_ATTENTION, *_EXPERTS, *_SHARED_EXPERT, "ffn_gate_inp_shexp"),
    "deepseek2": (*_NEXT, *_EXPERTS, *_SHARED_EXPERT, *_LATENT, "ffn_norm"),
}
_LITE_DEEPSEEK = (26, 27, 48)  # trunk layers of the deepseek2 models that llama.cpp reads without latent queries


def has_mtp_layers(header: Header) -> bool:
    """Return whether the file declares such layers."""
    return bool(header.integer(f"{header.architecture}.nextn_predict_layers"))


def mtp_layer_bytes(header: Header) -> int | None:
    """Return the bytes that are read for the layer that predicts one token further, the output matrix included.

    None for a file without one that can draft. Raises ModelFileError for a bad shard.
    """
    needed = _NEEDED.get(header.architecture)
    if needed is None or header.integer(f"{header.architecture}.nextn_predict_layers") != 1:
        return None
    n_trunk = (header.integer(f"{header.architecture}.block_count") or 1) - 1
    n_bytes = {tensor.name: tensor.n_bytes for tensor in tensors_of(header)}
    block = f"blk.{n_trunk}."
    if not _suits(header, n_trunk) or any(f"{block}{name}.weight" not in n_bytes for name in needed):
        return None
    own = sum(size for name, size in n_bytes.items() if name.startswith(block))
    return own + n_bytes.get("output.weight", n_bytes.get("token_embd.weight", 0))


def _suits(header: Header, n_trunk: int) -> bool:
    """Return whether llama.cpp runs the layer with these hyperparameters."""
    prefix = header.architecture
    if (header.integer(f"{prefix}.leading_dense_block_count") or 0) > n_trunk:
        return False
    if prefix != "deepseek2":
        return True
    lengths = ("attention.q_lora_rank", "attention.key_length_mla", "attention.value_length_mla")
    is_latent = all(header.integer(f"{prefix}.{length}") for length in lengths)
    return is_latent and n_trunk not in _LITE_DEEPSEEK and f"{prefix}.attention.temperature_scale" not in header.fields
