"""What each type of weights takes here for one model: the seconds that the search for a mix weighs."""

from __future__ import annotations

from app.library.machine_fit.planning import PlanningContext
from offload.devices.machine import HOST_NAME
from offload.footprint.model import PlannedModel
from offload.placement.shares import decode_work, prefill_work
from offload.speed.cost_model import REACHED_IN_MODELS, corrected_s
from offload.speed.type_costs import AS_IN_FILE, bytes_of, kind_of
from quantizer.gguf.tensor_types import WEIGHT_TYPES
from quantizer.mix.speed import MixSpeeds, TypeSeconds

_MIX_BITS_SHARE = 0.3  # of the bytes in F16: what a mix will have, which decides whether it stays in the caches


def mix_speeds(model: PlannedModel, here: PlanningContext) -> MixSpeeds | None:
    """Return the seconds of each type on the device that has all layers of `model`, a lossless one, and what a token
    takes besides. None for a model on several devices, or on one whose types were not measured. Raises UsageError."""
    found, rates = here.best_assessment(model), here.rates
    in_use = [share.device.name for share in found.shares if share.n_layers]
    if len(in_use) != 1 or in_use[0] not in rates.tables or found.speed is None or found.placement is None:
        return None
    (device,) = in_use
    table, run_config = rates.tables[device], found.profile.run_config
    layout = run_config.layout if device == HOST_NAME else AS_IN_FILE
    decode, prefill = (
        decode_work(found.shares, found.placement),
        prefill_work(found.profile, found.shares, found.placement),
    )
    model_bytes = _MIX_BITS_SHARE * bytes_of(decode.weights.get(device, {}))
    types = {}
    for name in WEIGHT_TYPES:
        possible = kind_of(name, is_repacked=True)
        one, many = layout.kind(possible, 1), layout.kind(possible, run_config.n_ubatch)
        answer, prompt = table.cost(one), table.cost(many)
        if answer is None or prompt is None:
            continue
        answer_cost, prompt_cost = answer.answer(model_bytes), prompt.prompt(run_config.n_ubatch)
        factor = rates.weight_factors.get(one, 1.0) / REACHED_IN_MODELS
        prompt_factor = rates.operation_factors.get(many, 1.0) / REACHED_IN_MODELS
        types[name] = TypeSeconds(
            factor * answer_cost.weight_s,
            factor * answer_cost.row_s,
            prompt_factor * prompt_cost.weight_s,
            prompt_factor * prompt_cost.row_s,
        )
    if not types:
        return None
    header = model.header
    n_experts = header.integer(f"{header.architecture}.expert_count") or 0
    n_used = header.integer(f"{header.architecture}.expert_used_count") or n_experts
    # what a token takes beside weights: the plan's seconds less those of its weights
    answer_s = corrected_s(rates.weights_s(device, decode.weights.get(device, {})), rates.weight_factors)
    by_kind = rates.operations_s(device, prefill, run_config.n_ubatch) if device == HOST_NAME else {}
    of_weights = {kind: by_kind[kind] for kind in prefill.weights.get(device, {}) if kind in by_kind}
    prompt_s = corrected_s(of_weights, rates.operation_factors)
    return MixSpeeds(
        types,
        fixed_s=max(0.0, 1 / found.speed.decode_tps - answer_s),
        prompt_fixed_s=max(0.0, 1 / found.speed.prefill_tps - prompt_s),
        expert_share=n_used / n_experts if n_experts else 1.0,
    )
