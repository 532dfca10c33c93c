from __future__ import annotations

import pytest

from app.library.hub.catalogue import CatalogueModel, Role, catalogue_model, parse_catalogue, read_catalogue
from quantizer.errors import UsageError
from quantizer.gguf.file_types import FILE_TYPES
from quantizer.gguf.hyperparameters import hyperparameter_faults

# Parameters as the makers count them, and gigabytes of files as their repositories list them.
PARAMETERS = {
    "llama-3.3-70b": 70_553_706_496,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "qwen3-30b-a3b": 30_532_122_624,
    "mistral-small-24b": 23_572_403_200,
    "gemma-3-1b": 999_885_952,
    "llama-3.2-3b": 3_212_749_824,
    "nomic-embed-text": 136_731_648,
}
PUBLISHED_GB = {
    ("qwen3-8b", "Q8_0"): 8.71,
    ("qwen3-8b", "Q6_K"): 6.73,
    ("gemma-3-4b", "Q4_K_M"): 2.49,
    ("gemma-3-4b", "Q8_0"): 4.13,
    ("llama-3.2-3b", "Q4_K_M"): 2.02,
    ("llama-3.2-3b", "Q8_0"): 3.42,
    ("mistral-small-24b", "Q4_K_M"): 14.3,
    ("mistral-small-24b", "Q6_K"): 19.3,
    ("qwen2.5-coder-7b", "Q8_0"): 8.1,
    ("qwen2.5-coder-1.5b", "Q8_0"): 1.65,
    ("qwen3-embedding-0.6b", "Q8_0"): 0.639,
    ("nomic-embed-text", "F16"): 0.274,
}


@pytest.mark.parametrize("model", read_catalogue(), ids=lambda model: model.name)
def test_every_model_can_be_planned(model: CatalogueModel) -> None:
    outline = model.outline()
    assert not list(hyperparameter_faults(outline.header))
    assert outline.n_ctx_train >= 2048


@pytest.mark.parametrize("name", PARAMETERS)
def test_outlines_have_as_many_parameters_as_the_models(name: str) -> None:
    assert sum(tensor.n_elements for tensor in catalogue_model(name).outline().tensors) == PARAMETERS[name]


@pytest.mark.parametrize(("name", "quant"), PUBLISHED_GB)
def test_sizes_are_those_of_the_published_files(name: str, quant: str) -> None:
    """The files have a vocabulary as well, of some megabytes."""
    n_bytes = catalogue_model(name).outline().quantized(FILE_TYPES[quant]).n_bytes
    assert n_bytes / 1e9 == pytest.approx(PUBLISHED_GB[name, quant], rel=0.012)


def test_every_role_has_models() -> None:
    models = read_catalogue()
    assert {role for model in models for role in model.roles} == set(Role)
    assert all(model.quants and model.licence and "/" in model.repo for model in models)


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="no model 'gpt-5'") as refused:
        catalogue_model("gpt-5")
    assert "qwen3-8b" in refused.value.remedy


SOUND = """
[[model]]
name = "a"
title = "A"
roles = ["chat"]
repo = "b/c"
quants = ["Q8_0"]
licence = "mit"
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
    ],
)
def test_an_invalid_table_is_rejected(change: tuple[str, str]) -> None:
    assert [model.name for model in parse_catalogue(SOUND)] == ["a"]
    with pytest.raises(ValueError, match="catalogue"):
        parse_catalogue(SOUND.replace(*change))
    with pytest.raises(ValueError, match="same name"):
        parse_catalogue(SOUND + SOUND)
