from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.adapters import validate_adapter
from quantizer.gguf.header import Header
from quantizer.gguf.tensor_types import file_type_named
from quantizer.system.errors import UsageError, UserError
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import QuantizePlan, open_source, plan
from tests.quantizer.checkpoints import TinyLlama, write_checkpoint
from tests.quantizer.peft_adapters import RANK, pair, write_peft

BASE = TinyLlama(dtype="F32", n_embd=64, n_ff=96)
LAYER = "model.layers.1"
PAIRS = {
    **pair(f"{LAYER}.self_attn.q_proj", 64, 64),
    **pair(f"{LAYER}.self_attn.k_proj", 64, 32),
    **pair(f"{LAYER}.mlp.down_proj", 96, 64),
    **pair("lm_head", 64, 272),
}
OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "outlines.json").read_text())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return BASE.write(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def base_gguf(base: Path) -> Path:
    return convert(base, "F32", None)


def convert(source: Path, file_type: str, base: Path | None) -> Path:
    output = source.with_name(f"{source.name}-{file_type}.gguf")
    execute(plan(source, file_type_named(file_type), output, PlanOptions(base=base)), 2, True, lambda _done: None)
    return output


def written(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors}


def alpha(header: Header) -> object:
    return header.metadata["adapter.lora.alpha"]


@pytest.mark.parametrize("is_folder", [True, False])
def test_an_adapter_is_valid_and_changes_the_weights_as_in_peft(
    tmp_path: Path, base: Path, base_gguf: Path, is_folder: bool
) -> None:
    """Rows of queries are reordered as those of the weight: what is added to it must be the same matrix, reordered."""
    folder = write_peft(tmp_path / "adapter", PAIRS)
    path = convert(folder, "F32", base if is_folder else base_gguf)
    assert alpha(validate_adapter(path, base_gguf)) == 8
    ours, name = written(path), f"base_model.model.{LAYER}.self_attn"
    for letter, n_heads in (("q", 4), ("k", 2)):
        theirs = PAIRS[f"{name}.{letter}_proj.lora_B.weight"] @ PAIRS[f"{name}.{letter}_proj.lora_A.weight"]
        halves = theirs.reshape(n_heads, 2, -1, 64).swapaxes(1, 2).reshape(-1, 64)
        prefix = f"blk.1.attn_{letter}.weight"
        assert np.allclose(ours[f"{prefix}.lora_b"] @ ours[f"{prefix}.lora_a"], halves)
    assert np.array_equal(ours["output.weight.lora_b"], PAIRS["base_model.model.lm_head.lora_B.weight"])


def test_the_embeddings_matrix_lies_as_llama_cpp_looks_rows_up(tmp_path: Path, base: Path, base_gguf: Path) -> None:
    name = "base_model.model.model.embed_tokens.lora_embedding"
    tokens, back = np.ones((RANK, 272), np.float32), np.ones((64, RANK), np.float32)
    path = convert(write_peft(tmp_path / "adapter", {f"{name}_A": tokens, f"{name}_B": back}), "F16", base)
    validate_adapter(path, base_gguf)
    assert written(path)["token_embd.weight.lora_a"].shape == (272, RANK)


def test_parts_of_a_fused_matrix_share_the_first_of_the_pair(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    config = OUTLINES["phi"]["config"]
    (base / "config.json").write_text(json.dumps(config))
    n_embd, n_ff = config["hidden_size"], config["intermediate_size"]
    module = "model.layers.0.mlp.gate_up_proj"
    path = convert(write_peft(tmp_path / "adapter", pair(module, n_embd, 2 * n_ff)), "F32", base)
    assert written(path)["blk.0.ffn_up.weight.lora_b"].shape == (2 * n_ff, RANK)


def test_heads_of_a_gguf_base_come_in_turns_as_those_of_its_folder(tmp_path: Path) -> None:
    """Qwen 3.5's adapters move with its heads of values, whose numbers a GGUF calls otherwise."""
    outline, layer = OUTLINES["qwen35"], "model.layers.0.linear_attn"
    weights = {name: ("F32", np.ones(shape, np.float32)) for name, shape in outline["tensors"].items()}
    base = write_checkpoint(tmp_path / "base", outline["config"], weights)
    pairs = {
        name: matrix
        for module in ("in_proj_qkv", "in_proj_a", "out_proj")
        for name, matrix in pair(f"{layer}.{module}", *outline["tensors"][f"{layer}.{module}.weight"][::-1]).items()
    }
    of_folder = written(convert(write_peft(tmp_path / "adapter", pairs), "F32", base))
    of_gguf = written(convert(write_peft(tmp_path / "again", pairs), "F32", convert(base, "F32", None)))
    assert of_folder.keys() == of_gguf.keys()
    assert all(np.array_equal(of_folder[name], of_gguf[name]) for name in of_folder)
    theirs = pairs[f"base_model.model.{layer}.in_proj_a.lora_B.weight"]
    assert np.array_equal(of_gguf["blk.0.ssm_alpha.weight.lora_b"], theirs[[0, 3, 1, 4, 2, 5]])


@pytest.mark.parametrize(
    ("name", "kind"),
    [("nemotron-h-experts", "mixer"), ("granitehybrid-dense", "shared_mlp"), ("granitehybrid", "shared_mlp")],
)
def test_a_gguf_base_whose_class_has_several_names_is_as_its_folder(tmp_path: Path, name: str, kind: str) -> None:
    """llama.cpp calls Nemotron-H with experts otherwise; Granite's hybrids without experts have other tensors."""
    outline = OUTLINES[name]
    weights = {name: ("F32", np.ones(shape, np.float32)) for name, shape in outline["tensors"].items()}
    base = write_checkpoint(tmp_path / "base", outline["config"], weights)
    shapes = {
        name.removesuffix(".weight"): shape
        for name, shape in outline["tensors"].items()
        if f".{kind}." in name and len(shape) == 2 and name.endswith(("_proj.weight", "_linear.weight"))
    }
    pairs = {
        name: matrix for module, (n_out, n_in) in shapes.items() for name, matrix in pair(module, n_in, n_out).items()
    }
    of_folder = written(convert(write_peft(tmp_path / "adapter", pairs), "F32", base))
    of_gguf = written(convert(write_peft(tmp_path / "again", pairs), "F32", convert(base, "F32", None)))
    assert of_folder.keys() == of_gguf.keys()
    assert all(np.array_equal(of_folder[name], of_gguf[name]) for name in of_folder)


def deepseek_plan(folder: Path, module: str, n_in: int, n_out: int) -> QuantizePlan:
    base = folder / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps(OUTLINES["deepseek2"]["config"]))
    adapter = write_peft(folder / "adapter", pair(f"model.layers.0.self_attn.{module}", n_in, n_out))
    return plan(adapter, file_type_named("F16"), folder / "a.gguf", PlanOptions(base=base))


def test_weights_that_llama_cpp_never_adapts_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_q_a\.weight, to which llama\.cpp applies no adapters"):
        deepseek_plan(tmp_path, "q_a_proj", 64, 24)


def test_other_weights_of_such_a_model_are_adapted(tmp_path: Path) -> None:
    assert len(deepseek_plan(tmp_path, "o_proj", 64, 64).tensors) == 2


def test_a_rank_that_is_scaled_by_its_root_gets_another_alpha(tmp_path: Path, base: Path, base_gguf: Path) -> None:
    path = convert(write_peft(tmp_path / "adapter", PAIRS, use_rslora=True), "F32", base)
    assert alpha(validate_adapter(path, base_gguf)) == 8 * RANK**0.5


def test_the_base_that_an_adapter_names_is_used_where_it_is_a_folder(tmp_path: Path, base: Path) -> None:
    folder = write_peft(tmp_path / "adapter", PAIRS, base_model_name_or_path=str(base))
    assert len(plan(folder, file_type_named("F16"), tmp_path / "a.gguf").tensors) == len(PAIRS)


A, B = (f"base_model.model.{LAYER}.self_attn.q_proj.lora_{side}.weight" for side in "AB")


@pytest.mark.parametrize(
    ("tensors", "settings", "named"),
    [
        (PAIRS, {"use_dora": True}, "DoRA"),
        (PAIRS, {"modules_to_save": ["lm_head"]}, "modules_to_save"),
        (PAIRS, {"bias": "all"}, "changes biases"),
        (PAIRS, {"alpha_pattern": {"q_proj": 4}}, "alpha_pattern"),
        (PAIRS, {"use_rslora": True, "rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        (PAIRS, {"peft_type": "LOHA"}, "LOHA"),
        (PAIRS, {"lora_alpha": None}, "lora_alpha"),
        ({}, {}, "changes nothing"),
        ({A: np.ones((4, 64))}, {}, "lacks one of the two matrices for .*q_proj"),
        (
            {
                name: np.ones((4, 272))
                for name in (
                    "base_model.model.model.embed_tokens.lora_A.weight",
                    "base_model.model.model.embed_tokens.lora_embedding_A",
                )
            },
            {},
            "changes .*embed_tokens.* twice",
        ),
        ({A: np.ones((4, 32)), B: np.ones((64, 4))}, {}, r"blk\.1\.attn_q\.weight of other shapes"),
        ({A: np.ones((4, 64)), B: np.ones((64, 8))}, {}, r"blk\.1\.attn_q\.weight of other shapes"),
        (pair("model.layers.7.self_attn.q_proj", 64, 64), {}, "no name for the tensor"),
        (pair("vision_tower.q_proj", 64, 64), {}, "no name for the tensor"),
        ({"base_model.model.model.norm.weight": np.ones(64)}, {}, "not a LoRA matrix"),
    ],
)
def test_matrices_that_fit_nothing_and_what_is_more_than_pairs_of_them_are_named(
    tmp_path: Path, base: Path, tensors: dict[str, np.ndarray], settings: dict[str, Any], named: str
) -> None:
    folder = write_peft(tmp_path / "adapter", tensors, **settings)
    with pytest.raises(CheckpointError, match=named):
        plan(folder, file_type_named("F16"), tmp_path / "a.gguf", PlanOptions(base=base))


def test_an_output_that_is_the_embedding_cannot_change_alone(tmp_path: Path) -> None:
    base = TinyLlama(n_embd=64, n_ff=96, is_tied=True).write(tmp_path / "base")
    folder = write_peft(tmp_path / "adapter", pair("lm_head", 64, 272))
    with pytest.raises(CheckpointError, match=r"output\.weight, which its base model does not have"):
        plan(folder, file_type_named("F16"), tmp_path / "a.gguf", PlanOptions(base=base))


EMBEDDING = "base_model.model.model.embed_tokens"


def on_the_vocabulary(n_tokens: int = 272) -> dict[str, np.ndarray]:
    """An adapter of both ends of a model, with the copies of its matrices that PEFT saves beside."""
    return {
        f"{EMBEDDING}.base_layer.weight": np.ones((n_tokens, 64), np.float32),
        f"{EMBEDDING}.lora_embedding_A": np.ones((RANK, n_tokens), np.float32),
        f"{EMBEDDING}.lora_embedding_B": np.ones((64, RANK), np.float32),
        "base_model.model.lm_head.base_layer.weight": np.ones((n_tokens, 64), np.float32),
        **pair("lm_head", 64, n_tokens),
    }


def test_copies_of_the_vocabulary_beside_its_adapter_stay_behind(tmp_path: Path, base: Path, base_gguf: Path) -> None:
    path = convert(write_peft(tmp_path / "adapter", on_the_vocabulary()), "F32", base)
    validate_adapter(path, base_gguf)
    assert set(written(path)) == {f"{name}.weight.lora_{side}" for name in ("output", "token_embd") for side in "ab"}


def test_a_vocabulary_that_has_grown_with_its_adapter_is_refused(tmp_path: Path, base: Path) -> None:
    folder = write_peft(tmp_path / "adapter", on_the_vocabulary(280))
    with pytest.raises(CheckpointError, match="a vocabulary of 280 tokens, its base model one of 272"):
        plan(folder, file_type_named("F16"), tmp_path / "a.gguf", PlanOptions(base=str(base)))


def test_an_embedding_that_is_the_output_cannot_change(tmp_path: Path) -> None:
    """llama.cpp aborts over such an adapter."""
    base = TinyLlama(n_embd=64, n_ff=96, is_tied=True).write(tmp_path / "base")
    tensors = {name: matrix for name, matrix in on_the_vocabulary().items() if "lm_head" not in name}
    folder = write_peft(tmp_path / "adapter", tensors)
    with pytest.raises(CheckpointError, match="which is the output of its base model too"):
        plan(folder, file_type_named("F16"), tmp_path / "a.gguf", PlanOptions(base=str(base)))


def test_pickled_adapters_are_refused(tmp_path: Path, base: Path) -> None:
    folder = write_peft(tmp_path / "adapter", PAIRS)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="PyTorch pickles"):
        plan(folder, file_type_named("F16"), tmp_path / "a.gguf", PlanOptions(base=base))


def test_adapters_and_models_are_distinguished(tmp_path: Path, base: Path) -> None:
    folder = write_peft(tmp_path / "adapter", PAIRS, base_model_name_or_path="some/model")
    wrong: list[tuple[str, Path, str, Path | None]] = [
        ("cannot be quantized to Q4_K_M", folder, "Q4_K_M", base),
        ("for some/model, which is not a local folder", folder, "F16", None),
        ("no model", folder, "F16", tmp_path / "nowhere"),
        ("neither an adapter nor a draft head", base, "F16", base),
    ]
    for named, source, file_type, of in wrong:
        with pytest.raises(UserError, match=named):
            plan(source, file_type_named(file_type), tmp_path / "a.gguf", PlanOptions(base=of))
    with pytest.raises(UsageError, match="is an adapter, not a model"):
        open_source(folder)
