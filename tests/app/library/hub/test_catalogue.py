from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import cache

import pytest

from app.library.hub.catalogue import (
    CatalogueModel,
    Role,
    catalogue_model,
    catalogue_notice,
    parse_catalogue,
    read_catalogue,
    resolve_reference,
)
from app.library.hub.reference import RepoReference
from app.library.hub.selection import recommend_each
from app.library.machine_fit.planning import planning_context, without_system
from app.protocol.library import Recommendation
from app.settings.settings import Settings
from offload.devices.machine import Machine
from offload.footprint.model import PlannedModel
from quantizer.gguf.hyperparameters import hyperparameter_faults
from quantizer.gguf.tensor_types import FILE_TYPES, FileType
from quantizer.system.errors import UsageError
from tests.offload.machines import MACHINES

# Gigabytes of files as their repositories list them.
PUBLISHED_GB = {
    ("qwen3-8b", "Q8_0"): 8.71,
    ("qwen3-8b", "Q6_K"): 6.73,
    ("gemma-3-4b", "Q4_K_M"): 2.49,
    ("gemma-3-4b", "Q8_0"): 4.13,
    ("llama-3.2-3b", "Q4_K_M"): 2.02,
    ("llama-3.2-3b", "Q8_0"): 3.42,
    ("mistral-small-3.2-24b", "Q4_K_M"): 14.3,
    ("mistral-small-3.2-24b", "Q6_K"): 19.3,
    ("gpt-oss-20b", "MXFP4_MOE"): 12.110,
    ("gpt-oss-120b", "MXFP4_MOE"): 63.387,
    ("granite-4.2-30b", "Q4_K_M"): 17.72,
    ("ministral-3-8b", "Q4_K_M"): 5.199,
    ("ministral-3-14b", "Q4_K_M"): 8.240,
    ("ministral-3-14b", "Q5_K_M"): 9.62,
    ("qwen3.5-9b", "Q8_0"): 9.528,
    ("qwen3.8-27b", "Q8_0"): 28.596,
    ("qwen3.6-35b-a3b", "Q8_0"): 36.903,
    ("qwen3.5-122b-a10b", "Q8_0"): 129.872,
    ("qwen3.5-397b-a17b", "Q8_0"): 421.507,
    ("qwen3-embedding-8b", "Q5_K_M"): 5.422,
    ("smollm3-3b", "Q4_K_M"): 1.915,
    ("qwen2.5-coder-7b", "Q8_0"): 8.1,
    ("qwen2.5-coder-1.5b", "Q8_0"): 1.65,
    ("qwen3-embedding-0.6b", "Q8_0"): 0.639,
    ("nomic-embed-text", "F16"): 0.274,
}


@pytest.fixture(autouse=True, scope="module")
def _outlines_are_made_once() -> Iterator[None]:
    """Making outlines and their types takes three quarters of the time of choosing among models."""
    made: dict[int, tuple[CatalogueModel, PlannedModel]] = {}
    quantized: dict[tuple[int, str], tuple[PlannedModel, PlannedModel]] = {}
    make, quantize = CatalogueModel.outline, PlannedModel.quantized

    def outline(model: CatalogueModel) -> PlannedModel:
        if id(model) not in made:
            made[id(model)] = (model, make(model))
        return made[id(model)][1]

    def quantize_once(model: PlannedModel, file_type: FileType) -> PlannedModel:
        key = id(model), file_type.name
        if key not in quantized:
            quantized[key] = (model, quantize(model, file_type))
        return quantized[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CatalogueModel, "outline", outline)
        patch.setattr(PlannedModel, "quantized", quantize_once)
        yield


@pytest.mark.parametrize("model", read_catalogue().models, ids=lambda model: model.name)
def test_every_model_can_be_planned_and_has_as_many_parameters_as_is_published(model: CatalogueModel) -> None:
    outline = model.outline()
    assert not list(hyperparameter_faults(outline.header))
    assert outline.n_ctx_train >= 2048
    assert outline.n_parameters == pytest.approx(model.parameters, rel=0.02)


@pytest.mark.parametrize(("name", "quant"), PUBLISHED_GB)
def test_sizes_are_those_of_the_published_files(name: str, quant: str) -> None:
    """The files have a vocabulary as well, of some megabytes."""
    n_bytes = catalogue_model(name).outline().quantized(FILE_TYPES[quant]).n_bytes
    assert n_bytes / 1e9 == pytest.approx(PUBLISHED_GB[name, quant], rel=0.012)


def test_every_role_has_models() -> None:
    models = read_catalogue().models
    assert {role for model in models for role in model.roles} == set(Role)
    assert all(model.quants and model.licence and "/" in model.repo for model in models)


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="no model 'gpt-5'") as refused:
        catalogue_model("gpt-5")
    assert "qwen3-8b" in refused.value.remedy


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("llama3.2:3b", "llama-3.2-3b"),  # Ollama's form
        ("gemma3", "gemma-3-27b"),
        ("Qwen3_8B", "qwen3-8b"),
        ("qwen3.5-08b", "qwen3.5-0.8b"),
        ("lama-3.2-3b", "llama-3.2-3b"),
    ],
)
def test_a_name_of_another_form_is_answered_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UsageError) as refused:
        catalogue_model(name)
    assert refused.value.remedy.startswith(f"The nearest: {nearest}")
    assert f"localllm pull {nearest}`" in refused.value.remedy
    assert f"localllm pull ollama:{name}`" in refused.value.remedy


@pytest.mark.parametrize(
    ("name", "known"),
    [("qwen3:4b", "qwen3-4b"), ("Qwen3:0.6B", "qwen3-0.6b"), ("nomic-embed-text:latest", "nomic-embed-text")],
)
def test_a_model_of_the_catalogue_is_found_by_its_name_in_ollamas_form(name: str, known: str) -> None:
    assert catalogue_model(name).name == known
    assert resolve_reference(name, "") == RepoReference(catalogue_model(known).repo)


def test_no_model_came_out_after_the_catalogue() -> None:
    catalogue = read_catalogue()
    assert all(model.published <= f"{catalogue.dated:%Y-%m}" for model in catalogue.models)


@pytest.mark.parametrize(
    ("today", "n_months"),
    [
        (date(2026, 1, 31), None),
        (date(2026, 7, 30), None),
        (date(2026, 7, 31), 6),
        (date(2027, 1, 30), 11),
        (date(2028, 2, 1), 24),
        (date(2025, 1, 1), None),
    ],
)
def test_a_catalogue_of_six_months_says_where_newer_models_are(today: date, n_months: int | None) -> None:
    notice = catalogue_notice(date(2026, 1, 31), today)
    assert bool(notice) == (n_months is not None)
    if n_months:
        assert notice.startswith(f"The catalogue is from January 2026, {n_months} months old")
        assert "localllm search --trending" in notice


SOUND = """
dated = 2026-01-31

[[model]]
name = "a"
title = "A"
roles = ["chat"]
repo = "b/c"
quants = ["Q8_0"]
licence = "mit"
published = "2025-12"
parameters = 1_000
source = ["https://huggingface.co/b/c"]
config = {}
"""


@pytest.mark.parametrize(
    "change",
    [
        ('name = "a"', 'name = "A b"'),
        ('name = "a"', ""),
        ('repo = "b/c"', 'repo = "../c"'),
        ('repo = "b/c"', "repo = 3"),
        ('["chat"]', '["dance"]'),
        ('["chat"]', "[]"),
        ('["Q8_0"]', '["Q9_0"]'),
        ("{}", '"x"'),
        ("2025-12", "2025-13"),
        ("1_000", '"some"'),
        ('"https://huggingface.co/b/c"', '"a card"'),
        ('"https://huggingface.co/b/c"', ""),
        ("dated = 2026-01-31", ""),
        ("dated = 2026-01-31", 'dated = "2026"'),
    ],
)
def test_an_invalid_table_is_rejected(change: tuple[str, str]) -> None:
    assert [model.name for model in parse_catalogue(SOUND).models] == ["a"]
    with pytest.raises(ValueError, match="catalogue"):
        parse_catalogue(SOUND.replace(*change))
    with pytest.raises(ValueError, match="same name"):
        parse_catalogue(SOUND + SOUND.replace("dated = 2026-01-31", ""))


def processor_only(total_gib: float, free_gib: float, gb_per_s: float) -> Machine:
    host = MACHINES["processor only, 32 GB"].host
    n_bytes = round(total_gib * (1 << 30)), round(free_gib * (1 << 30))
    return Machine(replace(host, total_bytes=n_bytes[0], free_bytes=n_bytes[1], bytes_per_s=gb_per_s * 1e9))


SMALL_MACHINES = {
    "2 cores, 24 GB": processor_only(24, 22, 28),
    "2 busy cores, 16 GB": processor_only(16, 15, 8),
    "old laptop, 8 GB": processor_only(8, 6, 10),
}


@cache
def recommended(role: Role, machine: str) -> Recommendation:
    here = planning_context(Settings(), (MACHINES | SMALL_MACHINES)[machine])
    return recommend_each(read_catalogue().models, [role], here)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "role", "chosen"),
    [
        ("RTX 3060 12 GB, 32 GB RAM", Role.CHAT, "ggml-org/gpt-oss-20b-GGUF:MXFP4_MOE"),
        ("RTX 3060 12 GB, 32 GB RAM", Role.CODE, "ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF:Q8_0"),
        ("RTX 4090, 64 GB RAM", Role.CHAT, "lmstudio-community/Qwen3.8-27B-GGUF:Q4_K_M"),
        ("2 × RTX 3090, 64 GB RAM", Role.CHAT, "lmstudio-community/Qwen3.8-27B-GGUF:Q8_0"),
        ("M2, 16 GB", Role.CHAT, "ibm-granite/granite-4.2-8b-GGUF:Q4_K_M"),
        ("2 cores, 24 GB", Role.CHAT, "unsloth/Qwen3.5-2B-GGUF:Q6_K"),
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
        assert not fit.runs_well or (fit.decode_tps or 0) < 10
    assert "10 tok/s" in found.why
    assert found.model is not None
    assert found.model.keeps_pace


@pytest.mark.slow
def test_where_all_are_slow_the_fastest_is_recommended() -> None:
    found = recommended(Role.MOE, "container of 4 GiB")
    assert found.model is None
    assert "No model of this kind runs" in found.why
    assert all(other.quant.fit.verdict == "wont_run" for other in found.passed_over)
    slow = recommended(Role.CODE, "container of 4 GiB")
    assert slow.model is not None
    assert "the best of the fastest" in slow.why
    assert not slow.model.keeps_pace


@pytest.mark.slow
@pytest.mark.parametrize("machine", [*MACHINES, *SMALL_MACHINES])
def test_no_slow_model_of_a_chat_goes_before_a_smaller_one_that_is_quick(machine: str) -> None:
    found = recommended(Role.CHAT, machine).model
    assert found is not None
    alternatives = [model for model in read_catalogue().models if Role.CHAT in model.roles]
    here = planning_context(Settings(), (MACHINES | SMALL_MACHINES)[machine])
    speeds = [here.fit(model.outline().quantized(model.quants[-1])).decode_tps or 0.0 for model in alternatives]
    assert (found.quant.fit.decode_tps or 0.0) >= min(5.0, 0.85 * max(speeds))
    if max(speeds) >= 10:
        assert found.keeps_pace


@pytest.mark.parametrize(("total_gib", "for_system_gib"), [(4, 1), (8, 2), (16, 4), (64, 4)])
def test_the_system_keeps_its_memory(total_gib: int, for_system_gib: int) -> None:
    """What is free may be all of it: a machine that was just started, or is only described."""
    machine = processor_only(total_gib, total_gib, 60)
    assert without_system(machine).host.free_bytes == (total_gib - for_system_gib) << 30
    busy = processor_only(total_gib, total_gib / 2, 60)
    assert without_system(busy) == busy


@pytest.mark.slow
@pytest.mark.parametrize(("total_gib", "for_system_gib"), [(4, 1), (16, 4)])  # all roles take a second
def test_no_recommendation_takes_what_the_system_keeps(total_gib: int, for_system_gib: int) -> None:
    here = planning_context(Settings(), processor_only(total_gib, total_gib, 60))
    for found in recommend_each(read_catalogue().models, Role, here):
        if found.model is not None:
            assert found.model.quant.fit.total_bytes <= (total_gib - for_system_gib) << 30


def _dated(name: str, published: str) -> CatalogueModel:
    return replace(catalogue_model("qwen3-8b"), name=name, title=name, repo=f"org/{name}", published=published)


def _chosen(machine: str, *models: CatalogueModel) -> tuple[str, str]:
    (found,) = recommend_each(models, [Role.CHAT], planning_context(Settings(), MACHINES[machine]))
    assert found.model is not None
    assert found.why.count(". ") == 0
    assert found.why == found.model.why
    return found.model.name, found.why


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["RTX 3060 12 GB, 32 GB RAM", "processor only, 32 GB"])
def test_of_two_of_a_size_and_speed_the_newer_is_recommended(machine: str) -> None:
    """One machine is fast enough for them, the other is not."""
    old, new = _dated("old", "2025-04"), _dated("new", "2026-08")
    assert _chosen(machine, old, new)[0] == "new"
    assert _chosen(machine, new, old)[0] == "new"
    assert _chosen(machine, old, replace(new, published="2025-04"))[0] == "old"


@pytest.mark.slow
def test_the_reason_of_a_newer_one_names_both() -> None:
    name, why = _chosen("RTX 3060 12 GB, 32 GB RAM", _dated("old", "2025-04"), _dated("new", "2026-08"))
    expected = (
        "It came out in August 2026, after old of the same size and speed, and fits and reaches at least 10 tok/s."
    )
    assert (name, why) == ("new", expected)


@pytest.mark.slow
def test_a_newer_one_of_another_size_or_speed_does_not_go_before() -> None:
    first = _dated("first", "2025-04")
    smaller = replace(catalogue_model("qwen3-4b"), published="2026-08")
    slower = replace(_dated("slower", "2026-08"), quants=first.quants[:1])  # in Q8_0 alone
    assert _chosen("RTX 3060 12 GB, 32 GB RAM", first, smaller)[0] == "first"
    assert _chosen("M2, 16 GB", first, slower)[0] == "first"


@pytest.mark.slow
def test_each_role_is_recommended_as_alone() -> None:
    here, models = planning_context(Settings(), MACHINES["RTX 4090, 64 GB RAM"]), read_catalogue().models
    assert recommend_each(models, Role, here) == tuple(recommend_each(models, [role], here)[0] for role in Role)
