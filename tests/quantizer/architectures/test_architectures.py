"""Every entry of the table against the outline of a checkpoint of transformers whose logits were compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from quantizer.architectures import ARCHITECTURES, find_architecture, generated_tensors, needed_tensors
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.source_model import FileTensor, SourceTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.gguf.gguf_reader import LocalFile
from quantizer.gguf.header import encode_entry
from quantizer.gguf.tensor_types import tensor_type_named

OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "outlines.json").read_text())

NORM_OF_FIRST_LAYER = re.compile(
    r"\b(layers?|h|blocks?)\.0\..*(norm1?|ln_1|norm_1|layer_norm|ln_attn)\.weight$", re.IGNORECASE
)


def headers(outline: dict[str, Any]) -> dict[str, FileTensor]:
    """The outline's tensors as a checkpoint's headers give them; there are no weights to read."""
    nothing, stored = LocalFile(Path("nothing"), 0), tensor_type_named("F32")
    return {
        name: FileTensor(name, tuple(shape)[::-1], stored, nothing, 0) for name, shape in outline["tensors"].items()
    }


def converted(outline: dict[str, Any]) -> dict[str, SourceTensor]:
    architecture, config = find_architecture(outline["config"], outline["tensors"])
    return map_tensors(headers(outline), config, architecture)


def changed(name: str, **settings: Any) -> dict[str, Any]:
    return OUTLINES[name]["config"] | settings


def test_every_class_of_the_table_has_an_outline() -> None:
    """But for draft heads, which are no models of transformers: `convert/test_draft_heads.py` is about those."""
    models = {name for name, entry in ARCHITECTURES.items() if not entry.is_draft_head}
    assert {outline["config"]["architectures"][0] for outline in OUTLINES.values()} == models


@pytest.mark.parametrize("name", OUTLINES)
def test_settings_become_the_metadata_that_was_proven(name: str) -> None:
    architecture, config = find_architecture(OUTLINES[name]["config"], OUTLINES[name]["tensors"])
    rows = {row.key: row.read(config) for row in architecture.hyperparameters}
    assert {key: value for key, value in rows.items() if value is not None} == OUTLINES[name]["metadata"]


@pytest.mark.parametrize("name", OUTLINES)
def test_every_value_can_be_written_as_the_type_of_its_row(name: str) -> None:
    architecture, config = find_architecture(OUTLINES[name]["config"], OUTLINES[name]["tensors"])
    values = [(row.type_name, row.read(config)) for row in architecture.hyperparameters]
    assert all(encode_entry("key", value, kind).payload for kind, value in values if value is not None)


@pytest.mark.parametrize("name", OUTLINES)
def test_every_tensor_finds_its_place_and_none_is_missing(name: str) -> None:
    architecture, config = find_architecture(OUTLINES[name]["config"], OUTLINES[name]["tensors"])
    tensors = converted(OUTLINES[name])
    assert set(needed_tensors(architecture, config)) <= set(tensors)
    assert all(tensor.name == new_name for new_name, tensor in tensors.items())


@pytest.mark.parametrize("name", OUTLINES)
def test_any_tensor_that_a_layer_lacks_is_noticed(name: str) -> None:
    outline = OUTLINES[name]
    names = [name for name in outline["tensors"] if "_tower." not in name]
    # OLMo's norms have no weights
    needed = next(filter(NORM_OF_FIRST_LAYER.search, names), "model.layers.0.self_attn.q_proj.weight")
    rest = {tensor: shape for tensor, shape in outline["tensors"].items() if tensor != needed}
    with pytest.raises(CheckpointError, match=r"lacks ((enc|dec)\.)?blk\.0\.|Part 0 of"):
        converted(outline | {"tensors": rest})


@pytest.mark.parametrize(
    ("name", "missing", "words"),
    [
        ("qwen3moe", ".experts.2.up_proj", r"Part 2 of model\.layers\.0\.mlp\.experts\.up_proj"),
        ("qwen35-predicting", "mtp.pre_fc_norm_hidden.weight", r"lacks blk\.\d\.nextn\.hnorm\.weight"),
    ],
)
def test_a_missing_expert_or_tensor_of_a_layer_that_predicts_further_is_named(
    name: str, missing: str, words: str
) -> None:
    outline = OUTLINES[name]
    rest = {tensor: shape for tensor, shape in outline["tensors"].items() if missing not in tensor}
    with pytest.raises(CheckpointError, match=words):
        converted(outline | {"tensors": rest})


def test_an_expert_too_many_is_named() -> None:
    outline = OUTLINES["mixtral"]
    with pytest.raises(CheckpointError, match=r"experts.* has 4 parts, but config\.json implies 3"):
        converted(outline | {"config": changed("mixtral", num_local_experts=3)})


def test_absurdly_many_experts_are_refused_at_once() -> None:
    with pytest.raises(CheckpointError, match="Part 4 of"):
        converted(OUTLINES["mixtral"] | {"config": changed("mixtral", num_local_experts=(1 << 31) - 1)})


_EXPERTS_DIFFER = r"experts\.1\.w2\.weight and .*experts\.0\.w2\.weight differ in shape or type"


@pytest.mark.parametrize(
    ("name", "tensor", "shape", "words"),
    [
        ("gemma3-seeing", "model.norm.weight", [64], r"would become model\.norm\.weight"),
        ("mixtral", "model.layers.0.block_sparse_moe.experts.1.w2.weight", [64, 95], _EXPERTS_DIFFER),
        ("qwen3", "model.layers.0.self_attn.q_proj.bias", [1, 1, 1, 1, 128], r"blk\.0\.attn_q\.bias has 5 dimensions"),
    ],
    ids=["two for one place", "experts of different shapes", "more dimensions than a GGUF has"],
)
def test_a_tensor_that_does_not_fit_is_named(name: str, tensor: str, shape: list[int], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        converted(OUTLINES[name] | {"tensors": OUTLINES[name]["tensors"] | {tensor: shape}})


@pytest.mark.parametrize(("name", "tower"), [("gemma3", "vision"), ("qwen35", "visual"), ("qwen35moe", "visual")])
def test_the_towers_of_a_model_that_sees_stay_behind(name: str, tower: str) -> None:
    seeing = OUTLINES[f"{name}-seeing"]
    assert any(tower in tensor for tensor in seeing["tensors"])
    assert set(converted(seeing)) == set(converted(OUTLINES[name]))


@pytest.mark.parametrize(
    ("name", "later"),
    [
        ("deepseek3", ["model.layers.7.eh_proj.weight"]),
        ("qwen35-seeing", ["mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight", "mtp.layers.1.mlp.up_proj.weight"]),
        ("glm4moe", ["model.layers.2.eh_proj.weight", "model.layers.3.eh_proj.weight"]),
    ],
)
def test_layers_that_predict_further_stay_behind_where_llama_cpp_runs_none(name: str, later: list[str]) -> None:
    outline = OUTLINES[name]
    tensors = outline["tensors"] | {key: [64, 128] for key in later}
    assert set(converted(outline | {"tensors": tensors})) == set(converted(outline))


@pytest.mark.parametrize("name", [name for name in OUTLINES if "-predicting" in name])
def test_one_layer_that_predicts_further_is_the_last_of_the_file(name: str) -> None:
    outline = OUTLINES[name]
    tensors = converted(outline)
    n_layers = outline["metadata"]["block_count"]
    last = f"blk.{n_layers - 1}."
    own = {key.removeprefix(last).removesuffix(".weight") for key in tensors if key.startswith(last)}
    assert {"nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm", "attn_output"} <= own
    assert {"attn_q", "attn_q_a"} & own
    assert {"ffn_up", "ffn_up_exps"} & own
    assert f"blk.{n_layers}.attn_norm.weight" not in tensors
    assert outline["metadata"]["nextn_predict_layers"] == 1


def test_config_json_alone_says_whether_a_layer_predicts_further() -> None:
    for name in ("qwen35", "glm4moe", "deepseek32", "glm5", "glm4moe-lite", "hy3", "cohere2moe"):
        with_layer = set(needed_tensors(*find_architecture(OUTLINES[f"{name}-predicting"]["config"])))
        without = set(needed_tensors(*find_architecture(OUTLINES[name]["config"])))
        assert any(tensor.endswith("nextn.enorm.weight") for tensor in with_layer - without)
        assert not any(tensor.endswith("nextn.enorm.weight") for tensor in without)


@pytest.mark.parametrize(("name", "n_kept"), [("hy3-predicting", 3), ("deepseek32-predicting", 0)])
def test_several_layers_that_predict_stay_where_llama_cpp_runs_them_in_turns(name: str, n_kept: int) -> None:
    outline = OUTLINES[name]
    n_layers = outline["config"]["num_hidden_layers"]
    own = {key: shape for key, shape in outline["tensors"].items() if f"layers.{n_layers}." in key}
    later = {
        key.replace(f"layers.{n_layers}.", f"layers.{n_layers + i}."): shape
        for key, shape in own.items()
        for i in range(3)
    }
    tensors = converted(outline | {"tensors": outline["tensors"] | later})
    assert sum(key.endswith("nextn.eh_proj.weight") for key in tensors) == n_kept


def test_a_fused_tensor_of_other_heads_is_refused() -> None:
    outline = OUTLINES["deepseek3"]
    with pytest.raises(CheckpointError, match=r"kv_b_proj.* does not split into 3 attention heads"):
        converted(outline | {"config": changed("deepseek3", num_attention_heads=3)})


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("nomic-bert", "moe_every_n_layers", 2),
        ("nomic-bert", "rotary_emb_interleaved", True),
        ("mamba2", "time_step_limit", [0.001, 0.1]),
        ("llama", "hidden_act", "relu"),
        ("qwen3next", "use_sliding_window", True),
        ("qwen3vl", "use_sliding_window", True),
        ("qwen3moe", "norm_topk_prob", False),
        ("qwen2moe", "mlp_only_layers", [0]),
        ("smollm3", "no_rope_layers", [0]),
        ("command-r", "use_qk_norm", True),
        ("deepseek2", "n_group", 4),
        ("gpt-oss", "swiglu_limit", 10.0),
        ("qwen35", "linear_value_head_dim", 16),
        ("deepseek2", "topk_method", "noaux_tc"),
        ("lfm2", "conv_bias", True),
        ("lfm2moe", "use_expert_bias", False),
        ("granitehybrid", "mamba_expand", 4),
        ("granitehybrid-attention", "position_embedding_type", "nope"),
        ("nemotron-h", "mlp_hidden_act", "silu"),
        ("nemotron-h", "tie_word_embeddings", True),
        ("llama4", "attention_chunk_size", 4096),
        ("llama4", "use_qk_norm", False),
        ("llama4", "no_rope_layers", [1, 0]),
        ("olmoe", "norm_topk_prob", True),
        ("afmoe", "mup_enabled", False),
        ("mimo2", "swa_num_key_value_heads", 4),
        ("kimi-linear", "mla_use_nope", False),
        ("falcon-7b", "alibi", True),
        ("falcon-h1", "tie_word_embeddings", True),
        ("falcon-h1-normed", "mamba_norm_before_gate", True),
        ("gpt2", "activation_function", "relu"),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("starcoder", "multi_query", False),
        ("gptneox", "attention_bias", False),
        ("phi2", "qk_layernorm", True),
        ("bloom", "apply_residual_connection_post_layernorm", True),
        ("mpt", "no_bias", False),
        ("mpt", "logit_scale", 0.5),
        ("dbrx", "moe_normalize_expert_weights", 2.0),
        ("modernbert", "norm_bias", True),
        ("modernbert", "hidden_activation", "relu"),
        ("modernbert-ranker", "classifier_activation", "tanh"),
        ("gemma-embedding", "use_bidirectional_attention", False),
        ("olmo", "attention_bias", True),
        ("minicpm", "num_experts", 8),
        ("eurobert", "mlp_bias", True),
        ("eurobert", "head_dim", 32),
    ],
)
def test_a_setting_that_llama_cpp_would_not_follow_is_refused(name: str, setting: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=f"{setting} = .*does not support"):
        find_architecture(changed(name, **{setting: value}))


TIED = (
    *("apertus", "gptneox", "phi2", "nemotron", "minimax-m2", "exaone-moe", "mimo2", "olmoe", "dots1", "gpt-oss"),
    *("qwen2moe", "olmo2", "olmo3", "stablelm"),
)


def test_an_lfm_2_with_experts_may_have_an_output_of_its_own() -> None:
    """gguf has no name for it; of a random checkpoint the relative error is 5.2e-7, F32 itself 4.5e-7."""
    outline = OUTLINES["lfm2moe"]
    tensors = {**outline["tensors"], "lm_head.weight": outline["tensors"]["model.embed_tokens.weight"]}
    config = changed("lfm2moe", tie_word_embeddings=False, tie_embedding=False)
    assert "output.weight" in converted({**outline, "config": config, "tensors": tensors})


@pytest.mark.parametrize("name", TIED)
def test_embeddings_are_written_as_output_too_where_the_graph_wants_one(name: str) -> None:
    """Random checkpoints so: at most 4.4e-7 off."""
    tensors = converted({**OUTLINES[name], "config": changed(name, tie_word_embeddings=True)})
    output, embeddings = tensors["output.weight"], tensors["token_embd.weight"]
    assert (output.shape, output.stored) == (embeddings.shape, embeddings.stored)
    assert list(converted(OUTLINES[name])) == list(tensors)


def test_compressed_queries_that_llama_cpp_would_not_look_for_are_refused() -> None:
    """It takes queries for uncompressed in a model of 27 layers."""
    with pytest.raises(CheckpointError, match=r"q_lora_rank = 24, which .* does not support"):
        find_architecture(changed("deepseek2", num_hidden_layers=27))


@pytest.mark.parametrize(("n_layers", "expected"), [(27, None), (28, 0)])
def test_a_deepseek_with_uncompressed_queries_has_the_row_that_llama_cpp_requires(
    n_layers: int, expected: int | None
) -> None:
    architecture, config = find_architecture(changed("deepseek3-lite", num_hidden_layers=n_layers))
    row = next(row for row in architecture.hyperparameters if row.key == "attention.q_lora_rank")
    assert row.read(config) == expected


def test_groups_of_experts_that_llama_cpp_ranks_otherwise_are_warned_of() -> None:
    architecture, config = find_architecture(OUTLINES["deepseek2-grouped"]["config"])
    assert "in the 2 of 4 groups" in architecture.approximations(config)[0]
    architecture, config = find_architecture(changed("deepseek2-grouped", topk_group=4))
    assert architecture.approximations(config) == ()


def test_a_plain_granite_without_multipliers_gets_those_of_its_class() -> None:
    names = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
    architecture, config = find_architecture(changed("granite", **dict.fromkeys(names)))
    rows = {row.key: row.read(config) for row in architecture.hyperparameters if "scale" in row.key}
    assert rows == dict.fromkeys(("attention.scale", "embedding_scale", "residual_scale", "logit_scale"), 1.0)


def test_a_causal_gemma_without_an_output_is_refused() -> None:
    """A config.json that says nothing means a causal mask."""
    with pytest.raises(CheckpointError, match="use_bidirectional_attention = False"):
        find_architecture(changed("gemma-embedding", use_bidirectional_attention=None))


def test_a_vision_gemma_gets_the_defaults_of_its_class() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    architecture, config = find_architecture({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    rows = {row.key: row.read(config) for row in architecture.hyperparameters}
    assert (rows["attention.head_count"], rows["attention.head_count_kv"], rows["attention.key_length"]) == (8, 4, 256)
    assert (rows["rope.freq_base"], rows["rope.freq_base_swa"]) == (1_000_000.0, 10_000.0)
    assert needed_tensors(architecture, config)["token_embd.weight"] == (2560, 262_208)


def test_longrope_factors_of_another_number_are_refused() -> None:
    rope = OUTLINES["phi-long"]["config"]["rope_parameters"]
    architecture, config = find_architecture(changed("phi-long", rope_parameters=rope | {"short_factor": [1.0, 2.0]}))
    with pytest.raises(CheckpointError, match=r"short_factor .* must have 8 numbers"):
        generated_tensors(architecture, config)


@pytest.mark.parametrize("name", ["phi", "command-r"])
def test_a_rope_scaling_that_a_graph_does_not_know_is_refused(name: str) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    architecture, config = find_architecture(changed(name, rope_parameters=rope))
    with pytest.raises(CheckpointError, match="rope scaling 'yarn' is not supported"):
        [row.read(config) for row in architecture.hyperparameters]


def test_settings_of_older_checkpoints_read_the_same() -> None:
    """Before transformers 5 the rope's base stood outside, and the window's base beside it."""
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    architecture, config = find_architecture(changed("gemma3-linear", rope_parameters=None, **old))
    rows = {row.key: row.read(config) for row in architecture.hyperparameters if "rope." in row.key}
    golden = OUTLINES["gemma3-linear"]["metadata"]
    assert {key: value for key, value in rows.items() if value is not None} == {
        key: value for key, value in golden.items() if "rope." in key
    }


def test_settings_in_a_section_of_their_own_are_followed() -> None:
    """DBRX was published with its rope's base beside its heads, and nowhere else."""
    heads = {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 5e5}
    architecture, config = find_architecture(changed("dbrx", attn_config=heads, rope_parameters=None))
    rows = {row.key: row.read(config) for row in architecture.hyperparameters}
    assert (rows["attention.head_count_kv"], rows["attention.clamp_kqv"], rows["rope.freq_base"]) == (2, 8.0, 5e5)
    with pytest.raises(CheckpointError, match=r"alibi = False, which llama\.cpp does not support"):
        find_architecture(changed("mpt", attn_config={"alibi": False}))


def test_a_setting_outside_of_its_section_has_priority() -> None:
    sizes = OUTLINES["dbrx"]["config"]["ffn_config"] | {"hidden_size": 6144}
    _, config = find_architecture(changed("dbrx", ffn_config=sizes))
    assert config.integer("hidden_size") == 64


def test_settings_under_their_own_names_read_the_same() -> None:
    """nomic-embed-text was published with GPT-2's names, and with more positions than it was trained on."""
    published = {"n_embd": 64, "n_inner": 96, "n_head": 4, "n_layer": 1, "n_positions": 8192, "rotary_emb_base": 1000}
    usual = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings")
    config = changed("nomic-bert", **published, **dict.fromkeys((*usual, "rope_parameters")))
    architecture, settings = find_architecture(config)
    rows = {row.key: row.read(settings) for row in architecture.hyperparameters}
    assert {key: value for key, value in rows.items() if value is not None} == OUTLINES["nomic-bert"]["metadata"] | {
        "context_length": 2048
    }


def test_a_modernbert_as_it_was_published_reads_the_same() -> None:
    """Before transformers 5 both bases of its rope stood outside, and every third layer was known by its number."""
    published = {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0, "global_attn_every_n_layers": 3}
    config = changed("modernbert", **published, rope_parameters=None, layer_types=None)
    architecture, settings = find_architecture(config)
    rows = {row.key: row.read(settings) for row in architecture.hyperparameters}
    assert {key: value for key, value in rows.items() if value is not None} == OUTLINES["modernbert"]["metadata"]


def test_positions_up_to_the_padding_token_stay_behind() -> None:
    outline = OUTLINES["xlm-roberta"]
    n_stored = outline["tensors"]["embeddings.position_embeddings.weight"][0]
    assert converted(outline)["position_embd.weight"].shape[1] == n_stored - 2


def test_norms_that_the_first_checkpoints_call_gamma_and_beta_are_found() -> None:
    outline = OUTLINES["bert"]
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): shape
        for name, shape in outline["tensors"].items()
    }
    assert old.keys() != outline["tensors"].keys()
    assert set(converted(outline | {"tensors": old})) == set(converted(outline))


@pytest.mark.parametrize("limit", [[0.0, float("inf")], [0.0, {"__float__": "Infinity"}]])
def test_time_steps_without_a_limit_are_followed(limit: list[Any]) -> None:
    architecture, _ = find_architecture(changed("mamba2", time_step_limit=limit))
    assert architecture.gguf_name == "mamba2"


def test_a_reshaped_tensor_with_other_numbers_is_refused() -> None:
    outline = OUTLINES["mamba2"]
    odd = outline["tensors"] | {"backbone.layers.0.mixer.norm.weight": [96]}
    with pytest.raises(CheckpointError, match=r"ssm_norm\.weight is 96, but config\.json implies 2 × 64"):
        converted(outline | {"tensors": odd})


def test_the_language_model_of_a_nested_config_counts() -> None:
    _, config = find_architecture(OUTLINES["mistral3-seeing"]["config"])
    assert isinstance(config, Config)
    assert config.integer("hidden_size") == OUTLINES["mistral3-seeing"]["config"]["text_config"]["hidden_size"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("granitehybrid", "granitehybrid"),
        ("granitehybrid-attention", "granite"),
        ("granitehybrid-experts", "granitemoe"),
        ("nemotron-h", "nemotron_h"),
        ("nemotron-h-experts", "nemotron_h_moe"),
    ],
)
def test_a_config_decides_between_the_names_that_llama_cpp_has_for_a_class(name: str, expected: str) -> None:
    architecture, _ = find_architecture(OUTLINES[name]["config"], OUTLINES[name]["tensors"])
    assert architecture.gguf_name == expected


@pytest.mark.parametrize("name", OUTLINES)
def test_the_variants_of_a_class_can_be_found_by_llama_cpps_name(name: str) -> None:
    architecture, _ = find_architecture(OUTLINES[name]["config"])
    entry = ARCHITECTURES[OUTLINES[name]["config"]["architectures"][0]]
    assert architecture.gguf_name in {known.gguf_name for known in (entry, *entry.variants)}


@pytest.mark.parametrize("kinds", [["mamba", "attention"], ["linear_attention", "full_attention"]])
def test_kinds_of_layers_are_known_by_their_older_and_newer_names(kinds: list[str]) -> None:
    architecture, config = find_architecture(changed("granitehybrid", layer_types=kinds))
    rows = {row.key: row.read(config) for row in architecture.hyperparameters}
    assert rows["attention.head_count_kv"] == [0, 2]


def test_a_pattern_of_letters_says_the_same_as_a_list_of_layers() -> None:
    config = changed("nemotron-h-experts", hybrid_override_pattern="ME*", layers_block_type=None)
    architecture, settings = find_architecture(config)
    rows = {row.key: row.read(settings) for row in architecture.hyperparameters}
    assert rows["feed_forward_length"] == OUTLINES["nemotron-h-experts"]["metadata"]["feed_forward_length"]


def test_layers_are_counted_where_config_json_only_lists_them() -> None:
    config = {key: value for key, value in OUTLINES["nemotron-h"]["config"].items() if key != "num_hidden_layers"}
    assert find_architecture(config)[1].integer("num_hidden_layers") == len(config["layers_block_type"])


def test_experts_beside_plain_feed_forwards_are_refused() -> None:
    kinds = ["linear_attention", "mlp", "moe"]
    with pytest.raises(CheckpointError, match="Some layers have experts and others a feed-forward"):
        find_architecture(changed("nemotron-h", layers_block_type=kinds, num_hidden_layers=3))


def test_transformers_own_names_of_tensors_find_the_same_places() -> None:
    outline = OUTLINES["nemotron-h"]
    renamed = {name.replace("backbone.", "model.", 1): shape for name, shape in outline["tensors"].items()}
    assert renamed.keys() != outline["tensors"].keys()
    assert set(converted(outline | {"tensors": renamed})) == set(converted(outline))


def test_a_scaling_may_be_a_step() -> None:
    architecture, config = find_architecture(OUTLINES["llama4"]["config"])
    (divisors,) = generated_tensors(architecture, config)
    assert set(divisors.values) == {1.0, 8.0}


def test_settings_of_mimo_as_published_read_the_same() -> None:
    """The published window leaves out the token itself, and layers are listed by numbers."""
    published = {"sliding_window_size": 39, "sliding_window": 39, "hybrid_layer_pattern": [0, 1]}
    ropes = {"rope_theta": 5e6, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.334, "layernorm_epsilon": 1e-5}
    old = {"rope_parameters": None, "mlp_layer_types": None, "moe_layer_freq": [0, 1], "rms_norm_eps": None}
    architecture, config = find_architecture(changed("mimo2", **published, **ropes, **old))
    rows = {row.key: row.read(config) for row in architecture.hyperparameters}
    assert {key: value for key, value in rows.items() if value is not None} == OUTLINES["mimo2"]["metadata"]


def test_states_of_kimi_as_published_read_the_same() -> None:
    states = {"head_dim": 16, "short_conv_kernel_size": 4, "num_heads": 4, "full_attn_layers": [5], "kda_layers": [1]}
    absent = dict.fromkeys(("linear_head_dim", "linear_conv_kernel_dim", "layer_types", "mlp_layer_types"))
    architecture, config = find_architecture(changed("kimi-linear", linear_attn_config=states, **absent))
    rows = {row.key: row.read(config) for row in architecture.hyperparameters}
    assert {key: value for key, value in rows.items() if value is not None} == OUTLINES["kimi-linear"]["metadata"]


def test_llama_4_as_published_is_followed() -> None:
    """Scout lists no unrotated layers, and counts what other configs switch on."""
    architecture, _ = find_architecture(changed("llama4", no_rope_layers=[], attn_temperature_tuning=4))
    assert architecture.gguf_name == "llama4"
