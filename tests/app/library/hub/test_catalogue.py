from __future__ import annotations

from datetime import date

import pytest

from app.library.hub.catalogue import (
    CatalogueModel,
    Role,
    catalogue_model,
    catalogue_notice,
    parse_catalogue,
    read_catalogue,
)
from quantizer.gguf.hyperparameters import hyperparameter_faults
from quantizer.gguf.tensor_types import FILE_TYPES
from quantizer.system.errors import UsageError

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


@pytest.mark.parametrize("model", read_catalogue().models, ids=lambda model: model.name)
def test_every_model_can_be_planned(model: CatalogueModel) -> None:
    outline = model.outline()
    assert not list(hyperparameter_faults(outline.header))
    assert outline.n_ctx_train >= 2048


@pytest.mark.parametrize("model", read_catalogue().models, ids=lambda model: model.name)
def test_outlines_have_as_many_parameters_as_is_published(model: CatalogueModel) -> None:
    assert model.outline().n_parameters == pytest.approx(model.parameters, rel=0.02)


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
        assert notice.startswith(f"The catalogue is of January 2026, {n_months} months old")
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
