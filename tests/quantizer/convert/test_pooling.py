from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantizer.convert.checkpoint_source import read_pooling
from quantizer.errors import CheckpointError
from tests.quantizer.encoder_checkpoints import pooled_as


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
    assert read_pooling(tmp_path) == number


def test_a_folder_without_modules_has_no_pooling(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None


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
        read_pooling(tmp_path)


def test_layers_behind_the_pooling_are_refused(tmp_path: Path) -> None:
    pooled_as(tmp_path, {"pooling_mode": "mean"}, "Dense", "Normalize")
    with pytest.raises(CheckpointError, match="through a Dense module"):
        read_pooling(tmp_path)


@pytest.mark.parametrize("path", ["../1_Pooling", "/etc", "1_Pooling/..", ".."])
def test_a_module_outside_its_folder_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Pooling", "path": path}]))
    with pytest.raises(CheckpointError, match="no plain name"):
        read_pooling(tmp_path)


@pytest.mark.parametrize("modules", [{}, [1], [{"type": 5, "path": ""}], [{"type": "Pooling"}]])
def test_modules_that_are_no_modules_are_refused(modules: object, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="not a list of modules"):
        read_pooling(tmp_path)
