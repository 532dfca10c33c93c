from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError
from quantizer.convert.embedding_modules import EmbeddingModules, read_embedding_modules
from tests.quantizer.checkpoints import write_safetensors
from tests.quantizer.encoder_checkpoints import pooled_as

_NAMES = ("dense_2", "dense_3")
_IDENTITY = "torch.nn.modules.linear.Identity"


def read(folder: Path, *names: str) -> EmbeddingModules:
    return read_embedding_modules(folder, Config({"hidden_size": 8}), names)


def with_dense_modules(folder: Path, *widths: int, **settings: Any) -> Path:
    """Write a pooling and linear modules between the `widths`; their settings may be changed."""
    sizes = list(pairwise(widths))
    pooled_as(folder, {"pooling_mode": "mean"}, *["Dense"] * len(sizes), "Normalize")
    for number, (n_in, n_out) in enumerate(sizes, 2):
        module = folder / f"{number}_Dense"
        module.mkdir()
        own = {"in_features": n_in, "out_features": n_out, "bias": False, "activation_function": _IDENTITY}
        (module / "config.json").write_text(json.dumps(own | settings))
        write_safetensors(module / "model.safetensors", {"linear.weight": np.ones((n_out, n_in), np.float32)}, "F32")
    return folder


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({"pooling_mode": "mean"}, 1),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, 2),
        ({"word_embedding_dimension": 8, "pooling_mode_lasttoken": True, "include_prompt": True}, 3),
    ],
)
def test_names_and_older_flags_become_the_number_of_llama_cpp(
    settings: dict[str, Any], number: int, tmp_path: Path
) -> None:
    pooled_as(tmp_path, settings, "Normalize")
    assert read(tmp_path).numbers == {"pooling_type": number}


def test_a_folder_without_modules_has_no_pooling(tmp_path: Path) -> None:
    assert read(tmp_path) == EmbeddingModules()


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"pooling_mode": "weightedmean"}, "pools by weightedmean,"),
        ({"pooling_mode_max_tokens": True}, "pools by pooling_mode_max_tokens,"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "pools by cls and mean,"),
        ({"pooling_mode_cls_token": False}, "pools by nothing,"),
    ],
)
def test_a_pooling_that_llama_cpp_has_not_is_named(settings: dict[str, Any], cause: str, tmp_path: Path) -> None:
    pooled_as(tmp_path, settings)
    with pytest.raises(CheckpointError, match=cause):
        read(tmp_path)


def test_layers_behind_the_pooling_are_refused(tmp_path: Path) -> None:
    pooled_as(tmp_path, {"pooling_mode": "mean"}, "Dense", "Normalize")
    with pytest.raises(CheckpointError, match="through a Dense module"):
        read(tmp_path)


def test_linear_modules_become_tensors_where_llama_cpp_has_names_for_them(tmp_path: Path) -> None:
    modules = read(with_dense_modules(tmp_path, 8, 24, 8), *_NAMES)
    assert {name: tensor.shape for name, tensor in modules.tensors.items()} == {
        "dense_2_out.weight": (8, 24),
        "dense_3_out.weight": (24, 8),
    }
    assert modules.numbers == {
        "pooling_type": 1,
        "dense_2_feat_in": 8,
        "dense_2_feat_out": 24,
        "dense_3_feat_in": 24,
        "dense_3_feat_out": 8,
    }


@pytest.mark.parametrize("widths", [(8, 8), (8, 8, 8, 8)])
def test_another_number_of_linear_modules_is_refused(widths: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="through a Dense module"):
        read(with_dense_modules(tmp_path, *widths), *_NAMES)


def test_a_linear_module_before_the_pooling_is_refused(tmp_path: Path) -> None:
    with_dense_modules(tmp_path, 8, 24, 8)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules.insert(1, modules.pop(2))
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="through a Dense module"):
        read(tmp_path, *_NAMES)


def test_a_module_of_another_kind_is_refused_beside_linear_ones(tmp_path: Path) -> None:
    pooled_as(tmp_path, {"pooling_mode": "mean"}, "Dense", "Dense", "LayerNorm")
    with pytest.raises(CheckpointError, match="through a LayerNorm module"):
        read(tmp_path, *_NAMES)


@pytest.mark.parametrize(
    ("widths", "settings", "cause"),
    [
        ((8, 24, 8), {"activation_function": "torch.nn.modules.activation.Tanh"}, "more than one matrix"),
        ((8, 24, 8), {"activation_function": None}, "more than one matrix"),
        ((8, 24, 8), {"out_features": 23}, "has 24 × 8 weights, where 23 × 8 are needed"),
        ((9, 24, 8), {}, "has 24 × 9 weights, where 24 × 8 are needed"),
        ((8, 24, 9), {}, "gives 9 numbers"),
    ],
)
def test_linear_modules_that_llama_cpp_would_compute_otherwise_are_refused(
    widths: tuple[int, ...], settings: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=cause):
        read(with_dense_modules(tmp_path, *widths, **settings), *_NAMES)


def test_a_linear_module_with_a_bias_is_refused(tmp_path: Path) -> None:
    with_dense_modules(tmp_path, 8, 24, 8)
    weights = {"linear.weight": np.ones((24, 8), np.float32), "linear.bias": np.ones(24, np.float32)}
    write_safetensors(tmp_path / "2_Dense" / "model.safetensors", weights, "F32")
    with pytest.raises(CheckpointError, match="more than one matrix"):
        read(tmp_path, *_NAMES)


def test_a_linear_module_without_weights_is_named(tmp_path: Path) -> None:
    (with_dense_modules(tmp_path, 8, 24, 8) / "3_Dense" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no safetensors in .*3_Dense"):
        read(tmp_path, *_NAMES)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_the_weights_of_a_module_may_be_a_link_of_the_hub_cache(tmp_path: Path) -> None:
    folder = tmp_path / "models--a--b" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    weights = with_dense_modules(folder, 8, 24, 8) / "2_Dense" / "model.safetensors"
    blob, secret = tmp_path / "models--a--b" / "blobs" / "4567", tmp_path / "secret.safetensors"
    blob.parent.mkdir()
    for target in (blob, secret):
        weights.rename(target)
        weights.symlink_to(target)
        if target == blob:
            assert read(folder, *_NAMES).tensors
            weights.unlink()
            target.rename(weights)
    with pytest.raises(CheckpointError, match="link out of its folder"):
        read(folder, *_NAMES)


@pytest.mark.parametrize("path", ["../1_Pooling", "/etc", "1_Pooling/..", ".."])
def test_a_module_outside_its_folder_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Pooling", "path": path}]))
    with pytest.raises(CheckpointError, match="no plain name"):
        read(tmp_path)


@pytest.mark.parametrize("modules", [{}, [1], [{"type": 5, "path": ""}], [{"type": "Pooling"}]])
def test_modules_that_are_no_modules_are_refused(modules: object, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="not a list of modules"):
        read(tmp_path)
