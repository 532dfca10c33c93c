from __future__ import annotations

from pathlib import Path

import pytest

from quantizer.gguf.file_types import file_type_named
from quantizer.mix.overrides import Overrides, parse_override, weight_type_named
from quantizer.system.errors import UsageError
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import PlanOptions, QuantizePlan, plan
from tests.quantizer.gguf_files import Skeleton


def planned(folder: Path, overrides: Overrides, file_type: str = "Q4_K_M", is_tied: bool = False) -> QuantizePlan:
    source = Skeleton(n_layers=2, is_tied=is_tied).write(folder / "s.gguf")
    return plan(source, file_type_named(file_type), folder / "m.gguf", PlanOptions(overrides))


def types(plan: QuantizePlan) -> dict[str, str]:
    return {tensor.output.name: tensor.output.kind.name for tensor in plan.tensors}


def overrides(*texts: str, output: str = "", embedding: str = "") -> Overrides:
    return Overrides(
        tuple(map(parse_override, texts)),
        weight_type_named(output) if output else None,
        weight_type_named(embedding) if embedding else None,
    )


def test_the_first_pattern_that_matches_decides_and_the_others_stay_what_they_were(tmp_path: Path) -> None:
    usual = types(planned(tmp_path, Overrides()))
    changed = types(planned(tmp_path, overrides(r"blk\.1\.ffn_down=q8_0", "ffn_down=Q5_K")))
    expected = {"blk.1.ffn_down.weight": "Q8_0", "blk.0.ffn_down.weight": "Q5_K"}
    assert changed == usual | expected


def test_what_names_one_tensor_goes_before_a_pattern(tmp_path: Path) -> None:
    changed = types(planned(tmp_path, overrides("weight=Q5_0", output="Q8_0", embedding="Q6_K")))
    assert (changed["output.weight"], changed["token_embd.weight"]) == ("Q8_0", "Q6_K")
    assert changed["blk.0.attn_q.weight"] == "Q5_0"


def test_the_output_type_of_a_tied_model_is_that_of_its_embedding(tmp_path: Path) -> None:
    assert types(planned(tmp_path, overrides(output="Q5_K"), is_tied=True))["token_embd.weight"] == "Q5_K"


def test_plain_types_take_overrides_too(tmp_path: Path) -> None:
    changed = types(planned(tmp_path, overrides("ffn=Q8_0"), "F16"))
    assert (changed["blk.0.ffn_up.weight"], changed["blk.0.attn_q.weight"]) == ("Q8_0", "F16")


def test_norms_are_no_weights_to_override(tmp_path: Path) -> None:
    assert types(planned(tmp_path, overrides("norm=Q8_0")))["output_norm.weight"] == "F32"


def test_what_matches_nothing_is_a_warning(tmp_path: Path) -> None:
    plan = planned(tmp_path, overrides("ffn_dwon=Q8_0", "ffn_up=Q8_0"))
    assert plan.warnings == ("--tensor ffn_dwon=Q8_0 matches no tensor of this model.",)


def test_a_type_that_does_not_fit_falls_back_with_a_warning(tmp_path: Path) -> None:
    source = Skeleton(n_embd=96, n_ff=160, n_layers=1, n_heads=4, n_kv_heads=4).write(tmp_path / "s.gguf")
    options = PlanOptions(overrides("ffn_up=Q6_K"))
    plan_ = plan(source, file_type_named("F16"), tmp_path / "m.gguf", options)
    assert types(plan_)["blk.0.ffn_up.weight"] == "Q8_0"
    assert plan_.warnings == (
        "1 of 12 tensors have rows that are no whole blocks of Q6_K and become Q8_0: blk.*.ffn_up.weight.",
    )


def test_an_override_that_needs_an_importance_matrix_is_refused_before_writing(tmp_path: Path) -> None:
    plan = planned(tmp_path, overrides(embedding="IQ2_XXS"))
    with pytest.raises(UsageError, match=r"without an importance matrix, token_embd\.weight"):
        execute(plan, 1, False, lambda _event: None)
    assert [path.name for path in tmp_path.iterdir()] == ["s.gguf"]


@pytest.mark.parametrize("kind", ["NVFP4", "MXFP4", "TQ1_0", "Q1_0", "Q2_0", "BF16", "IQ4_NL"])
def test_every_type_of_ggml_can_be_requested(tmp_path: Path, kind: str) -> None:
    plan = planned(tmp_path, overrides(f"ffn_up={kind}"))
    execute(plan, 1, False, lambda _event: None)
    assert types(plan)["blk.0.ffn_up.weight"] == kind


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("ffn_up", "not of the form REGEX=TYPE"),
        ("=Q8_0", "not of the form REGEX=TYPE"),
        ("ffn_up=Q4_K_M", "no tensor type 'Q4_K_M'"),
        ("ffn_up=I32", "no tensor type 'I32'"),
        ("ffn(=Q8_0", "no regular expression"),
        ("a{1,99999999999}=Q8_0", "no regular expression"),
        ("x" * 2000 + "=Q8_0", "too long"),
    ],
)
def test_an_override_that_makes_no_sense_is_wrong_use(text: str, cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        parse_override(text)
