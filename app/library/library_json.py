"""What programs are told of models as JSON: the same objects from the command line and from the service.

Owns their keys. Knows nothing of who asks, and reads nothing.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from app.library.local.index import Facts

if TYPE_CHECKING:
    from app.library.hub.recommend import Recommendation, Suggestion
    from app.library.hub.search import Family, SearchHit
    from app.library.local.index import LibraryEntry
    from app.library.local.model_files import ModelRef
    from app.library.local.model_record import ModelRecord
    from app.library.local.placement import ImportPlan
    from app.library.local.removal import Removal
    from app.library.machine_fit.planning import Fit
    from app.library.machine_fit.quant_rule import Candidate
    from quantizer.gguf.model_info import ModelInfo

__all__ = [
    "LIBRARY",
    "card_json",
    "entry_json",
    "fit_json",
    "hit_json",
    "placement_json",
    "recommendation_json",
    "removal_json",
]

LIBRARY = "library"  # where what lies in the models folder is


def entry_json(entry: LibraryEntry) -> dict[str, Any]:
    """Return a model of this machine: what the disk says, and the facts, each null where the file is damaged or not
    read yet."""
    facts = asdict(entry.facts) if entry.facts else dict.fromkeys(field.name for field in fields(Facts))
    return {
        "id": entry.ref.id,
        "where": entry.ref.place or LIBRARY,
        "path": str(entry.ref.path),
        "bytes": entry.disk.n_bytes,
        "modified_s": round(entry.disk.modified_s),
        "damaged": entry.fault or None,
        **facts,
    }


def fit_json(fit: Fit) -> dict[str, Any]:
    """Return what a model comes to on this machine: verdict, tokens a second, and the bytes of all that it needs."""
    tps = fit.decode_tps
    return {
        "verdict": fit.verdict.value,
        "decode_tps": None if tps is None else round(tps, 3),
        "total_bytes": fit.total_bytes,
    }


def card_json(card: ModelInfo, record: ModelRecord) -> dict[str, Any]:
    """Return all that a model's file says of it, and what this machine has learnt."""
    paths = [str(path) for path, _ in record.hashes]
    base = record.base and {"repo": record.base.repo, "is_same": record.base.text == record.template}
    return asdict(card) | {
        "path": paths[0],
        "bits_per_weight": round(card.bits_per_weight, 3),
        "files": paths,
        "sha256": [sha256 or None for _, sha256 in record.hashes],
        "template_base": base,
        "tuned": asdict(record.tuned) if record.tuned else None,
    }


def recommendation_json(found: Recommendation) -> dict[str, Any]:
    """Return what was chosen for a role, and what was passed over."""
    return {
        "role": found.role.value,
        "model": _suggestion(found.suggestion) if found.suggestion else None,
        "keeps_pace": found.keeps_pace,
        "why": found.why,
        "passed_over": [_suggestion(suggestion) for suggestion in found.passed_over],
    }


def _suggestion(suggestion: Suggestion) -> dict[str, Any]:
    model, candidate = suggestion.model, suggestion.candidate
    fit = fit_json(candidate.fit)
    return {
        "name": model.name,
        "title": model.title,
        "ref": suggestion.ref,
        "quant": candidate.name,
        "n_bytes": candidate.n_bytes,
        "n_parameters": candidate.n_parameters,
        "licence": model.licence,
        "n_ctx_train": suggestion.n_ctx_train,
        "verdict": fit["verdict"],
        "decode_tps": fit["decode_tps"],
        "uncertainty": round(candidate.fit.uncertainty, 3),
        "total_bytes": fit["total_bytes"],
    }


def hit_json(hit: SearchHit) -> dict[str, Any]:
    """Return a repository that was found, with every quant of it that was looked at."""
    return {
        "repo": hit.listed.repo,
        "kind": "checkpoint" if hit.listed.is_checkpoint else "gguf",
        "downloads": hit.listed.n_downloads,
        "licence": hit.listed.licence or None,
        "gated": hit.listed.is_gated,
        "models": [_family(family) for family in hit.families],
        "models_left_out": hit.n_left_out,
        "problem": hit.problem or None,
    }


def _family(family: Family) -> dict[str, Any]:
    return {
        "architecture": family.architecture,
        "n_parameters": family.n_parameters,
        "n_ctx_train": family.n_ctx_train or None,
        "quants": [_candidate(candidate) for candidate in family.candidates],
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {"quant": candidate.name, "n_bytes": candidate.n_bytes, **fit_json(candidate.fit)}


def placement_json(placed: ModelRef, placement: ImportPlan, way: str) -> dict[str, Any]:
    """Return a model that got a place in the library, and how."""
    return {"id": placed.id, "path": str(placed.path), "bytes": placement.n_bytes, "way": way}


def removal_json(removal: Removal) -> dict[str, Any]:
    """Return what goes, or went, from the library."""
    paths = [str(path) for path in removal.paths]
    return {"id": removal.ref.id, "paths": paths, "bytes_freed": removal.n_bytes_freed}
