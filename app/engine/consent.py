"""Whether a model that is slow here, or too large, is loaded all the same. Pure.

Owns what comes of a verdict. Knows nothing of who is asked.
"""

from __future__ import annotations

from app.engine.frames import WhenUnfit
from offload.assessment import Verdict
from offload.plan import Plan
from offload.remedies import Remedy
from offload.wording import speed
from quantizer.errors import EngineError, UnfitError

__all__ = ["check_fit"]

_MOST_REMEDIES = 3


def check_fit(plan: Plan, when_unfit: WhenUnfit) -> str:
    """Return what a person is to be told of `plan` before it is loaded, "" where all fits.

    Raises UnfitError where a yes is needed first, EngineError where nobody can be asked and it is too large.
    """
    verdict = plan.found.verdict
    is_hopeless = verdict is Verdict.WONT_RUN and (bool(plan.found.machine.gpus) or _is_beyond_memory(plan))
    if verdict is not Verdict.PARTIAL and not is_hopeless:
        return ""
    cause, remedy = plan.warnings[0], _ways_out(plan.remedies)
    if when_unfit is WhenUnfit.ASK:
        raise UnfitError(cause, remedy)
    if is_hopeless and when_unfit is not WhenUnfit.LOAD:
        raise EngineError(cause, f"{remedy} Or load it all the same with --yes.".lstrip())
    return cause


def _is_beyond_memory(plan: Plan) -> bool:
    """Whether a processor alone has less free than it takes, and reads from disk; without a margin it still runs."""
    profile = plan.found.profile
    return profile.weight_bytes + profile.cache_bytes + profile.compute_bytes > plan.found.machine.host.free_bytes


def _ways_out(remedies: tuple[Remedy, ...]) -> str:
    told = [
        remedy.what + (f" ({speed(remedy.decode_tps)} tok/s)" if remedy.decode_tps is not None else "")
        for remedy in remedies[:_MOST_REMEDIES]
    ]
    return f"What would help: {'; '.join(told)}." if told else ""
