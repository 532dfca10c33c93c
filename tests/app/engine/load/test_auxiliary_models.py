from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.load.auxiliary_models import left_out_notice, read_auxiliary_models, with_sound_projector
from app.engine.protocol.messages import EngineConfig
from offload.footprint.model import PlannedModel
from offload.footprint.profile import RunConfig
from offload.placement.assessment import FitLevel
from offload.plan import PlacementPlan, plan
from offload.speed.cost_model import expected_rates
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.validation import validate_gguf
from tests.app.service.pool.memory_fake import host_with
from tests.quantizer.gguf_draft_heads import draft_head, drafted_model
from tests.quantizer.gguf_heads import predicting_model
from tests.quantizer.gguf_projectors import tiny_projector


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
    found = read_auxiliary_models(header, projector=tiny_projector(tmp_path / "mmproj-F16.gguf")).projector
    assert found is not None
    assert found.name == "mmproj-F16.gguf"
    with pytest.raises(ModelFileError, match="is not a projector"):
        read_auxiliary_models(header, projector=tiny_model)


def test_a_projector_that_was_found_and_does_not_belong_is_left_out_with_the_reason(
    tmp_path: Path, tiny_model: Path
) -> None:
    header = validate_gguf(tiny_model)
    wrong = str(tiny_projector(tmp_path / "mmproj-F16.gguf", n_embd=96))
    config, reason = with_sound_projector(EngineConfig(projector_path=wrong), header)
    assert config.projector_path == ""
    assert "its embeddings have 96 numbers" in reason
    chosen = EngineConfig(projector_path=wrong, has_chosen_projector=True)
    assert with_sound_projector(chosen, header) == (chosen, "")


def test_a_head_that_was_found_is_left_out_where_only_the_model_alone_fits(tmp_path: Path) -> None:
    header, head = validate_gguf(drafted_model(tmp_path / "m.gguf")), draft_head(tmp_path / "dflash-m.gguf", "dflash")
    alone = PlannedModel(header, header.tensors)
    drafting = replace(alone, auxiliary=read_auxiliary_models(header, draft_path=str(head)))

    def planned(model: PlannedModel, n_bytes: int) -> PlacementPlan:
        machine = host_with(n_bytes)
        return plan(model, RunConfig(n_ctx=64, n_cells=64), machine, expected_rates(machine))

    def least_bytes(model: PlannedModel) -> int:
        fits = FitLevel.FITS.rank
        return bisect_left(range(4 << 30), True, key=lambda n: planned(model, n).assessment.verdict.rank == fits)

    few, enough = least_bytes(alone), least_bytes(drafting)
    assert few < enough
    notice = left_out_notice(head, planned(drafting, few), planned(alone, few))
    assert notice.startswith("dflash-m.gguf does not draft")
    assert left_out_notice(head, planned(drafting, enough), planned(alone, enough)) == ""
    assert left_out_notice(head, planned(drafting, 1), planned(alone, 1)) == ""
