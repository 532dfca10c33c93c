from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import quantizer
from quantizer.architectures import ARCHITECTURES, UNCONVERTIBLE, find_architecture, nearest_classes
from quantizer.checkpoint.config import CheckpointError


def refused(**settings: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        find_architecture(settings)
    return caught.value


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("MistralLarge4ForCausalLM", "MistralForCausalLM"),
        ("Qwen99MoeForCausalLM", "Qwen3MoeForCausalLM"),
        ("FalconMambaForCausalLM", "MambaForCausalLM"),
        ("MyBertModel", "BertModel"),
        ("DeepseekV9ForCausalLM", "DeepseekV3ForCausalLM"),
    ],
)
def test_an_unknown_class_is_told_the_nearest_known_ones(name: str, nearest: str) -> None:
    classes = (nearest, "GptOssForCausalLM", "MistralForCausalLM", "LlamaForCausalLM", "BertModel", "XyzModel")
    found = nearest_classes([name], dict.fromkeys(classes))
    assert found[0] == nearest
    assert len(found) == 3


def test_one_class_stands_for_a_model_and_it_has_the_same_head() -> None:
    known = ("BertModel", "BertForMaskedLM", "RobertaModel", "RobertaForMaskedLM", "LlamaForCausalLM")
    assert nearest_classes(["AlbertForMaskedLM"], known)[:2] == ["BertForMaskedLM", "RobertaForMaskedLM"]


def test_the_model_type_is_a_hint_where_the_class_says_nothing() -> None:
    assert ": MistralForCausalLM, " in refused(architectures=["Xyz"], model_type="mistral").cause
    assert ": MistralForCausalLM, " in refused(architectures=["Xyz"], text_config={"model_type": "mistral"}).cause


def test_the_error_is_short_and_names_the_page_that_says_how_to_add_one() -> None:
    error = refused(architectures=["A" * 5_000 + "ForCausalLM"])
    page = Path(quantizer.__file__).with_name("README.md")
    assert str(page) in error.remedy
    assert "\n## How to extend it\n" in page.read_text(encoding="utf-8")
    assert 0 < len(re.findall(r"\b(?:" + "|".join(ARCHITECTURES) + r")\b", error.cause)) <= 3
    assert len(error.cause) < 300


def test_a_checkpoint_without_a_class_has_no_nearest_one() -> None:
    assert refused().cause == "The architecture of this checkpoint cannot be converted yet."


@pytest.mark.parametrize("name", UNCONVERTIBLE)
def test_what_cannot_be_converted_says_why(name: str) -> None:
    assert UNCONVERTIBLE[name] in refused(architectures=[name]).cause
    assert name not in ARCHITECTURES
