from __future__ import annotations

from pathlib import Path

import pytest

from app.engine.load.auxiliary_models import read_auxiliary_models
from offload.footprint.auxiliary_models import AuxiliaryUsage
from offload.footprint.model import PlannedModel, RunConfig
from quantizer.gguf.header import read_header
from tests.quantizer.gguf_draft_heads import HEADS, draft_head, drafted_model


def usage(folder: Path, kind: str) -> AuxiliaryUsage:
    model, head = read_header(drafted_model(folder / "m.gguf")), draft_head(folder / "h.gguf", kind)
    planned = PlannedModel(model, model.tensors, auxiliary=read_auxiliary_models(model, draft_path=str(head)))
    (extra,) = planned.profile(RunConfig(n_ctx=8192, n_cells=8192, n_sequences=4, is_fused=False)).extras
    return extra


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_has_cells_for_its_drafts_beside_those_of_the_model(tmp_path: Path, kind: str) -> None:
    found = usage(tmp_path, kind)
    assert found.what == "draft head h.gguf"
    assert found.cache_bytes == (8192 + 256) * 64 * 4  # 4 answers have 32 each, padded to 256


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_that_borrows_matrices_computes_over_all_cells(tmp_path: Path, kind: str) -> None:
    assert usage(tmp_path, kind).compute_bytes > 64 * 8192 * 4, "as llama.cpp allocates 5 MB and more for them"
