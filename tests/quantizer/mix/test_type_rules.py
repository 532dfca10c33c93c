from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import FILE_TYPES, TENSOR_TYPES, file_type_named, tensor_type_named
from quantizer.mix.type_rules import (
    Category,
    MixTensor,
    ModelShape,
    Overrides,
    allows_quantization,
    assign,
    category_of,
    n_dims,
    parse_override,
)
from quantizer.system.errors import UsageError
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import QuantizePlan, plan
from tests.quantizer.gguf_files import Skeleton

SKELETONS = {
    "multi-head": Skeleton(n_layers=24),
    "grouped-query": Skeleton(n_heads=8, n_kv_heads=2),
    "tied": Skeleton(is_tied=True, n_layers=9),
    "eight experts": Skeleton(n_experts=8, n_layers=8, n_ff=256),
    "four experts": Skeleton(n_experts=4, n_layers=10, n_ff=256, n_kv_heads=4),
    "rows of 32": Skeleton(n_embd=96, n_ff=160, n_layers=3, n_heads=4, n_kv_heads=4),
    "odd rows": Skeleton(n_embd=72, n_ff=200, n_layers=3, n_heads=4, n_kv_heads=4),
}
# llama.cpp knows no way out when rows do not fit these, where ours takes Q4_0
WITHOUT_FALLBACK = {"Q1_0"}


def ask_llama(path: Path) -> dict[str, dict[str, str]]:
    """What llama.cpp itself would give each tensor, under every file type."""
    script = Path(__file__).parents[1] / "llama_oracle.py"
    request = json.dumps({name: entry.ftype_id for name, entry in FILE_TYPES.items()})
    answer = subprocess.run(
        [sys.executable, str(script), str(path)], input=request, capture_output=True, text=True, check=True
    )
    types: dict[str, dict[str, str]] = json.loads(answer.stdout)
    return types


@pytest.mark.slow
@pytest.mark.parametrize("kind", SKELETONS)
def test_every_tensor_of_every_file_type_gets_what_llama_cpp_gives_it(tmp_path: Path, kind: str) -> None:
    skeleton = SKELETONS[kind]
    path = skeleton.write(tmp_path / "skeleton.gguf")
    tensors = [MixTensor(t.name, t.shape, TENSOR_TYPES[t.type_id]) for t in read_header(path).tensors]
    shape = ModelShape("llama", skeleton.n_layers, skeleton.n_heads, skeleton.n_kv_heads, skeleton.n_experts)
    theirs = ask_llama(path)
    for name, file_type in FILE_TYPES.items():
        if "error" in theirs[name]:
            assert name in WITHOUT_FALLBACK
            continue
        ours = {tensor: verdict.target.name for tensor, verdict in assign(tensors, file_type, shape).items()}
        assert ours == theirs[name], name


def test_the_70b_model_keeps_more_of_its_shared_values() -> None:
    names = [MixTensor(f"blk.{i}.attn_v.weight", (8192, 1024), tensor_type_named("F16")) for i in range(80)]
    shared = assign(names, file_type_named("Q3_K_S"), ModelShape("llama", 80, 64, 8))
    unshared = assign(names, file_type_named("Q3_K_S"), ModelShape("llama", 80, 64, 64))
    assert {verdict.target.name for verdict in shared.values()} == {"Q5_K"}
    assert {verdict.target.name for verdict in unshared.values()} == {"Q3_K"}


def test_an_importance_matrix_is_required_where_llama_cpp_requires_it() -> None:
    tensors = [
        MixTensor(name, (256, 256), tensor_type_named("F16")) for name in ("blk.0.attn_q.weight", "output.weight")
    ]
    verdicts = assign(tensors, file_type_named("IQ2_XXS"), ModelShape("llama", 1, 4, 4))
    assert {name: verdict.needs_imatrix for name, verdict in verdicts.items()} == {
        "blk.0.attn_q.weight": True,
        "output.weight": False,
    }


def test_a_fallback_is_marked_as_one() -> None:
    tensors = [MixTensor("blk.0.ffn_up.weight", (96, 64), tensor_type_named("F16"))]
    verdict = assign(tensors, file_type_named("Q4_K_S"), ModelShape("llama", 1, 4, 4))["blk.0.ffn_up.weight"]
    assert (verdict.target.name, verdict.wanted.name) == ("Q5_0", "Q4_K")


@pytest.mark.parametrize("name", ["blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ssm_conv1d.weight"])
def test_norms_routers_and_convolutions_are_never_quantized(name: str) -> None:
    assert not allows_quantization(name, (256, 256), "llama")


def test_trailing_ones_do_not_make_a_matrix() -> None:
    assert n_dims((256, 1, 1)) == 1
    assert not allows_quantization("blk.0.attn_q.weight", (256, 1), "llama")


def test_fused_attention_counts_as_values() -> None:
    assert category_of("blk.3.attn_qkv.weight") is Category.VALUE


@pytest.mark.parametrize(("file_type", "expected"), [("F16", "MXFP4"), ("Q4_K_M", "MXFP4"), ("Q2_K", "Q3_K")])
def test_a_tensor_that_was_made_quantized_changes_only_for_fewer_bits(file_type: str, expected: str) -> None:
    tensors = [MixTensor("blk.0.ffn_down_exps.weight", (256, 64, 4), tensor_type_named("MXFP4"), keeps_type=True)]
    shape = ModelShape("gpt-oss", 1, n_experts=4)
    assert assign(tensors, file_type_named(file_type), shape)["blk.0.ffn_down_exps.weight"].target.name == expected
    by_hand = Overrides((parse_override("down=F16"),))
    verdict = assign(tensors, file_type_named(file_type), shape, overrides=by_hand)["blk.0.ffn_down_exps.weight"]
    assert verdict.target.name == "F16"


def planned(folder: Path, options: PlanOptions, file_type: str = "Q4_K_M", is_tied: bool = False) -> QuantizePlan:
    source = Skeleton(n_layers=2, is_tied=is_tied).write(folder / "s.gguf")
    return plan(source, file_type_named(file_type), folder / "m.gguf", options)


def types(plan: QuantizePlan) -> dict[str, str]:
    return {tensor.output.name: tensor.output.kind.name for tensor in plan.tensors}


def overrides(*texts: str, output: str = "", embedding: str = "") -> PlanOptions:
    return PlanOptions(tensor_types=texts, output_type=output, embedding_type=embedding)


def test_the_first_pattern_that_matches_decides_and_the_others_stay_what_they_were(tmp_path: Path) -> None:
    usual = types(planned(tmp_path, PlanOptions()))
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
    options = overrides("ffn_up=Q6_K")
    plan_ = plan(source, file_type_named("F16"), tmp_path / "m.gguf", options)
    assert types(plan_)["blk.0.ffn_up.weight"] == "Q8_0"
    assert plan_.warnings == (
        "1 of 12 tensors use Q8_0: their row length is not a multiple of 256 (Q6_K). They are blk.*.ffn_up.weight.",
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
        ("ffn(=Q8_0", "not a valid regular expression"),
        ("a{1,99999999999}=Q8_0", "not a valid regular expression"),
        ("x" * 2000 + "=Q8_0", "too long"),
    ],
)
def test_an_override_that_makes_no_sense_is_wrong_use(text: str, cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        parse_override(text)
