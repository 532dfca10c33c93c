"""What a draft model beside a model does for its answers: a low-bit copy of itself, or a smaller sibling. Pure.

A draft of n tokens takes n steps of the draft model and one step of the model with n + 1 tokens. GPUs compute those as
fast as one token, for they wait for the weights; a processor does not. In the memory of a GPU that the model does not
fit into, a draft model takes the place of layers. How many tokens are accepted depends on the pair, so an offer also
says from which acceptance on it is as fast as the plan without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from offload.footprint.auxiliary_models import PlannedDraft
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.assessment import Assessment, FitLevel, choose
from offload.placement.shares import ALL_ON_HOST, Placement, allocate, decode_work
from offload.speed.cost_model import Rates, decode_s, reading_by_device
from offload.speed.step_costs import CPU_COST_RATIOS, step_ratios
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.tensor_types import DRAFT_COPY_TYPE, FILE_TYPES

# The chance that a drafted token is accepted where all before it were, greedily. Of copies: how often Q2_K has the top
# token of a larger type, 0.7 to 0.85 by model and text; of the smallest less, SmolLM2 135M 0.67, Gemma 3 270M 0.74
# (tests/bench/engine/draft_copy.py). Of siblings a tenth as large: 0.53 to 0.75 (Leviathan et al.,
# Fast Inference from Transformers via Speculative Decoding, table 3).
COPY_ACCEPTANCES = {DRAFT_COPY_TYPE: 0.8, "IQ2_XS": 0.75}
_SIBLING_ACCEPTANCE = 0.6
_LENGTHS = range(1, 17)
_SMALLER = 0.7  # of the model's bytes: a larger copy takes nearly as long as the model
_STEPS = 12  # of the search for the least acceptance: to a four-thousandth
_ACCEPTANCE = 0.999  # the most that is considered

Siblings: TypeAlias = Callable[[], Sequence[PlannedDraft]]


@dataclass(frozen=True, slots=True)
class DraftEvidence:
    """What is known of a draft model: the chance that a token of it is accepted where all before it were, and the time
    of one of its steps in steps of the model, 0 where that was not measured."""

    acceptance: float
    step_cost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOffer:
    """A draft model beside a model: its bytes, the layers of the model that stay on GPUs, and what to expect with
    drafts of `n_tokens` at the `acceptance` that is usual or was measured: tokens a second, and how many times as many
    as without it. `least_acceptance` makes it as fast as without, None where nothing does. `file_type` is the type of a
    copy of the model itself, "" for another model."""

    what: str
    n_bytes: int
    n_on_gpus: int
    n_tokens: int
    acceptance: float
    decode_tps: float
    gain: float
    least_acceptance: float | None
    file_type: str = ""

    @property
    def pays(self) -> bool:
        return self.gain > 1.0


def draft_offers(
    model: PlannedModel, wanted: RunConfig, found: Assessment, rates: Rates, siblings: Siblings = tuple
) -> tuple[DraftOffer, ...]:
    """Return what drafts would do for `model`, planned as `wanted`, whose best assessment is `found`: low-bit copies of
    itself, and `siblings`, smaller models with its vocabulary. The best comes first; none for a model that has a draft,
    does not run, or whose speed is unknown."""
    if found.verdict is FitLevel.WONT_RUN or found.decode_tps is None:
        return ()
    offers = [
        replace(offer, file_type=file_type)
        for draft, file_type, acceptance in _candidates(model, siblings())
        if (offer := draft_offer(model, wanted, found, rates, draft, DraftEvidence(acceptance))) is not None
    ]
    return tuple(sorted(offers, key=lambda offer: -offer.decode_tps))


def planned_copy(model: PlannedModel, file_type: str = DRAFT_COPY_TYPE) -> PlannedDraft | None:
    """Return the copy of `model` in `file_type`, None where it would hardly be smaller."""
    copy = model.quantized(FILE_TYPES[file_type])
    if copy.n_bytes > _SMALLER * model.n_bytes:
        return None
    return PlannedDraft(f"a copy of itself in {file_type}", copy.header, copy.tensors)


def _candidates(model: PlannedModel, siblings: Sequence[PlannedDraft]) -> Iterator[tuple[PlannedDraft, str, float]]:
    for file_type, acceptance in COPY_ACCEPTANCES.items():
        if (copy := planned_copy(model, file_type)) is not None:
            yield copy, file_type, acceptance
    for sibling in siblings:
        yield sibling, "", _SIBLING_ACCEPTANCE


def draft_offer(
    model: PlannedModel,
    wanted: RunConfig,
    found: Assessment,
    rates: Rates,
    draft: PlannedDraft,
    known: DraftEvidence,
) -> DraftOffer | None:
    """Return what `draft` does beside the model, whose best assessment without it is `found`, by what is `known` of it;
    None for a model that has a draft, where both do not fit or no layer stays on GPUs that have some without it, and
    beside a GPU of unknown speed. On a processor alone the gain does not depend on how fast that reads."""
    has_draft = model.auxiliary.draft is not None or model.auxiliary.has_mtp_layer
    if found.placement is None or has_draft or (found.decode_tps is None and found.machine.gpus):
        return None
    plain_s = decode_s(decode_work(found.shares, found.placement), rates)
    drafting = replace(model, auxiliary=replace(model.auxiliary, draft=draft))
    other = choose(drafting, wanted, found.machine, rates)
    if other.placement is None or (found.placement.n_on_gpus and not other.placement.n_on_gpus):
        return None
    verify_s = _verify_s(model, other, rates)
    draft_s = known.step_cost * verify_s[1] if known.step_cost else _draft_s(draft, other, rates)

    def best(chance: float) -> tuple[float, int]:  # tokens a second, and the length
        return max((_expected(chance, n) / (n * draft_s + verify_s[n + 1]), n) for n in _LENGTHS)

    tps, n_tokens = best(known.acceptance)
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
        acceptance=known.acceptance,
        decode_tps=tps,
        gain=tps * plain_s,
        least_acceptance=least,
    )


def _draft_s(draft: PlannedDraft, beside: Assessment, rates: Rates) -> float:
    """Return the expected seconds of a step of `draft`, which lies on the device of the model's output."""
    (device,) = (share.device for share in beside.shares if share.has_output)
    profile = PlannedModel(draft.header, draft.tensors).profile(beside.profile.run_config)
    placement = ALL_ON_HOST
    if device.name != beside.machine.host.name:
        n_layers = len(profile.layers)
        placement = Placement(gpus=(device.name,), gpu_layers=(n_layers,), n_split=0, n_crossings=0, token_s=0.0)
    return decode_s(decode_work(allocate(profile, beside.machine, placement), placement), rates)


def _expected(chance: float, n_drafted: int) -> float:
    """Return the tokens that a step with a draft yields: those accepted, and the one after them."""
    return sum(chance**n for n in range(n_drafted + 1))


def _verify_s(model: PlannedModel, found: Assessment, rates: Rates) -> Mapping[int, float]:
    """Return the seconds of steps of the model by their tokens. What the processor has takes as many times as long as
    its types were measured to take, or as is usual, and of experts at least as many times as tokens need other ones;
    GPUs read their part once."""
    assert found.placement is not None
    work, host = decode_work(found.shares, found.placement), found.machine.host.name
    host_s = reading_by_device(work, rates).get(host, 0.0) + rates.attention_s(host, work)
    sizes = range(1, max(_LENGTHS) + 2)
    table = rates.tables.get(host)
    ratios = step_ratios(found.profile, table, sizes) if table is not None else {}
    known = ratios or CPU_COST_RATIOS
    at = dict(zip(sizes, np.interp(sizes, list(known), list(known.values())).tolist(), strict=True))
    others_s = decode_s(work, rates) - host_s
    return {n: others_s + host_s * max(at[n], _expert_share(model, n)) for n in sizes}


def _expert_share(model: PlannedModel, n_tokens: int) -> float:
    """Return how many times as many experts `n_tokens` need as one, if they choose at random; 0 without experts."""
    n_experts = hyperparameter(model.header, "expert_count")
    n_used = hyperparameter(model.header, "expert_used_count")
    if not (n_experts and n_used):
        return 0.0
    return n_experts / n_used * (1 - (1 - n_used / n_experts) ** n_tokens)
