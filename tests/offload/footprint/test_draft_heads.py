from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.load.auxiliary_models import read_auxiliary_models
from offload.footprint.auxiliary_models import AuxiliaryUsage
from offload.footprint.model import PlannedModel, RunConfig
from offload.footprint.weights import GraphShape, compute_bytes, selecting_bytes
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


DFLASH2 = GraphShape(
    n_embd=1024,
    n_logits=32_000,
    n_heads=16,
    query_width=1024,
    key_value_width=512,
    feed_forward_width=3 * 3072,
    n_masks=1,
    has_attention=True,
    n_taps=2,
    candidates_width=16 * 256,
)
WIDE = replace(DFLASH2, n_embd=2048, n_heads=32, query_width=2048, key_value_width=1024, feed_forward_width=3 * 4096)


# MiB as llama.cpp logs them for heads of these shapes, in batches of 72 tokens.
@pytest.mark.parametrize(
    ("shape", "n_cells", "is_fused", "logged"),
    [
        (DFLASH2, 4352, False, 22.40),
        (DFLASH2, 4352, True, 10.09),
        (replace(DFLASH2, n_taps=0, candidates_width=0), 4352, True, 9.35),
        (replace(DFLASH2, n_logits=2000), 1280, True, 4.64),
        (replace(WIDE, n_logits=8000), 1280, True, 6.86),
    ],
)
def test_convolutions_and_candidates_are_in_the_buffers_of_a_pass(
    shape: GraphShape, n_cells: int, is_fused: bool, logged: float
) -> None:
    planned = compute_bytes(shape, n_cells, n_ubatch=72, is_fused=is_fused) / (1 << 20)
    assert planned == pytest.approx(logged, rel=0.1)


def test_long_blocks_of_many_answers_take_more_than_llama_cpp_reserves() -> None:
    small = replace(DFLASH2, n_embd=512, n_logits=4000, feed_forward_width=3 * 1024, n_taps=4)
    grown = selecting_bytes(small, 64) / (1 << 20)
    assert grown == pytest.approx(4.70, rel=0.12)  # logged when the context was freed; 2.67 were reserved
    assert selecting_bytes(replace(small, candidates_width=0), 64) == 0
