"""What the memory of a GPU buys most for a model larger than it: more of its layers, or a draft model there. Pure.

A draft of n tokens takes n steps of the draft model and one step of the model with n + 1 tokens. GPUs compute those as
fast as one token, for they wait for the weights; a processor does not. How many are accepted depends on the pair, so an
offer also says from which acceptance on it is as fast as the plan without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from offload.footprint.auxiliary_models import PlannedDraft
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.assessment import Assessment, FitLevel, choose
from offload.placement.shares import decode_work
from offload.speed.cost_model import Rates, reading_by_device
from offload.speed.step_costs import CPU_COST_RATIOS, step_ratios
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.tensor_types import FILE_TYPES

# The chance that a drafted token is accepted where all before it were, greedily. Of copies: how often Q2_K has the top
# token of a larger type, 0.7 to 0.85 by model and text. Of siblings a tenth as large: 0.53 to 0.75 (Leviathan et al.,
# Fast Inference from Transformers via Speculative Decoding, table 3).
_COPY_TYPES = {"Q2_K": 0.8, "IQ2_XS": 0.75}
_SIBLING_ACCEPTANCE = 0.6
_LENGTHS = range(1, 17)
_SMALLER = 0.7  # of the model's bytes: a larger copy takes nearly as long as the model
_STEPS = 12  # of the search for the least acceptance: to a four-thousandth
_ACCEPTANCE = 0.999  # the most that is considered

Siblings: TypeAlias = Callable[[], Sequence[PlannedDraft]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOffer:
    """A draft model beside a model: its bytes, the layers of the model that stay on GPUs, and what to expect with
    drafts of `n_tokens` at the `acceptance` that is usual: tokens a second, and how many times as many as without it.
    `least_acceptance` makes it as fast as without, None where nothing does."""

    what: str
    n_bytes: int
    n_on_gpus: int
    n_tokens: int
    acceptance: float
    decode_tps: float
    gain: float
    least_acceptance: float | None

    @property
    def pays(self) -> bool:
        return self.gain > 1.0


def draft_offers(
    model: PlannedModel, wanted: RunConfig, found: Assessment, rates: Rates, siblings: Siblings = tuple
) -> tuple[DraftOffer, ...]:
    """Return what drafts would do for `model`, planned as `wanted`, whose best assessment `found` leaves a part of it
    with the processor: of low-bit copies of itself, and of `siblings`, smaller models with its vocabulary, which
    are looked for only then. The best comes first; none for a model that has a draft, or whose speed is unknown."""
    has_draft = model.auxiliary.draft is not None or model.auxiliary.has_mtp_layer
    if found.verdict is not FitLevel.PARTIAL or not found.machine.gpus or found.decode_tps is None or has_draft:
        return ()
    offers = [
        offer
        for draft, acceptance in _candidates(model, siblings())
        if (offer := _offer(model, wanted, found, rates, draft, acceptance, 1 / found.decode_tps)) is not None
    ]
    return tuple(sorted(offers, key=lambda offer: -offer.decode_tps))


def _candidates(model: PlannedModel, siblings: Sequence[PlannedDraft]) -> Iterator[tuple[PlannedDraft, float]]:
    for name, acceptance in _COPY_TYPES.items():
        copy = model.quantized(FILE_TYPES[name])
        if copy.n_bytes <= _SMALLER * model.n_bytes:
            yield PlannedDraft(f"a copy of itself in {name}", copy.header, copy.tensors), acceptance
    for sibling in siblings:
        yield sibling, _SIBLING_ACCEPTANCE


def _offer(
    model: PlannedModel,
    wanted: RunConfig,
    found: Assessment,
    rates: Rates,
    draft: PlannedDraft,
    acceptance: float,
    plain_s: float,
) -> DraftOffer | None:
    """Return what `draft` does on a GPU beside the model, whose tokens take `plain_s` without it; None if both do not
    fit so."""
    drafting = replace(model, auxiliary=replace(model.auxiliary, draft=draft))
    other = choose(drafting, wanted, found.machine, rates)
    if other.placement is None or not other.placement.n_on_gpus or other.speed is None:
        return None
    (device,) = (share.device.name for share in other.shares if share.has_output)
    beside = PlannedModel(draft.header, draft.tensors).profile(other.profile.run_config)
    n_read = sum(layer.read_bytes + layer.cache_read_bytes for layer in beside.layers)
    draft_s = n_read * rates.seconds_per_byte[device] + rates.overhead_s(len(beside.layers))
    verify_s = _verify_s(model, other, rates)

    def best(chance: float) -> tuple[float, int]:  # tokens a second, and the length
        return max((_expected(chance, n) / (n * draft_s + verify_s[n + 1]), n) for n in _LENGTHS)

    tps, n_tokens = best(acceptance)
    least = None
    if best(_ACCEPTANCE)[0] * plain_s >= 1:
        low, high = 0.0, _ACCEPTANCE
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if best(middle)[0] * plain_s >= 1 else (middle, high)
        least = high
    return DraftOffer(
        what=draft.name,
        n_bytes=sum(extra.n_bytes for extra in other.profile.extras),
        n_on_gpus=other.placement.n_on_gpus,
        n_tokens=n_tokens,
        acceptance=acceptance,
        decode_tps=tps,
        gain=tps * plain_s,
        least_acceptance=least,
    )


def _expected(chance: float, n_drafted: int) -> float:
    """Return the tokens that a step with a draft yields: those accepted, and the one after them."""
    return sum(chance**n for n in range(n_drafted + 1))


def _verify_s(model: PlannedModel, found: Assessment, rates: Rates) -> Mapping[int, float]:
    """Return the seconds of steps of the model by their tokens. What the processor has takes as many times as long as
    its types were measured to take, or as is usual, and of experts at least as many times as tokens need other ones;
    GPUs read their part once."""
    assert found.placement is not None
    assert found.speed is not None
    work, host = decode_work(found.shares, found.placement), found.machine.host.name
    host_s = reading_by_device(work, rates).get(host, 0.0) + rates.attention_s(host, work)
    sizes = range(1, max(_LENGTHS) + 2)
    table = rates.tables.get(host)
    ratios = step_ratios(found.profile, table, sizes) if table is not None else {}
    known = ratios or CPU_COST_RATIOS
    at = dict(zip(sizes, np.interp(sizes, list(known), list(known.values())).tolist(), strict=True))
    others_s = 1 / found.speed.decode_tps - host_s
    return {n: others_s + host_s * max(at[n], _expert_share(model, n)) for n in sizes}


def _expert_share(model: PlannedModel, n_tokens: int) -> float:
    """Return how many times as many experts `n_tokens` need as one, if they choose at random; 0 without experts."""
    n_experts = hyperparameter(model.header, "expert_count")
    n_used = hyperparameter(model.header, "expert_used_count")
    if not (n_experts and n_used):
        return 0.0
    return n_experts / n_used * (1 - (1 - n_used / n_experts) ** n_tokens)
