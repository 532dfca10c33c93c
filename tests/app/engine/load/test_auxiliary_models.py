from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from app.engine.load.auxiliary_models import find_projectors, read_auxiliary_models
from quantizer.errors import ModelFileError
from quantizer.gguf.validation import validate_gguf
from tests.quantizer.gguf_heads import predicting_model


def projector(path: Path, architecture: str = "clip") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_model_alone_has_no_auxiliary_models(tiny_model: Path) -> None:
    auxiliary = read_auxiliary_models(validate_gguf(tiny_model))
    assert auxiliary.draft is None
    assert not auxiliary.has_mtp_layer
    assert not auxiliary.adapters


def test_a_draft_model_is_read_with_its_tensors(tiny_model: Path) -> None:
    auxiliary = read_auxiliary_models(validate_gguf(tiny_model), draft_path=str(tiny_model))
    assert auxiliary.draft is not None
    assert auxiliary.draft.name == tiny_model.name
    assert auxiliary.draft.tensors


@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35"])
@pytest.mark.parametrize("n_layers", [1, 2])
def test_an_mtp_layer_counts_if_it_can_draft(tmp_path: Path, architecture: str, n_layers: int) -> None:
    path = predicting_model(tmp_path / "m.gguf", architecture, lambda w: w.add_nextn_predict_layers(n_layers))
    assert read_auxiliary_models(validate_gguf(path)).has_mtp_layer is (n_layers == 1)


def test_only_a_projector_is_one(tmp_path: Path, tiny_model: Path) -> None:
    header = validate_gguf(tiny_model)
    found = read_auxiliary_models(header, projector=projector(tmp_path / "mmproj-F16.gguf")).projector
    assert found is not None
    assert found.name == "mmproj-F16.gguf"
    with pytest.raises(ModelFileError, match="is not a projector"):
        read_auxiliary_models(header, projector=tiny_model)


def test_projectors_are_found_beside_a_model_by_their_names(tmp_path: Path) -> None:
    beside = projector(tmp_path / "mmproj-model-f16.gguf")
    assert find_projectors(tmp_path / "model.gguf") == (beside,)
