"""Why the hub does not give a file or a repository, in words, and what would change that.

Owns what its statuses and X-Error-Code mean (source: huggingface-hub's hf_raise_for_status).
"""

from __future__ import annotations

from collections.abc import Mapping

from app.library.hub_access import NotOnHubError

__all__ = ["refusal"]

_GATED = "GatedRepo"
_LOG_IN = "Accept its terms on its page there, then give a token of yours: HF_TOKEN, or `hf auth login`."
_ASK = "Accept its terms on its page there, and wait where its owners let people in one by one."
_SPELLING = "Check the spelling. If it is private, give a token that may read it: HF_TOKEN, or `hf auth login`."
_REFUSALS = {
    (401, _GATED): ("is given only to those who accepted its terms", _LOG_IN),
    (403, _GATED): ("is gated, and the account of your token was not let in yet", _ASK),
    (401, ""): ("is not there, or not for strangers", _SPELLING),
    (403, ""): ("may not be read with your token", _SPELLING),
    (404, ""): ("is not on the hub", "Check the spelling."),
}


def refusal(status: int, headers: Mapping[str, str], name: str) -> NotOnHubError | None:
    """Return why the hub itself refused `name`, None where it did not, or only for now."""
    said = _REFUSALS.get((status, headers.get("X-Error-Code", ""))) or _REFUSALS.get((status, ""))
    return NotOnHubError(f"{name} {said[0]}.", said[1]) if said else None
