"""The choice of a quantization, without a screen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.protocol.library import ModelFit, Quant, TypeChoice
from tui.models.dialogs import about_type, loss_words, offered_types, recommended_type, type_line


def _choice(name: str, n_bytes: int, loss: float | None = 0.2, verdict="fits") -> TypeChoice:
    return TypeChoice(
        quant=Quant(name, n_bytes, ModelFit(verdict, 1.0, n_bytes)),
        bits_per_weight=4.0,
        perplexity_loss=loss,
        needs_imatrix=False,
        description="",
    )


_CHOICES = [_choice("Q2_K", 30), _choice("Q8_0", 100), _choice("Q4_K_M", 50), _choice("Q4_1", 55), _choice("F16", 200)]


@pytest.mark.parametrize(
    ("today", "n_bytes", "offered", "n_larger", "recommended"),
    [
        ("F16", 200, ["F16", "Q8_0", "Q4_1", "Q4_K_M", "Q2_K"], 0, "Q4_K_M"),
        ("", 200, ["F16", "Q8_0", "Q4_1", "Q4_K_M", "Q2_K"], 0, "Q4_K_M"),
        ("Q4_1", 55, ["Q4_1", "Q4_K_M", "Q2_K"], 2, "Q4_K_M"),
        ("Q4_K_M", 50, ["Q4_K_M", "Q2_K"], 3, "Q4_K_M"),
        ("Q2_K", 30, ["Q2_K"], 4, "Q2_K"),
    ],
)
def test_a_quantized_model_is_offered_nothing_that_only_makes_it_larger(today, n_bytes, offered, n_larger, recommended):
    choices, left_out = offered_types(_CHOICES, today, n_bytes)
    assert ([choice.quant.name for choice in choices], left_out) == (offered, n_larger)
    assert recommended_type(choices).quant.name == recommended


def test_where_the_usual_type_does_not_run_the_largest_that_does_is_recommended():
    choices = [_choice("Q8_0", 100, verdict="wont_run"), _choice("Q4_K_M", 50, verdict="wont_run"), _choice("Q2_K", 30)]
    assert recommended_type(choices).quant.name == "Q2_K"
    assert recommended_type(choices[:2]) is None


def test_a_loss_is_said_in_words():
    losses = (0.0026, 0.05, 0.1754, 0.5, 1.0, 9.0, None)
    assert [loss_words(loss) for loss in losses] == [
        "almost nothing",
        "very little",
        "little",
        "some",
        "much",
        "very much",
        "not measured",
    ]


@pytest.mark.parametrize("today", ["", "F16", "Q4_1", "Q8_0"])
def test_the_columns_of_types_are_aligned(today):
    lines = [type_line(choice, today, is_recommended=False).plain for choice in _CHOICES if choice.quant.name != today]
    assert len({line.index("● yes") for line in lines}) == 1
    assert len({line.index("tok/s") for line in lines}) == 1


def test_a_selected_type_says_how_fast_it_reads_and_writes_where_types_were_measured():
    choice = _choice("Q4_K_M", 50)
    assert about_type(choice) == "; +0.2000 perplexity"
    measured = replace(choice.quant.fit, decode_tps=81.0, prefill_tps=242.0)
    said = about_type(
        replace(choice, quant=replace(choice.quant, fit=measured), description="usual", needs_imatrix=True)
    )
    assert said.split("; ")[2:] == [
        "reads 242, writes 81 tokens a second here",
        "computes an importance matrix first, which takes a while",
    ]
