"""Draft heads from their checkpoints, against GGUFs of the same weights that were written without the converter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from app.engine.load.head_file import validate_head
from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.gguf_reader import ArrayRef
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.tensor_types import TENSOR_TYPES, file_type_named
from quantizer.system.errors import UsageError
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.checkpoints import TinyLlama, write_checkpoint
from tests.quantizer.gguf_draft_heads import HEADS, TARGET, DraftHead, draft_head, published_config

OWN = "tokenizer.ggml.mask_token_id"
SMALL = "eagle3-small-vocabulary"
DTYPES = {"float32": "F32", "int64": "I64", "bool": "BOOL"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("target") / "model", TARGET)


@pytest.fixture(scope="module")
def target_gguf(target: Path) -> Path:
    return converted(target, None)


def written(folder: Path, head: DraftHead, **changed: Any) -> Path:
    """A checkpoint of `head`; `changed` settings that are None are left out."""
    weights = head.weights()
    if "d2t" in weights:
        weights |= {"t2d": np.ones(272, bool)}
    config = {key: value for key, value in (published_config(head) | changed).items() if value is not None}
    return write_checkpoint(
        folder, config, {name: (DTYPES[array.dtype.name], array) for name, array in weights.items()}
    )


def converted(source: Path, base: Path | None, file_type: str = "F32") -> Path:
    output = source.with_name(f"{source.name}-{file_type}.gguf")
    execute(plan(source, file_type_named(file_type), output, PlanOptions(base=base)), 2, True, lambda _done: None)
    return output


def tensors(path: Path) -> dict[str, tuple[int, bytes]]:
    return {tensor.name: (int(tensor.tensor_type), tensor.data.tobytes()) for tensor in gguf.GGUFReader(path).tensors}


def settings(header: Header, prefix: str) -> dict[str, object]:
    keys = (key for key in header.fields if key.startswith(prefix))
    values = {key: header.metadata[key] for key in keys}
    return {key: header.array(key) if isinstance(value, ArrayRef) else value for key, value in values.items()}


@pytest.mark.parametrize("is_folder", [True, False])
@pytest.mark.parametrize("kind", HEADS)
def test_a_head_has_the_tensors_and_settings_of_one_written_by_hand(
    tmp_path: Path, target: Path, target_gguf: Path, kind: str, is_folder: bool
) -> None:
    ours = converted(written(tmp_path / kind, HEADS[kind]), target if is_folder else target_gguf)
    theirs = draft_head(tmp_path / "theirs.gguf", kind)
    assert tensors(ours) == tensors(theirs)
    architecture = HEADS[kind].architecture
    mine, other = (settings(read_header(path), f"{architecture}.") for path in (ours, theirs))
    optional = {f"{architecture}.{key}" for key in ("rope.dimension_count", "vocab_size")}
    assert {key: mine.get(key) for key in other if key not in optional or key in mine} == {
        key: value for key, value in other.items() if key not in optional or key in mine
    }
    assert mine.keys() <= other.keys()


@pytest.mark.parametrize("file_type", ["F16", "Q8_0", "Q4_K_M"])
@pytest.mark.parametrize("kind", HEADS)
def test_a_head_of_any_type_belongs_to_its_model(tmp_path: Path, target_gguf: Path, kind: str, file_type: str) -> None:
    head = converted(written(tmp_path / kind, HEADS[kind]), target_gguf, file_type)
    assert validate_head(head, read_header(target_gguf)).target_layers == (1, 2, 3)


def test_a_head_has_the_vocabulary_of_its_model_and_a_mask_of_its_own(tmp_path: Path, target_gguf: Path) -> None:
    head = read_header(converted(written(tmp_path / "h", HEADS["dflash"]), target_gguf))
    assert settings(head, "tokenizer.") == settings(read_header(target_gguf), "tokenizer.") | {OWN: 264}


def test_a_head_needs_its_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes its vocabulary from the model"):
        converted(written(tmp_path / "h", HEADS["eagle3"]), None)
    with pytest.raises(UsageError, match="There is no model"):
        converted(tmp_path / "h", tmp_path / "nothing.gguf")


def test_a_model_of_its_own_takes_no_other(tmp_path: Path, target: Path, target_gguf: Path) -> None:
    with pytest.raises(UsageError, match="neither an adapter nor a draft head"):
        converted(target, target)
    with pytest.raises(UsageError, match="--base is for adapters and draft heads"):
        plan(target_gguf, file_type_named("F16"), tmp_path / "x.gguf", PlanOptions(base=target))
    with pytest.raises(UsageError, match="is a draft head too"):
        converted(written(tmp_path / "h", HEADS["eagle3"]), tmp_path / "h")


def test_a_head_of_another_vocabulary_is_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(CheckpointError, match="The draft head has 300 tokens, but the model has 272"):
        converted(written(tmp_path / "h", HEADS["eagle3"], vocab_size=300), target)


@pytest.mark.parametrize(
    ("changed", "layers"),
    [
        ({}, [1, 2, 3]),
        ({"eagle_aux_hidden_state_layer_ids": None}, [2, 2, 1]),
        (
            {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}},
            [0, 1, 2],
        ),
        ({"architectures": ["LlamaForCausalLM"]}, [1, 2, 3]),
    ],
)
def test_an_eagle3_head_names_the_layers_that_it_reads_or_takes_the_usual_ones(
    tmp_path: Path, target: Path, changed: dict[str, Any], layers: list[int]
) -> None:
    head = read_header(converted(written(tmp_path / "h", HEADS["eagle3"], **changed), target))
    assert head.array("eagle3.target_layers") == layers


def test_a_head_of_speculators_keeps_its_layer_in_an_object(tmp_path: Path, target: Path) -> None:
    config = published_config(HEADS[SMALL])
    outside = ("architectures", "draft_vocab_size", "norm_before_residual", "norm_before_fc", "target_hidden_size")
    layer = {key: value for key, value in config.items() if key not in outside}
    moved = dict.fromkeys(layer) | {"architectures": ["Eagle3Speculator"], "transformer_layer_config": layer}
    nested = converted(written(tmp_path / "h", HEADS[SMALL], **moved), target)
    assert tensors(nested) == tensors(converted(written(tmp_path / "plain", HEADS[SMALL]), target))


@pytest.mark.parametrize("step", [-1, 272])
def test_a_map_of_tokens_that_leads_out_of_the_vocabulary_is_refused(tmp_path: Path, target: Path, step: int) -> None:
    steps = np.zeros(192, np.int64)
    steps[0] = step
    head = replace(HEADS[SMALL], weights=lambda: HEADS[SMALL].weights() | {"d2t": steps})
    with pytest.raises(CheckpointError, match="d2t maps outside the vocabulary"):
        converted(written(tmp_path / "h", head), target)


def test_a_head_without_its_map_of_tokens_or_with_an_odd_one_is_refused(tmp_path: Path, target: Path) -> None:
    weights = HEADS[SMALL].weights()
    without = replace(HEADS[SMALL], weights=lambda: {name: weights[name] for name in weights if name != "d2t"})
    with pytest.raises(CheckpointError, match="lacks d2t"):
        converted(written(tmp_path / "h", without), target)
    floats = replace(HEADS[SMALL], weights=lambda: weights | {"d2t": np.zeros(192, np.float32)})
    with pytest.raises(CheckpointError, match="d2t is not a row of integers"):
        converted(written(tmp_path / "floats", floats), target)


def test_tensors_that_a_head_may_have_must_have_their_shape(tmp_path: Path, target: Path) -> None:
    weights = HEADS[SMALL].weights()
    odd = replace(HEADS[SMALL], weights=lambda: weights | {"embed_tokens.weight": np.zeros((100, 64), np.float32)})
    with pytest.raises(CheckpointError, match=r"token_embd\.weight is 100 × 64"):
        converted(written(tmp_path / "h", odd), target)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("eagle3", {"attention_bias": True}),
        ("dspark", {"conv_kernel_size": 3}),
        ("dspark", {"markov_head_type": "gated"}),
    ],
)
def test_heads_that_llama_cpp_computes_otherwise_are_refused(
    tmp_path: Path, target: Path, kind: str, changed: dict[str, Any]
) -> None:
    with pytest.raises(CheckpointError, match="does not support for this architecture"):
        converted(written(tmp_path / "h", HEADS[kind], **changed), target)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"selector_top_k": 8}, "config.json has selector_top_k = 8, but llama.cpp returns"),
        ({"selector_rank": 32}, r"selector_predecessor.weight is 272 × 48, but config.json implies 272 × 32"),
        ({"conv_group_size": 24}, "conv_group_size = 24 in config.json does not divide 64"),
        ({"conv_kernel_size": 2}, r"blk\.0\.attn_conv_base is 2 × 3 × 64, but config.json implies 2 × 2 × 64"),
        ({"conv_group_size": None}, "conv_group_size"),
    ],
)
def test_a_dflash_2_head_has_the_sizes_that_its_config_says(
    tmp_path: Path, target: Path, changed: dict[str, Any], reason: str
) -> None:
    sizes = {**HEADS["dflash2"].config["dflash_config"], **changed}
    given = {key: value for key, value in sizes.items() if value is not None}
    with pytest.raises(CheckpointError, match=reason):
        converted(written(tmp_path / "h", HEADS["dflash2"], dflash_config=given), target)


def test_a_dflash_2_head_that_calls_itself_dflash_is_one_by_its_convolutions(tmp_path: Path, target: Path) -> None:
    one = converted(written(tmp_path / "one", HEADS["dflash2"]), target)
    other = converted(written(tmp_path / "other", HEADS["dflash2"], architectures=["DFlashDraftModel"]), target)
    assert tensors(one) == tensors(other)
    assert read_header(other).integer("dflash.selector_top_k") == 7


def test_the_convolutions_of_a_quantized_head_stay_as_the_processor_adds_them(tmp_path: Path, target: Path) -> None:
    head = read_header(converted(written(tmp_path / "h", HEADS["dflash2"]), target, "Q8_0"))
    types = {tensor.name: TENSOR_TYPES[tensor.type_id].name for tensor in head.tensors}
    assert types["blk.0.attn_conv_base"] == types["blk.0.ffn_conv_base"] == "F32"
    assert types["blk.0.attn_conv_proj.weight"] == "Q8_0"


def test_a_block_head_must_name_its_layers(tmp_path: Path, target: Path) -> None:
    with pytest.raises(CheckpointError, match="target layers"):
        converted(written(tmp_path / "h", HEADS["dflash"], dflash_config={"mask_token_id": 264}), target)


def test_a_whole_output_of_a_dspark_head_is_the_models(tmp_path: Path, target: Path) -> None:
    whole = replace(
        HEADS["dspark"], weights=lambda: HEADS["dspark"].weights() | {"lm_head.weight": np.zeros((272, 64), np.float32)}
    )
    assert "output.weight" not in tensors(converted(written(tmp_path / "h", whole), target))


def test_windows_of_a_block_head_are_written_layer_by_layer(tmp_path: Path, target: Path) -> None:
    windowed = {"use_sliding_window": True, "sliding_window": 32, "layer_types": ["sliding_attention"]}
    head = read_header(converted(written(tmp_path / "h", HEADS["dflash"], **windowed), target))
    assert head.integer("dflash.attention.sliding_window") == 32
    assert head.array("dflash.attention.sliding_window_pattern") == [True]


@pytest.mark.parametrize("layer_types", [["full_attention"], None])
def test_a_window_that_no_layer_has_is_not_written(tmp_path: Path, target: Path, layer_types: list[str] | None) -> None:
    windowed = {"use_sliding_window": True, "sliding_window": 32, "layer_types": layer_types}
    head = read_header(converted(written(tmp_path / "h", HEADS["dflash"], **windowed), target))
    assert not any(key.startswith("dflash.attention.sliding_window") for key in head.fields)


def test_a_model_is_no_head_because_its_vocabulary_is_named_twice(tmp_path: Path) -> None:
    folder = TinyLlama(extra_config={"draft_vocab_size": 100}).write(tmp_path / "m")
    assert read_header(converted(folder, None)).architecture == "llama"
