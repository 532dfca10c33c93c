"""Every entry of the table of projectors against the outline of a checkpoint whose pictures were compared."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from quantizer.architectures import needed_tensors
from quantizer.architectures.projectors import PROJECTORS, Projector, find_projector, projectors_for
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.source_model import RearrangedTensor, SourceTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.gguf.header import encode_entry
from tests.quantizer.seeing_checkpoints import PROJECTOR_OUTLINES, headers

NORM_OF_FIRST_LAYER = re.compile(
    r"\b(layers?|blocks?)\.0\.(layer_norm1|norm1|attention_norm|layernorm_before|input_layernorm|self_attn_layer_norm)"
    r"\.weight$"
)


def found(outline: dict[str, Any], **processor: Any) -> list[tuple[Projector, Config]]:
    """The entry of each tower, and its config."""
    known = projectors_for(outline["config"])
    assert known
    return [find_projector(tower, outline["config"], outline["processor"] | processor) for tower in known]


def converted(outline: dict[str, Any]) -> dict[str, SourceTensor]:
    tensors, placed = headers(outline["tensors"]), {}
    for projector, config in found(outline):
        rows = headers({name: [config.section("language").integer("hidden_size")] for name in projector.token_rows})
        own = {key: tensors[key] for key in tensors if key.removeprefix("model.").startswith(projector.modules)}
        placed |= map_tensors({**own, **rows}, config, projector)
    return placed


def changed(name: str, **settings: Any) -> dict[str, Any]:
    """The outline with other settings of its first tower."""
    outline = PROJECTOR_OUTLINES[name]
    section = projectors_for(outline["config"])[0].section
    tower = outline["config"][section] | settings
    return outline | {"config": outline["config"] | {section: tower}}


def metadata(outline: dict[str, Any], **processor: Any) -> dict[str, Any]:
    rows = {
        row.key: row.read(config)
        for projector, config in found(outline, **processor)
        for row in projector.hyperparameters
    }
    return {key: value for key, value in rows.items() if value is not None}


def test_every_class_of_the_table_has_an_outline_or_the_entries_of_one_that_has() -> None:
    proven = [projectors_for(outline["config"]) for outline in PROJECTOR_OUTLINES.values()]
    assert all(proven)
    assert [name for name, entries in PROJECTORS.items() if entries not in proven] == []


@pytest.mark.parametrize("name", PROJECTOR_OUTLINES)
def test_settings_become_the_metadata_that_was_proven(name: str) -> None:
    assert metadata(PROJECTOR_OUTLINES[name]) == PROJECTOR_OUTLINES[name]["metadata"]


@pytest.mark.parametrize("name", PROJECTOR_OUTLINES)
def test_every_value_can_be_written_as_the_type_of_its_row(name: str) -> None:
    values = [
        (row.type_name, row.read(config))
        for projector, config in found(PROJECTOR_OUTLINES[name])
        for row in projector.hyperparameters
    ]
    assert all(encode_entry("key", value, kind).payload for kind, value in values if value is not None)


@pytest.mark.parametrize("name", PROJECTOR_OUTLINES)
def test_every_tensor_finds_its_place_and_none_is_missing(name: str) -> None:
    tensors = converted(PROJECTOR_OUTLINES[name])
    towers = found(PROJECTOR_OUTLINES[name])
    assert {tensor for projector, config in towers for tensor in needed_tensors(projector, config)} == set(tensors)
    assert all(tensor.name == new_name for new_name, tensor in tensors.items())


@pytest.mark.parametrize("name", PROJECTOR_OUTLINES)
def test_any_tensor_that_a_layer_lacks_is_noticed(name: str) -> None:
    outline = PROJECTOR_OUTLINES[name]
    norm = next(tensor for tensor in outline["tensors"] if NORM_OF_FIRST_LAYER.search(tensor))
    rest = {tensor: shape for tensor, shape in outline["tensors"].items() if tensor != norm}
    with pytest.raises(CheckpointError, match=r"lacks [av]\.blk\.0\."):
        converted(outline | {"tensors": rest})


def renamed(name: str, pattern: str, new: str) -> dict[str, Any]:
    outline = PROJECTOR_OUTLINES[name]
    tensors = {re.sub(pattern, new, tensor): shape for tensor, shape in outline["tensors"].items()}
    assert tensors.keys() != outline["tensors"].keys()
    return outline | {"tensors": tensors}


@pytest.mark.parametrize(
    ("name", "pattern", "new"),
    [
        ("gemma3-seeing", r"^vision_tower\.", "vision_tower.vision_model."),
        ("gemma3-seeing", r"^", "model."),
        ("gemma3-seeing", r"^vision_tower\.", "model.vision_tower.vision_model."),
        ("smolvlm", r"^model\.vision_model\.", "model.vision_model.vision_model."),
        ("idefics3", r"^model\.", ""),
        ("qwen2vl", r"^visual\.", "model.visual."),
        ("qwen25vl", r"^visual\.", "model.visual."),
        ("qwen3vl", r"^model\.visual\.", "visual."),
        ("internvl", r"^", "model."),
        ("lfm2-seeing", r"^model\.vision_tower\.", "vision_tower.vision_model."),
        ("lfm2-seeing", r"^model\.", ""),
        ("gemma4-seeing", r"^model\.", ""),
        ("glm4v", r"^model\.", ""),
        ("pixtral", r"^", "model."),
        ("paddleocr", r"^visual\.", "model.visual."),
        ("paddleocr", r"^mlp_AR\.", "model.projector."),
        ("lighton-ocr", r"^model\.", ""),
        ("glm-ocr", r"^model\.", ""),
        ("mistral3-seeing", r"^", "model."),
        ("qwen2audio", r"^", "model."),
        ("qwen3asr", r"^model\.audio_tower\.", "thinker.audio_tower."),
        ("qwen25omni", r"^thinker\.visual\.", "visual."),
        ("qwen3omni", r"^(?:model\.)?(visual|audio_tower)\.", r"thinker.\1."),
        ("qwen3asr", r"^model\.multi_modal_projector\.linear_", "thinker.audio_tower.proj"),
    ],
)
def test_older_and_newer_names_find_the_same_places(name: str, pattern: str, new: str) -> None:
    assert set(converted(renamed(name, pattern, new))) == set(converted(PROJECTOR_OUTLINES[name]))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gemma3-seeing", {"hidden_act": "silu"}),
        ("idefics3", {"num_channels": 1}),
        ("qwen2vl", {"hidden_act": "silu"}),
        ("qwen2vl", {"rope_parameters": {"rope_type": "axial", "rope_theta": 500.0}}),
        ("qwen25vl", {"window_size": 224}),
        ("qwen3vl", {"spatial_merge_size": 4}),
        ("qwen3vl", {"temporal_patch_size": 1}),
        ("qwen35-seeing", {"deepstack_visual_indexes": [1]}),
        ("internvl", {"norm_type": "rms_norm"}),
        ("internvl", {"use_qk_norm": True}),
        ("internvl", {"use_mean_pooling": False}),
        ("lfm2-seeing", {"num_channels": 1}),
        ("paddleocr", {"hidden_act": "gelu"}),
        ("paddleocr", {"spatial_merge_size": 4}),
        ("paddleocr", {"rope_parameters": {"rope_type": "axial", "rope_theta": 500.0}}),
        ("pixtral", {"model_type": "clip_vision_model"}),
        ("pixtral", {"model_type": "siglip_vision_model"}),
        ("glm4v", {"hidden_act": "gelu"}),
        ("glm4v", {"out_hidden_size": 32}),
        ("glm4v-experts", {"spatial_merge_size": 4}),
        ("glm-ocr", {"rope_parameters": {"rope_type": "axial", "rope_theta": 500.0}}),
        ("glm-ocr", {"head_dim": 64}),
        ("gemma4-seeing", {"hidden_activation": "silu"}),
        ("gemma4-seeing", {"num_key_value_heads": 1}),
        ("gemma4-seeing", {"head_dim": 64}),
        ("gemma4-seeing", {"rope_parameters": {"rope_type": "axial", "rope_theta": 1e4}}),
        ("mistral3-seeing", {"hidden_act": "relu"}),
        ("mistral3-seeing", {"rope_theta": 500.0}),
        ("mistral3-seeing", {"head_dim": 32}),
        ("qwen2audio", {"activation_function": "relu"}),
        ("qwen2audio", {"max_source_positions": 3000}),
        ("qwen3asr", {"n_window": 100}),
        ("qwen3asr", {"n_window_infer": 400}),
    ],
)
def test_what_libmtmd_would_not_follow_is_refused(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=f"has {next(iter(settings))} = .*, which llama.cpp does not support"):
        found(changed(name, **settings))


@pytest.mark.parametrize("settings", [{"do_rescale": False}, {"do_normalize": False}, {"rescale_factor": 1.0}])
def test_pictures_that_are_prepared_otherwise_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json has .*, which llama.cpp does not support"):
        found(PROJECTOR_OUTLINES["gemma3-seeing"], **settings)


@pytest.mark.parametrize("settings", [{"sampling_rate": 24000}, {"hop_length": 80}, {"n_fft": 512}, {"dither": 1e-5}])
def test_sounds_that_are_prepared_otherwise_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json has .*, which llama.cpp does not support"):
        found(PROJECTOR_OUTLINES["qwen3asr"], **settings)


def test_a_spectrogram_has_the_bands_that_the_tower_hears() -> None:
    with pytest.raises(CheckpointError, match="128 mel bands"):
        metadata(PROJECTOR_OUTLINES["qwen2audio"], feature_size=80)


def test_a_projector_without_biases_is_refused() -> None:
    outline = PROJECTOR_OUTLINES["audioflamingo3"]
    with pytest.raises(CheckpointError, match="has projector_bias = False"):
        found(outline | {"config": outline["config"] | {"projector_bias": False}})


@pytest.mark.parametrize("width", [2, 33])
def test_waves_are_pairs_of_sines_and_cosines(width: int) -> None:
    with pytest.raises(CheckpointError, match=f"a hidden size of {width}"):
        converted(changed("qwen3asr", d_model=width, hidden_size=width))


def test_positions_are_waves_of_falling_speed() -> None:
    positions = converted(PROJECTOR_OUTLINES["qwen3asr"])["a.position_embd.weight"]
    rows = np.concatenate([np.frombuffer(slab, "<f4").reshape(-1, 32) for slab in positions.slabs(700)])
    assert rows.shape == (1500, 32)
    angles = np.arange(1500)[:, None] * 10_000.0 ** -(np.arange(16) / 15)
    assert np.abs(rows - np.concatenate([np.sin(angles), np.cos(angles)], axis=1)).max() < 1e-3
    assert np.abs(rows - np.concatenate([np.sin(angles), np.cos(angles)], axis=1))[:13].max() < 1e-5


def test_sounds_have_zeros_where_pictures_have_vectors_for_later_layers() -> None:
    tensors = converted(PROJECTOR_OUTLINES["qwen3omni"])
    assert tensors["mm.a.mlp.2.weight"].shape == (32, 3 * 64)
    assert tensors["mm.a.mlp.2.bias"].shape == (3 * 64,)
    assert sum("deepstack" in name and name.endswith("norm.weight") for name in tensors) == 2


def test_the_part_that_answers_may_have_a_section_of_its_own() -> None:
    outline = PROJECTOR_OUTLINES["qwen3asr"]
    parts = {key: value for key, value in outline["config"].items() if key.endswith("_config")}
    rest = {key: value for key, value in outline["config"].items() if key not in parts}
    assert metadata(outline | {"config": rest | {"thinker_config": parts}}) == outline["metadata"]


def test_a_factor_may_have_fewer_digits() -> None:
    found(PROJECTOR_OUTLINES["gemma3-seeing"], rescale_factor=0.0039215687)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("image_mean", None, "should be three numbers"),
        ("image_mean", [0.5, 0.5], "should be three numbers"),
        ("image_mean", [0.5, 0.5, "x"], "should be three numbers"),
        ("image_mean", [0.5, 0.5, float("nan")], "should be three numbers"),
        ("image_std", [0.5, 0, 0.5], "has an image_std of 0"),
    ],
)
def test_colours_that_make_no_sense_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        metadata(PROJECTOR_OUTLINES["gemma3-seeing"], **{name: value})
    assert message in f"{caught.value.cause} {caught.value.remedy}"


@pytest.mark.parametrize("settings", [{"patch_size": 0}, {"patch_size": 99}])
def test_patches_that_no_picture_holds_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(CheckpointError, match="patch_size in config"):
        metadata(changed("gemma3-seeing", **settings))


@pytest.mark.parametrize("n_vectors", [0, 9, 400])
def test_squares_of_patches_that_leave_some_over_are_refused(n_vectors: int) -> None:
    outline = PROJECTOR_OUTLINES["gemma3-seeing"]
    with pytest.raises(CheckpointError, match="4 patches in a row cannot be divided"):
        metadata(outline | {"config": outline["config"] | {"mm_tokens_per_image": n_vectors}})


def test_pieces_of_a_picture_are_as_large_as_the_tower_sees() -> None:
    with pytest.raises(CheckpointError, match="pieces of 28 pixels, but the vision tower takes 56"):
        metadata(PROJECTOR_OUTLINES["idefics3"], max_image_size={"longest_edge": 28})


def test_a_class_without_a_known_tower_has_no_entry() -> None:
    assert projectors_for({"architectures": ["LlamaForCausalLM"]}) == ()
    assert projectors_for({"architectures": [["x"]]}) == ()
    assert projectors_for({}) == ()


@pytest.mark.parametrize("layers", [[0, 3], [1], [3, 1], [1, 3, 5], [], 2])
def test_whole_pictures_are_attended_to_in_every_nth_layer(layers: object) -> None:
    with pytest.raises(CheckpointError, match="not every n-th layer"):
        metadata(changed("qwen25vl", fullatt_block_indexes=layers))


@pytest.mark.parametrize("layers", [[4], [-1], ["1"], 2])
def test_later_layers_get_vectors_of_layers_that_are_there(layers: object) -> None:
    with pytest.raises(CheckpointError, match="has deepstack_visual_indexes"):
        found(changed("qwen3vl", deepstack_visual_indexes=layers))


def test_vectors_for_later_layers_have_the_number_of_their_layer() -> None:
    names = converted(PROJECTOR_OUTLINES["qwen3vl"])
    assert {name.split(".")[2] for name in names if "deepstack" in name} == {"0", "2"}
    rows = PROJECTOR_OUTLINES["qwen3vl"]["metadata"]
    assert rows["vision.is_deepstack_layers"] == [True, False, True, False]


def test_the_kernel_of_two_frames_becomes_two_kernels() -> None:
    tensors = converted(PROJECTOR_OUTLINES["qwen2vl"])
    frames = [tensors[f"v.patch_embd.weight{ending}"] for ending in ("", ".1")]
    assert [frame.shape for frame in frames] == [(14, 14, 3, 32)] * 2
    first, second = (set(frame.row_order) for frame in frames if isinstance(frame, RearrangedTensor))
    assert not first & second
    assert first | second == set(range(14 * 2 * 3 * 32))


@pytest.mark.parametrize(
    ("outline_name", "ending", "shape", "words"),
    [
        ("qwen3vl", "patch_embed.proj.weight", [32, 3, 1, 14, 14], "does not span 2 frames"),
        ("qwen2vl", "0.attn.qkv.weight", [95, 32], r"v\.blk\.0\.attn_. is|attn_q\.weight is"),
        ("lfm2-seeing", "patch_embedding.weight", [32, 767], "does not match patches of 16 pixels"),
        ("lfm2-seeing", "patch_embedding.weight", [32, 3, 16, 16], "does not match patches of 16 pixels"),
        ("gemma4-seeing", ".input_min", [2], "is not a single number"),
    ],
)
def test_a_tensor_of_another_shape_is_refused(outline_name: str, ending: str, shape: list[int], words: str) -> None:
    outline = PROJECTOR_OUTLINES[outline_name]
    name = next(tensor for tensor in outline["tensors"] if tensor.endswith(ending))
    with pytest.raises(CheckpointError, match=words):
        converted(outline | {"tensors": outline["tensors"] | {name: shape}})


def test_positions_that_are_no_square_are_refused() -> None:
    with pytest.raises(CheckpointError, match="num_position_embeddings = 17, which is not a square number"):
        found(changed("qwen3vl", num_position_embeddings=17))


def test_one_number_is_added_to_the_variance_everywhere() -> None:
    outline = PROJECTOR_OUTLINES["mistral3-seeing"]
    language = outline["config"]["text_config"] | {"rms_norm_eps": 1e-6}
    with pytest.raises(CheckpointError, match="has rms_norm_eps = 1e-06"):
        found(outline | {"config": outline["config"] | {"text_config": language}})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mistral3-seeing", {"vision_feature_layer": -2}),
        ("mistral3-seeing", {"projector_hidden_act": "relu"}),
        ("mistral3-seeing", {"vision_feature_layer": [-1, -2]}),
        ("internvl", {"projector_hidden_act": "relu"}),
        ("internvl", {"vision_feature_layer": -2}),
        ("internvl", {"vision_feature_select_strategy": "full"}),
        ("pixtral", {"vision_feature_layer": -2}),
        ("pixtral", {"vision_feature_select_strategy": "default"}),
        ("lfm2-seeing", {"projector_hidden_act": "relu"}),
        ("lfm2-seeing", {"projector_bias": False}),
        ("lfm2-seeing", {"vision_feature_layer": -2}),
    ],
)
def test_what_follows_the_tower_is_as_libmtmd_has_it(name: str, settings: dict[str, Any]) -> None:
    outline = PROJECTOR_OUTLINES[name]
    with pytest.raises(CheckpointError, match=f"has {next(iter(settings))} = .*, which llama.cpp does not support"):
        found(outline | {"config": outline["config"] | settings})


def test_the_tower_that_llama_cpp_knows_by_its_size_is_refused() -> None:
    with pytest.raises(CheckpointError, match="norm_type = layer_norm"):
        found(changed("internvl", hidden_size=3200, num_hidden_layers=45))


@pytest.mark.parametrize("size", [[56, 28], [56], []])
def test_pictures_that_are_no_square_are_refused(size: list[int]) -> None:
    with pytest.raises(CheckpointError, match=r"image_size = .*, which is not square"):
        found(changed("internvl", image_size=size))


@pytest.mark.parametrize("ratio", [0.4, 2.0, -0.5, 1 / 3])
def test_patches_that_do_not_fit_into_vectors_are_refused(ratio: float) -> None:
    outline = PROJECTOR_OUTLINES["internvl"]
    with pytest.raises(CheckpointError, match="has downsample_ratio"):
        metadata(outline | {"config": outline["config"] | {"downsample_ratio": ratio}})


def test_the_position_of_the_whole_picture_comes_last() -> None:
    positions = converted(PROJECTOR_OUTLINES["internvl"])["v.position_embd.weight"]
    assert isinstance(positions, RearrangedTensor)
    assert list(positions.row_order) == [*range(1, 17), 0]


def test_pieces_of_a_picture_are_as_many_as_the_processor_has_it() -> None:
    rows = metadata(PROJECTOR_OUTLINES["internvl"], min_patches=2, max_patches=6)
    assert (rows["vision.preproc_min_tiles"], rows["vision.preproc_max_tiles"]) == (2, 6)


def test_a_matrix_of_patches_becomes_a_kernel_with_colours_apart() -> None:
    kernel = converted(PROJECTOR_OUTLINES["lfm2-seeing"])["v.patch_embd.weight"]
    assert isinstance(kernel, RearrangedTensor)
    assert kernel.shape == (16, 16, 3, 32)
    assert list(kernel.row_order[:3]) == [0, 3, 6]
    assert sorted(kernel.row_order) == list(range(32 * 768))


def test_patches_of_a_tower_that_are_no_square_are_refused() -> None:
    with pytest.raises(CheckpointError, match="num_patches = 255, which is not a square number"):
        found(changed("lfm2-seeing", num_patches=255))


def test_a_projector_without_a_norm_has_none() -> None:
    outline = PROJECTOR_OUTLINES["lfm2-seeing"]
    rest = {
        name: shape for name, shape in outline["tensors"].items() if ".multi_modal_projector.layer_norm." not in name
    }
    plain = outline | {"config": outline["config"] | {"projector_use_layernorm": False}, "tensors": rest}
    [(projector, config)] = found(plain)
    assert set(converted(plain)) == set(needed_tensors(projector, config))


def test_bounds_of_matrices_are_numbers_of_their_own() -> None:
    tensors = converted(PROJECTOR_OUTLINES["gemma4-seeing"])
    bounds = [tensors[f"v.blk.0.attn_q.{name}"] for name in ("input_min", "input_max", "output_min", "output_max")]
    assert {(bound.shape, bound.stored.name) for bound in bounds} == {((1,), "F32")}


def test_gemma_that_hears_says_that_its_projector_does_not() -> None:
    outline = PROJECTOR_OUTLINES["gemma4-seeing"]
    [(projector, config)] = found(outline | {"config": outline["config"] | {"audio_config": {"hidden_size": 32}}})
    assert projector.approximations(config) == ("What lets the model hear is left out; the projector sees only.",)
    [(projector, config)] = found(outline)
    assert projector.approximations(config) == ()


_SEEN = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "do_rescale": True, "do_normalize": True}
# the towers as the hub has them, beside the language model of the outline, and some of the metadata
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gemma3-seeing": (
        {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model"}
        | {"num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False},
        {"mm_tokens_per_image": 256},
        {"vision.projector.scale_factor": 4, "vision.attention.layer_norm_epsilon": 1e-6},
    ),
    "smolvlm": (
        {"hidden_size": 768, "image_size": 512, "max_image_size": {"longest_edge": 512}, "num_attention_heads": 12}
        | {"model_type": "smolvlm_vision", "patch_size": 16, "size": {"longest_edge": 2048}, "use_base_siglip": True},
        {"scale_factor": 4},
        {"vision.feed_forward_length": 3072, "vision.block_count": 12, "vision.projector.scale_factor": 4},
    ),
    "qwen2vl": (
        {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3, "hidden_size": 3584}
        | {"patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2},
        {},
        {"vision.embedding_length": 1280, "vision.feed_forward_length": 5120, "vision.block_count": 32},
    ),
    "qwen25vl": (
        {"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16}
        | {"in_chans": 3, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "window_size": 112}
        | {"fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2, "temporal_patch_size": 2},
        {},
        {"vision.n_wa_pattern": 8, "use_silu": True, "vision.embedding_length": 1280},
    ),
    "qwen3vl": (
        {"deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1024}
        | {"in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4096, "num_heads": 16, "patch_size": 16}
        | {"num_position_embeddings": 2304, "out_hidden_size": 2560, "spatial_merge_size": 2, "temporal_patch_size": 2},
        {},
        {"vision.image_size": 768, "vision.block_count": 24, "vision.spatial_merge_size": 2},
    ),
    "mistral3-seeing": (
        {"attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024, "image_size": 1540}
        | {"initializer_range": 0.02, "intermediate_size": 4096, "model_type": "pixtral", "num_attention_heads": 16}
        | {"num_channels": 3, "num_hidden_layers": 24, "patch_size": 14, "rope_theta": 10000.0},
        {"spatial_merge_size": 2, "vision_feature_layer": -1, "projector_hidden_act": "gelu"},
        {"use_silu": True, "vision.image_size": 1540, "vision.spatial_merge_size": 2},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_towers_as_published_are_understood(name: str) -> None:
    tower, whole, expected = PUBLISHED[name]
    outline = PROJECTOR_OUTLINES[name]
    config = outline["config"] | whole | {"vision_config": tower}
    rows = metadata({"config": config, "processor": _SEEN})
    assert {key: rows[key] for key in expected} == expected


def test_rotations_of_an_earlier_name_are_the_same() -> None:
    found(changed("mistral3-seeing", rope_parameters={"rope_type": "default", "rope_theta": 10000.0}))


def test_a_tower_of_glm_without_biases_has_none() -> None:
    outline = changed("glm-ocr", attention_bias=False)
    biased = re.compile(r"\.(attn\.(qkv|proj)|mlp\.\w+)\.bias$")
    plain = outline | {
        "tensors": {name: shape for name, shape in outline["tensors"].items() if not biased.search(name)}
    }
    [(projector, config)] = found(plain)
    assert set(converted(plain)) == set(needed_tensors(projector, config))
    assert len(plain["tensors"]) < len(outline["tensors"])


def test_the_longer_side_of_pictures_is_the_processors_or_what_the_tower_was_made_for() -> None:
    outline = PROJECTOR_OUTLINES["lighton-ocr"]
    assert metadata(outline, size={"longest_edge": 700})["vision.preproc_image_size"] == 700
    assert metadata(outline, size=None)["vision.preproc_image_size"] == 168


@pytest.mark.parametrize("eps", [1e-4, 1.0])
def test_a_norm_that_would_add_too_little_is_refused(eps: float) -> None:
    outline = PROJECTOR_OUTLINES["lighton-ocr"]
    text = outline["config"]["text_config"] | {"rms_norm_eps": eps}
    with pytest.raises(CheckpointError, match="rms_norm_eps"):
        found(outline | {"config": outline["config"] | {"text_config": text}})


def test_the_pixels_of_pictures_are_found_in_either_of_two_places() -> None:
    outline = PROJECTOR_OUTLINES["paddleocr"]
    old = metadata(outline)
    assert (old["vision.image_min_pixels"], old["vision.image_max_pixels"]) == (3136, 65536)
    size = {"shortest_edge": 3136, "longest_edge": 65536}
    assert metadata(outline, min_pixels=None, max_pixels=None, size=size) == old
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json has no min_pixels"):
        metadata(outline, min_pixels=None)


@pytest.mark.parametrize("name", ["model_type", "vision_feature_layer", "vision_feature_select_strategy"])
def test_what_a_config_of_llava_leaves_out_is_its_classs_own(name: str) -> None:
    config = PROJECTOR_OUTLINES["pixtral"]["config"]
    tower = {key: value for key, value in config["vision_config"].items() if key != name}
    rest = {key: value for key, value in config.items() if key != name or name == "model_type"}
    with pytest.raises(CheckpointError, match=f"has {name} = "):
        found(PROJECTOR_OUTLINES["pixtral"] | {"config": rest | {"vision_config": tower}})


def test_pixtral_may_have_no_biases() -> None:
    outline = PROJECTOR_OUTLINES["pixtral"]
    plain = outline | {
        "config": outline["config"] | {"multimodal_projector_bias": False},
        "tensors": {name: shape for name, shape in outline["tensors"].items() if not name.endswith(".bias")},
    }
    [(projector, config)] = found(plain)
    expected = set(needed_tensors(projector, config)) - {"v.token_embd.img_break"}
    assert set(converted(plain)) >= expected
