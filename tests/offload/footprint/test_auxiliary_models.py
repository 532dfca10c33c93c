from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from offload.footprint.auxiliary_models import (
    AuxiliaryModels,
    PlannedProjector,
    min_ubatch,
    picture_tokens,
    projector_compute_bytes,
    sound_tokens,
)
from offload.footprint.model import PlannedModel, RunConfig
from quantizer.gguf.header import read_header
from quantizer.gguf.projector_header import ProjectorHeader, mismatch, read_projector
from tests.offload.projector_outlines import OUTLINES, write_outline
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_projectors import tiny_projector

LOGGED: dict[str, float] = json.loads((Path(__file__).parent.parent / "projector_buffers.json").read_text())
MOST_ERROR = {"qwen3-vl-8b": 0.035}  # of the formula


def outline(name: str, folder: Path) -> ProjectorHeader:
    write_outline(name, folder / "p.gguf")
    return read_projector(folder / "p.gguf")


def test_every_outline_was_measured() -> None:
    assert LOGGED.keys() == OUTLINES.keys()


@pytest.mark.parametrize("name", OUTLINES)
def test_compute_buffers_are_planned_as_libmtmd_logs_them(tmp_path: Path, name: str) -> None:
    planned = projector_compute_bytes(outline(name, tmp_path)) / (1 << 20)
    assert planned == pytest.approx(LOGGED[name], rel=MOST_ERROR.get(name, 0.005))


@pytest.mark.parametrize(
    ("name", "typical", "most"),
    [
        ("gemma-3-4b", 256, 256),
        ("gemma-4-26b", 441, 1120),
        ("llava-1.5-7b", 576, 576),
        ("pixtral-12b", 1056, 1056),
        ("qwen2.5-vl-7b", 1296, 4096),
        ("smolvlm2-256m", 1088, 1088),
    ],
)
def test_a_picture_takes_as_many_tokens_as_its_projector_makes(
    tmp_path: Path, name: str, typical: int, most: int
) -> None:
    vision = outline(name, tmp_path).vision
    assert vision is not None
    tokens = picture_tokens(vision)
    assert (tokens.typical, tokens.most) == (typical, most)


@pytest.mark.parametrize(("name", "n_tokens"), [("voxtral-mini", 375), ("qwen2-audio", 750)])
def test_half_a_minute_of_sound_takes_as_many_tokens_as_its_projector_makes(
    tmp_path: Path, name: str, n_tokens: int
) -> None:
    audio = outline(name, tmp_path).audio
    assert audio is not None
    assert sound_tokens(audio) == n_tokens


@pytest.mark.parametrize(
    ("name", "width", "least"),
    [
        ("gemma-3-4b", 2560, 256),
        ("gemma-4-26b", 2816, 280),
        ("gemma-4-e4b", 2560, 0),  # it reads pictures as text
        ("qwen2.5-vl-7b", 3584, 0),
        ("voxtral-mini", 3072, 0),
    ],
)
def test_a_picture_that_is_computed_as_a_whole_needs_a_micro_batch(
    tmp_path: Path, name: str, width: int, least: int
) -> None:
    assert min_ubatch(outline(name, tmp_path), width) == least


@pytest.mark.parametrize(("name", "width"), [("qwen3-vl-2b", 2048 * 4), ("qwen3.5-4b", 2560), ("llama-4-scout", 5120)])
def test_embeddings_for_several_layers_are_as_wide_as_all_together(tmp_path: Path, name: str, width: int) -> None:
    assert [encoder.width for encoder in outline(name, tmp_path).encoders] == [width]


def test_a_model_with_deepstack_layers_takes_wider_embeddings(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m.gguf", lambda writer: writer.add_uint32("llama.n_deepstack_layers", 3))
    assert mismatch(read_projector(tiny_projector(tmp_path / "wide.gguf", n_embd=256)), read_header(model)) == ""
    reason = mismatch(read_projector(tiny_projector(tmp_path / "p.gguf", n_embd=64)), read_header(model))
    assert reason == "its embeddings are 64 wide, but the model takes 256"


def planned_model(folder: Path, *, is_on_host: bool = False, least: int = 0) -> tuple[PlannedModel, PlannedProjector]:
    model = PlannedModel.read(tiny_llama(folder / "m.gguf"))
    projector = PlannedProjector.of(read_projector(tiny_projector(folder / "p.gguf")), model.header)
    projector = replace(projector, is_on_host=is_on_host, min_ubatch=least or projector.min_ubatch)
    return replace(model, auxiliary=AuxiliaryModels(projector=projector)), projector


def test_a_plan_counts_weights_and_compute_buffers_of_a_projector(tmp_path: Path) -> None:
    model, projector = planned_model(tmp_path)
    [extra] = model.profile(RunConfig(n_ctx=64, n_cells=64)).extras
    assert (extra.weight_bytes, extra.compute_bytes) == (projector.n_bytes, projector.compute_bytes)
    assert extra.host_bytes == projector.host_bytes
    assert "It turns a picture into 4 tokens." in projector.tokens_text


def test_a_projector_on_the_processor_takes_nothing_of_a_gpu(tmp_path: Path) -> None:
    model, projector = planned_model(tmp_path, is_on_host=True)
    [extra] = model.profile(RunConfig(n_ctx=64, n_cells=64)).extras
    assert extra.beside_bytes == 0
    assert extra.n_bytes == projector.n_bytes + projector.compute_bytes + projector.host_bytes


def test_what_its_last_load_took_beyond_the_plan_is_planned(tmp_path: Path) -> None:
    model, projector = planned_model(tmp_path)
    more = replace(model, auxiliary=AuxiliaryModels(projector=replace(projector, excess_bytes=1000)))
    sizes = [each.profile(RunConfig(n_ctx=64, n_cells=64)).beside_bytes for each in (model, more)]
    assert sizes[1] - sizes[0] == 1000


def test_a_micro_batch_is_never_smaller_than_a_picture_that_is_computed_as_a_whole(tmp_path: Path) -> None:
    model, _ = planned_model(tmp_path, least=256)
    crowded = RunConfig(n_ctx=1 << 20, n_cells=1 << 20, is_fused=False)
    assert model.bounded_ubatch(crowded) == 256
    assert replace(model, auxiliary=AuxiliaryModels()).bounded_ubatch(crowded) < 256
    assert model.bounded_ubatch(replace(crowded, n_ubatch=64)) == 256
