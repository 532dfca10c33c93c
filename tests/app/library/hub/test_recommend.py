from __future__ import annotations

from dataclasses import replace

import pytest

from app.library.hub.catalogue import CatalogueModel, Role, catalogue_model, read_catalogue
from app.library.hub.recommend import recommend, recommend_each
from app.library.machine_fit.planning import planning_context
from app.protocol.library import Recommendation
from app.settings.settings import Settings
from tests.offload.machines import MACHINES


def recommended(role: Role, machine: str) -> Recommendation:
    return recommend(read_catalogue().models, role, planning_context(Settings(), MACHINES[machine]))


@pytest.mark.parametrize(
    ("machine", "role", "chosen"),
    [
        ("RTX 3060 12 GB, 32 GB RAM", Role.CHAT, "ggml-org/gpt-oss-20b-GGUF:MXFP4_MOE"),
        ("RTX 3060 12 GB, 32 GB RAM", Role.CODE, "ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF:Q8_0"),
        ("RTX 4090, 64 GB RAM", Role.CHAT, "lmstudio-community/Qwen3.8-27B-GGUF:Q4_K_M"),
        ("2 × RTX 3090, 64 GB RAM", Role.CHAT, "lmstudio-community/Qwen3.8-27B-GGUF:Q8_0"),
        ("M2, 16 GB", Role.CHAT, "ggml-org/gemma-4-E4B-it-GGUF:Q8_0"),
        ("processor only, 32 GB", Role.CHAT, "lmstudio-community/Qwen3.6-35B-A3B-GGUF:Q4_K_M"),
        ("container of 4 GiB", Role.SMALL, "unsloth/Qwen3.5-0.8B-GGUF:Q4_K_M"),
        ("container of 4 GiB", Role.EMBEDDING, "nomic-ai/nomic-embed-text-v1.5-GGUF:Q8_0"),
    ],
)
def test_machines_get_what_their_owners_would_take(machine: str, role: Role, chosen: str) -> None:
    found = recommended(role, machine)
    assert found.model is not None
    assert found.model.reference == chosen, [each.quant for each in found.passed_over]


def test_what_is_passed_over_would_not_fit_or_is_too_slow() -> None:
    found = recommended(Role.CHAT, "RTX 3060 12 GB, 32 GB RAM")
    assert found.passed_over
    for other in found.passed_over:
        fit = other.quant.fit
        assert not fit.runs_well or (fit.decode_tps or 0) < 12
    assert "12 tok/s" in found.why
    assert found.model is not None
    assert found.model.keeps_pace


def test_where_all_are_slow_the_fastest_is_recommended() -> None:
    found = recommended(Role.MOE, "container of 4 GiB")
    assert found.model is None
    assert "No model of this kind runs" in found.why
    assert all(other.quant.fit.verdict == "wont_run" for other in found.passed_over)
    slow = recommended(Role.CODE, "container of 4 GiB")
    assert slow.model is not None
    assert "the best of the fastest" in slow.why
    assert not slow.model.keeps_pace


def _dated(name: str, published: str) -> CatalogueModel:
    return replace(catalogue_model("qwen3-8b"), name=name, title=name, repo=f"org/{name}", published=published)


def _chosen(machine: str, *models: CatalogueModel) -> tuple[str, str]:
    found = recommend(models, Role.CHAT, planning_context(Settings(), MACHINES[machine]))
    assert found.model is not None
    assert found.why.count(". ") == 0
    assert found.why == found.model.why
    return found.model.name, found.why


@pytest.mark.parametrize("machine", ["RTX 3060 12 GB, 32 GB RAM", "processor only, 32 GB"])
def test_of_two_of_a_size_and_speed_the_newer_is_recommended(machine: str) -> None:
    """One machine is fast enough for them, the other is not."""
    old, new = _dated("old", "2025-04"), _dated("new", "2026-08")
    assert _chosen(machine, old, new)[0] == "new"
    assert _chosen(machine, new, old)[0] == "new"
    assert _chosen(machine, old, replace(new, published="2025-04"))[0] == "old"


def test_the_reason_of_a_newer_one_names_both() -> None:
    name, why = _chosen("RTX 3060 12 GB, 32 GB RAM", _dated("old", "2025-04"), _dated("new", "2026-08"))
    expected = (
        "It came out in August 2026, after old of the same size and speed, and fits and reaches at least 12 tok/s."
    )
    assert (name, why) == ("new", expected)


def test_a_newer_one_of_another_size_or_speed_does_not_go_before() -> None:
    first = _dated("first", "2025-04")
    smaller = replace(catalogue_model("qwen3-4b"), published="2026-08")
    slower = replace(_dated("slower", "2026-08"), quants=first.quants[:1])  # in Q8_0 alone
    assert _chosen("RTX 3060 12 GB, 32 GB RAM", first, smaller)[0] == "first"
    assert _chosen("M2, 16 GB", first, slower)[0] == "first"


def test_each_role_is_recommended_as_alone() -> None:
    here, models = planning_context(Settings(), MACHINES["RTX 4090, 64 GB RAM"]), read_catalogue().models
    assert recommend_each(models, Role, here) == tuple(recommend(models, role, here) for role in Role)
