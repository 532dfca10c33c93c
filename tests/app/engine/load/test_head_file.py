from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from app.engine.load.auxiliary_models import read_auxiliary_models
from app.engine.load.head_file import find_head, head_kind, is_head, read_head
from app.engine.speculative.draft_heads import HeadKind, HeadSpec
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from quantizer.gguf.validation import validate_gguf
from tests.quantizer.gguf_draft_heads import (
    HEADS,
    MASK_TOKEN,
    N_CANDIDATES,
    N_TAPS,
    deep_head,
    draft_head,
    drafted_model,
)

Edit = Callable[[gguf.GGUFWriter], None]
KINDS = {
    "eagle3": HeadKind.EAGLE3,
    "eagle3-small-vocabulary": HeadKind.EAGLE3,
    "dflash": HeadKind.DFLASH,
    "dflash2": HeadKind.DFLASH2,
    "dspark": HeadKind.DSPARK,
    "dspark-small-vocabulary": HeadKind.DSPARK,
}


def spec(folder: Path, kind: str, edit: Edit | None = None, model_edit: Edit | None = None) -> HeadSpec:
    model, head = drafted_model(folder / "m.gguf", model_edit), draft_head(folder / "h.gguf", kind, edit)
    return read_head(validate_gguf(head), read_header(model))


@pytest.mark.parametrize("kind", HEADS)
def test_a_file_tells_which_kind_of_head_it_is(tmp_path: Path, kind: str) -> None:
    header = read_header(draft_head(tmp_path / "h.gguf", kind))
    assert is_head(header)
    assert head_kind(header) is KINDS[kind]
    assert not is_head(read_header(drafted_model(tmp_path / "m.gguf")))


def test_a_dflash_head_predicts_a_block_without_its_first_place(tmp_path: Path) -> None:
    assert spec(tmp_path, "dflash") == HeadSpec(HeadKind.DFLASH, (1, 2, 3), 4, MASK_TOKEN, False, False)


def test_a_dflash_2_head_predicts_a_block_of_candidates(tmp_path: Path) -> None:
    expected = HeadSpec(HeadKind.DFLASH2, (1, 2, 3), 4, MASK_TOKEN, False, False, n_candidates=N_CANDIDATES)
    assert spec(tmp_path, "dflash2") == expected


@pytest.mark.parametrize(("pattern", "has_windows_only"), [([True, True], True), ([True, False], False)])
def test_a_head_says_whether_all_its_layers_have_a_window(
    tmp_path: Path, pattern: list[bool], has_windows_only: bool
) -> None:
    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("dflash.attention.sliding_window", 16)
        writer.add_array("dflash.attention.sliding_window_pattern", pattern)

    head, model = deep_head(tmp_path / "h.gguf", 2, 2, edit=describe), drafted_model(tmp_path / "m.gguf")
    assert read_head(read_header(head), read_header(model)).has_windows_only == has_windows_only


def test_a_dspark_head_predicts_from_the_place_of_the_newest_token_with_its_confidence(tmp_path: Path) -> None:
    assert spec(tmp_path, "dspark") == HeadSpec(HeadKind.DSPARK, (1, 2, 3), 5, MASK_TOKEN, True, False, True)


def array(key: str, values: list[int]) -> Edit:
    return lambda writer: writer.add_array(key, values)


def number(key: str, value: int) -> Edit:
    return lambda writer: writer.add_uint32(key, value)


# Heads with which llama.cpp would end the process, or read what is not there.
@pytest.mark.parametrize(
    ("kind", "edit", "reason"),
    [
        ("eagle3", array("eagle3.target_layers", [1, 2]), "an EAGLE-3 head reads 3 layers and not 2"),
        ("eagle3", array("eagle3.target_layers", [1, 2, 9]), "its target layer 9 does not exist: the model has 4"),
        (
            "eagle3",
            array("eagle3.target_layers", [1, 2, 4]),
            "llama.cpp does not expose the last hidden state of llama",
        ),
        ("eagle3", lambda w: w.add_string("eagle3.target_layers", "all"), "it does not list its target layers"),
        ("eagle3", lambda w: w.add_uint32("eagle3.target_hidden_size", 96), "it needs hidden states of 96"),
        ("eagle3", lambda w: w.add_block_count(2), "an EAGLE-3 head has one layer and not 2"),
        ("eagle3", lambda w: w.add_value_length(8), "its attention keys and values differ in length"),
        ("dflash", lambda w: w.add_uint32("dflash.block_size", 1), "its block size is 1, not 2 to 32"),
        ("dflash", lambda w: w.add_uint32("dflash.block_size", 4096), "its block size is 4096, not 2 to 32"),
        ("dflash", lambda w: w.add_mask_token_id(5000), "it has no valid mask token"),
        (
            "dflash",
            lambda w: w.add_uint32("dflash.hyper_connection.count", 4),
            "this engine cannot run heads with hyper",
        ),
        ("dflash", number("dflash.attention.sliding_window", 64), "it has a window, and no layer that uses it"),
        ("dflash", number("dflash.selector_top_k", 4), "it has no selector_rank"),
        ("dflash2", number("dflash.selector_top_k", 0), "it has no selector_top_k"),
        ("dflash2", number("dflash.selector_top_k", 8), "a head of width 64 cannot have a selector_top_k of 8"),
        ("dflash2", number("dflash.selector_rank", 32), "its selector_predecessor.weight is 48 × 272, not 32 × 272"),
        ("dflash2", number("dflash.conv_kernel_size", 2), "its blk.0.attn_conv_base is 64 × 3 × 2, not 64 × 2 × 2"),
        ("dflash2", number("dflash.conv_group_size", 24), "its width 64 is not a multiple of its conv_group_size 24"),
        ("dflash2", number("dflash.conv_group_size", 32), "its blk.0.attn_conv_proj.weight is 64 × 24, not 64 × 12"),
        ("dflash2", lambda w: w.add_block_count(2), "it lacks blk.1.attn_conv_base"),
    ],
)
def test_a_head_that_llama_cpp_cannot_run_is_refused_with_the_reason(
    tmp_path: Path, kind: str, edit: Edit, reason: str
) -> None:
    with pytest.raises(ModelFileError, match=r"h\.gguf cannot draft for m\.gguf") as error:
        spec(tmp_path, kind, edit)
    assert reason in error.value.cause


BASE, PROJECTION = "layers.0.mlp_conv.base_kernel", "layers.0.mlp_conv.kernel_projection.weight"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"candidate_selector.successor_codebook": None}, "it lacks selector_successor.weight"),
        ({PROJECTION: None}, "it lacks blk.0.ffn_conv_proj.weight"),
        ({BASE: np.ones((2, N_TAPS, 64), np.float16)}, "its blk.0.ffn_conv_base is not in F32"),
        ({BASE: np.ones((N_TAPS, 2, 64), np.float32)}, "its blk.0.ffn_conv_base is 64 × 2 × 3, not 64 × 3 × 2"),
        ({"markov_head.markov_w1.weight": np.ones((272, 48), np.float32)}, "it has a selector and a Markov head"),
    ],
)
def test_a_dflash_2_head_with_other_tensors_is_refused_with_the_reason(
    tmp_path: Path, changed: dict[str, np.ndarray | None], reason: str
) -> None:
    weights = HEADS["dflash2"].weights() | changed
    kept = {name: array for name, array in weights.items() if array is not None}
    head = draft_head(tmp_path / "h.gguf", "dflash2", weights=kept)
    with pytest.raises(ModelFileError) as error:
        read_head(read_header(head), read_header(drafted_model(tmp_path / "m.gguf")))
    assert error.value.cause.endswith(f"{reason}.")


@pytest.mark.parametrize(
    ("n_layers", "n_taps", "is_taken"),
    [(1, 5, True), (4, 4, True), (5, 2, True), (5, 3, True), (5, 4, False), (40, 3, True), (40, 4, False)],
)
def test_a_dflash_2_head_whose_graph_llama_cpp_has_no_room_for_is_refused(
    tmp_path: Path, n_layers: int, n_taps: int, is_taken: bool
) -> None:
    head = read_header(deep_head(tmp_path / "h.gguf", n_layers, n_taps))
    model = read_header(drafted_model(tmp_path / "m.gguf"))
    if is_taken:
        assert read_head(head, model).n_block == 4
        return
    with pytest.raises(ModelFileError, match=f"{n_layers} layers with a conv_kernel_size of {n_taps}"):
        read_head(head, model)


def test_a_head_of_a_model_with_other_tokens_is_refused(tmp_path: Path) -> None:
    def rename(writer: gguf.GGUFWriter) -> None:
        tokens = writer.kv_data[0]["tokenizer.ggml.tokens"].value
        tokens[7] = b"another"

    with pytest.raises(ModelFileError, match="token 7 is "):
        spec(tmp_path, "dflash", model_edit=rename)


def test_a_map_that_leads_out_of_the_vocabulary_is_refused(tmp_path: Path) -> None:
    weights = HEADS["eagle3-small-vocabulary"].weights()
    weights["d2t"] = weights["d2t"] + 10**6
    head = draft_head(tmp_path / "h.gguf", "eagle3-small-vocabulary", weights=weights)
    with pytest.raises(ModelFileError, match=r"its token map \(d2t\) contains ids outside of the vocabulary"):
        read_head(read_header(head), read_header(drafted_model(tmp_path / "m.gguf")))


def test_a_plan_refuses_a_head_that_does_not_belong_to_the_model(tmp_path: Path, tiny_model: Path) -> None:
    head = draft_head(tmp_path / "h.gguf", "eagle3")
    with pytest.raises(
        ModelFileError, match=r"cannot draft for tiny\.gguf: its target layer 3 does not exist: the model has 2"
    ):
        read_auxiliary_models(read_header(tiny_model), draft_path=str(head))


def test_the_head_beside_a_model_that_drafts_a_block_first_is_found(tmp_path: Path) -> None:
    model = read_header(drafted_model(tmp_path / "m.gguf"))
    assert find_head(model) == (None, ())
    for name, kind in (("m-eagle3-F32", "eagle3"), ("dflash-m", "dflash"), ("dspark-m", "dspark"), ("h", "dspark")):
        draft_head(tmp_path / f"{name}.gguf", kind)
    (tmp_path / "below").mkdir()
    draft_head(tmp_path / "below" / "dspark-a.gguf", "dspark")
    assert find_head(model) == (tmp_path / "dspark-m.gguf", ())
    (tmp_path / "dspark-m.gguf").unlink()
    second = draft_head(tmp_path / "m-dflash2-F32.gguf", "dflash2")
    assert find_head(model) == (second, ())
    second.unlink()
    assert find_head(model) == (tmp_path / "dflash-m.gguf", ())


def test_files_beside_a_model_that_cannot_draft_for_it_are_passed_over_with_the_reason(tmp_path: Path) -> None:
    model = read_header(drafted_model(tmp_path / "m.gguf"))
    draft_head(tmp_path / "dspark-a.gguf", "dspark", lambda writer: writer.add_uint32("dflash.block_size", 1))
    (tmp_path / "dspark-b.gguf").write_bytes(b"no GGUF")
    (tmp_path / "dspark-c.gguf").mkdir()
    drafted_model(tmp_path / "dspark-d.gguf")
    draft_head(tmp_path / "mtp-m.gguf", "dspark")
    path, reasons = find_head(model)
    assert path is None
    assert all(f"dspark-{name}.gguf" in reason for name, reason in zip("abcd", reasons, strict=True))
    eagle3 = draft_head(tmp_path / "eagle3-m.gguf", "eagle3")
    assert find_head(model) == (eagle3, reasons)
