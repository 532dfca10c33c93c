from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from quantizer.gguf.validation import shard_paths, validate_gguf
from tests.quantizer.gguf_files import byte_level_tokens, tiny_llama, tiny_weights


def replaced(key: str, value: object, add: Callable[[gguf.GGUFWriter], Callable[..., None]]) -> Callable[..., None]:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key)
        add(writer)(value)

    return edit


def add_expert_groups(writer: gguf.GGUFWriter, n_groups: int) -> None:
    writer.add_expert_count(8)
    writer.add_expert_used_count(2)
    writer.add_uint32("llama.expert_group_count", n_groups)


FAULTS = {
    "block_count is 513": replaced("llama.block_count", 513, lambda w: w.add_block_count),
    "block_count is 0": replaced("llama.block_count", 0, lambda w: w.add_block_count),
    "epsilon is -0.5": replaced("llama.attention.layer_norm_rms_epsilon", -0.5, lambda w: w.add_layer_norm_rms_eps),
    "epsilon is nan": replaced(
        "llama.attention.layer_norm_rms_epsilon", float("nan"), lambda w: w.add_layer_norm_rms_eps
    ),
    "cannot share 3": replaced("llama.attention.head_count_kv", 3, lambda w: w.add_head_count_kv),
    "tokens are repeated": replaced(
        "tokenizer.ggml.tokens", [*byte_level_tokens()[:-1], "th"], lambda w: w.add_token_list
    ),
    "token_type has 271 entries": replaced("tokenizer.ggml.token_type", [1] * 271, lambda w: w.add_token_types),
    "is not a pair": replaced("tokenizer.ggml.merges", ["th"], lambda w: w.add_token_merges),
    "' is invalid": replaced("tokenizer.ggml.token_type", [6] * 272, lambda w: w.add_token_types),
}
ADDITIONS: dict[str, Callable[[gguf.GGUFWriter], None]] = {
    "rope scaling 'dynamic' is unknown": lambda w: w.add_string("llama.rope.scaling.type", "dynamic"),
    "2 of 0 experts": lambda w: w.add_expert_used_count(2),
    "expert_count is 2048": lambda w: w.add_expert_count(2048),
    "scale_linear is inf": lambda w: w.add_float32("llama.rope.scale_linear", float("inf")),
    "number of rope dimensions is odd": lambda w: w.add_rope_dimension_count(15),
    "more prediction layers": lambda w: w.add_uint32("llama.nextn_predict_layers", 3),
    "2 deepstack layers": lambda w: w.add_uint32("llama.n_deepstack_layers", 2),
    "8 experts into 8 groups": lambda w: add_expert_groups(w, 8),
}


def test_tokens_that_are_one_up_to_a_nul_are_refused_as_llama_cpp_reads_no_further(tmp_path: Path) -> None:
    tokens = [*byte_level_tokens()[:-1], "th\0is"]
    with pytest.raises(ModelFileError, match="tokens are repeated"):
        validate_gguf(
            tiny_llama(tmp_path / "m.gguf", replaced("tokenizer.ggml.tokens", tokens, lambda w: w.add_token_list))
        )


@pytest.mark.parametrize("cause", FAULTS)
def test_files_that_would_abort_llama_cpp_are_refused(tmp_path: Path, cause: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        validate_gguf(tiny_llama(tmp_path / "m.gguf", FAULTS[cause]))
    assert cause in caught.value.cause


@pytest.mark.parametrize("cause", ADDITIONS)
def test_hyperparameters_that_would_abort_llama_cpp_are_refused(tmp_path: Path, cause: str) -> None:
    with pytest.raises(ModelFileError, match=cause.replace("scale_linear is inf", "scale_linear is inf")):
        validate_gguf(tiny_llama(tmp_path / "m.gguf", ADDITIONS[cause]))


def test_a_norm_that_is_not_f32_is_refused(tmp_path: Path) -> None:
    weights = tiny_weights() | {"output_norm.weight": np.ones(64, np.float16)}
    with pytest.raises(ModelFileError, match="not in F32"):
        validate_gguf(tiny_llama(tmp_path / "m.gguf", tensors=weights))


def test_a_weight_of_integers_is_refused(tmp_path: Path) -> None:
    weights = tiny_weights() | {"blk.0.attn_q.weight": np.ones((64, 64), np.int32)}
    with pytest.raises(ModelFileError, match="type that is not for weights"):
        validate_gguf(tiny_llama(tmp_path / "m.gguf", tensors=weights))


def test_an_embedding_for_another_vocabulary_is_refused(tmp_path: Path) -> None:
    weights = tiny_weights() | {"token_embd.weight": np.ones((100, 64), np.float16)}
    with pytest.raises(ModelFileError, match="272 tokens and its embedding 100"):
        validate_gguf(tiny_llama(tmp_path / "m.gguf", tensors=weights))


def test_a_vocabulary_of_no_named_tokenizer_is_refused_as_no_engine_could_load_it(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not name their tokenizer"):
        validate_gguf(tiny_llama(tmp_path / "m.gguf", lambda writer: writer.kv_data[0].pop("tokenizer.ggml.model")))


def test_a_file_without_weights_is_refused_as_nothing_can_be_done_with_it(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="contains no weights"):
        validate_gguf(tiny_llama(tmp_path / "m.gguf", tensors={}))


def test_an_honest_file_is_admitted(llama_gguf: Path) -> None:
    assert validate_gguf(llama_gguf).architecture == "llama"


def test_special_ids_out_of_range_are_honest(tmp_path: Path) -> None:
    validate_gguf(tiny_llama(tmp_path / "m.gguf", lambda writer: writer.add_pad_token_id(32_000)))


def test_per_layer_head_counts_are_honest(tmp_path: Path) -> None:
    validate_gguf(
        tiny_llama(tmp_path / "m.gguf", replaced("llama.attention.head_count", [4, 4], lambda w: w.add_head_count))
    )


def test_two_hundred_mutants_are_refused_with_a_typed_error_or_admitted(tmp_path: Path, llama_gguf: Path) -> None:
    data = llama_gguf.read_bytes()
    header_bytes = read_header(llama_gguf).data_offset
    rng = random.Random(2)
    path = tmp_path / "mutant.gguf"
    outcomes = {"admitted": 0, "refused": 0}
    for _ in range(200):
        mutant = bytearray(data)
        for _ in range(rng.choice((1, 1, 3))):
            mutant[rng.randrange(header_bytes)] = rng.randrange(256)
        path.write_bytes(mutant)
        try:
            validate_gguf(path)
            outcomes["admitted"] += 1
        except ModelFileError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 10


def split_part(path: Path, number: int, count: int, tensors: dict[str, np.ndarray] | None = None) -> Path:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)

    return tiny_llama(path, edit, tensors)


def test_every_shard_of_a_split_model_is_read(tmp_path: Path) -> None:
    first = split_part(tmp_path / "m-00001-of-00002.gguf", 0, 2)
    with pytest.raises(ModelFileError, match="no file"):
        validate_gguf(first)
    split_part(tmp_path / "m-00002-of-00002.gguf", 1, 2)
    assert [path.name for path in shard_paths(validate_gguf(first))] == [
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
    ]


def test_the_first_shard_alone_may_be_without_weights(tmp_path: Path) -> None:
    first = split_part(tmp_path / "m-00001-of-00002.gguf", 0, 2, {})
    split_part(tmp_path / "m-00002-of-00002.gguf", 1, 2)
    validate_gguf(first)
    split_part(tmp_path / "m-00002-of-00002.gguf", 1, 2, {})
    with pytest.raises(ModelFileError, match="contains no weights"):
        validate_gguf(first)


def test_a_later_shard_names_the_first_one(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        validate_gguf(split_part(tmp_path / "m-00002-of-00002.gguf", 1, 2))
    assert "m-00001-of-00002.gguf" in caught.value.remedy


def test_a_shard_count_that_the_name_does_not_bear_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="claims 900 shards"):
        validate_gguf(split_part(tmp_path / "m.gguf", 0, 900))
