"""A model that sees and its projector: two files of one job."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import gguf
import numpy as np
import pytest

from quantizer.checkpoint.config import CheckpointError
from quantizer.checkpoint.pending_shards import PendingShards
from quantizer.checkpoint.safetensors import read_checkpoint
from quantizer.gguf.file_names import projector_name
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.tensor_types import file_type_named
from quantizer.gguf.validation import validate_gguf
from quantizer.system.child_request import Message
from quantizer.system.errors import StorageError, UsageError
from quantizer.write.events import JobPlanned, JobWarning, decode_event
from quantizer.write.job import JobRequest, _work, run_job
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize_plan import QuantizePlan, plan
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.seeing_checkpoints import PROJECTOR_OUTLINES, write_seeing


@pytest.fixture
def seeing(tmp_path: Path) -> Path:
    return write_seeing(tmp_path / "gemma", "gemma3-seeing")


def planned(source: Path, projector: str = "", **options: int) -> QuantizePlan:
    output = source.with_name("m-Q4_0.gguf")
    return plan(source, file_type_named("Q4_0"), output, PlanOptions(projector=projector, **options))


def run(source: Path, file_type: str = "Q8_0", *, projector: str = "", overwrites: bool = False) -> list[str]:
    """Write the model and its projector, as a job does but in this process, and return the warnings."""
    output = source.with_name(f"m-{file_type}.gguf")
    request = JobRequest(str(source), file_type, str(output), 1, overwrites, projector=projector)
    messages: list[Message] = []
    _work(PendingShards(), asdict(request), messages.append)
    return [event.text for event in map(decode_event, messages) if isinstance(event, JobWarning)]


def values(header: Header, name: str) -> np.ndarray:
    tensor = next(tensor for tensor in gguf.GGUFReader(header.path).tensors if tensor.name == name)
    return gguf.dequantize(tensor.data, tensor.tensor_type)


def stored(folder: Path, name: str) -> np.ndarray:
    """The numbers of a tensor of the checkpoint, one after the other."""
    tensor = read_checkpoint(folder).tensors[name]
    return np.frombuffer(b"".join(tensor.slabs(1)), "<f4")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("model.gguf", "mmproj-model-F16.gguf"),
        ("gemma-3-4b-it-Q4_K_M.gguf", "mmproj-gemma-3-4b-it-F16.gguf"),
        ("SmolVLM.q8_0.gguf", "mmproj-SmolVLM-F16.gguf"),
        ("Qwen3-VL-F32-pruned.gguf", "mmproj-Qwen3-VL-F32-pruned-F16.gguf"),
    ],
)
def test_a_projector_is_named_after_its_model_without_the_type(model: str, name: str) -> None:
    assert projector_name(model, "F16") == name


@pytest.mark.parametrize("name", PROJECTOR_OUTLINES)
def test_one_job_writes_the_model_and_its_projector(tmp_path: Path, name: str) -> None:
    run(write_seeing(tmp_path / "seeing", name))
    header = validate_gguf(tmp_path / "mmproj-m-F16.gguf")
    assert (header.architecture, header.text("general.type")) == ("clip", "mmproj")
    rows = PROJECTOR_OUTLINES[name]["metadata"]
    encoders = {key.split(".")[0] for key in rows if key.endswith(".projection_dim")}
    assert {encoder: header.metadata[f"clip.has_{encoder}_encoder"] for encoder in encoders} == dict.fromkeys(
        encoders, True
    )
    for encoder in encoders:
        assert header.metadata[f"clip.{encoder}.projection_dim"] == rows[f"{encoder}.projection_dim"]
    assert read_header(tmp_path / "m-Q8_0.gguf").architecture != "clip"


def test_weights_arrive_and_the_norm_that_is_stored_from_one_is_moved(seeing: Path) -> None:
    run(seeing, projector="F32")
    header = read_header(seeing.with_name("mmproj-m-F32.gguf"))
    norm = stored(seeing, "multi_modal_projector.mm_soft_emb_norm.weight")
    assert np.array_equal(values(header, "mm.soft_emb_norm.weight"), norm + np.float32(1))
    patches = stored(seeing, "vision_tower.embeddings.patch_embedding.weight")
    assert np.array_equal(values(header, "v.patch_embd.weight").reshape(-1), patches)


def test_the_plan_has_the_bytes_of_both(seeing: Path) -> None:
    both, text = planned(seeing), planned(seeing, "none")
    assert text.projector is None
    assert both.projector == seeing.with_name("mmproj-m-F16.gguf")
    assert both.n_bytes == text.n_bytes + both.shards[-1].file.n_bytes
    assert [shard.path.name for shard in both.shards] == ["m-Q4_0.gguf", "mmproj-m-F16.gguf"]


def test_the_text_model_is_the_same_with_and_without(seeing: Path) -> None:
    assert planned(seeing).shards[0].header == planned(seeing, "none").shards[0].header


def test_shards_of_the_model_leave_the_projector_whole(seeing: Path) -> None:
    names = [shard.path.name for shard in planned(seeing, max_shard_bytes=50_000).shards]
    assert len(names) > 2
    assert names[-1] == "mmproj-m-F16.gguf"


def test_what_libmtmd_turns_stays_plain_in_eight_bits(seeing: Path) -> None:
    kinds = {tensor.output.name: tensor.output.kind.name for tensor in planned(seeing, "Q8_0").shards[-1].tensors}
    assert kinds["mm.input_projection.weight"] == "F16"
    assert kinds["v.blk.0.attn_q.weight"] == "Q8_0"
    assert kinds["v.patch_embd.weight"] == kinds["v.position_embd.weight"] == "F32"


def test_the_same_projector_stays_when_another_type_is_made(seeing: Path) -> None:
    run(seeing, "Q8_0")
    projector = seeing.with_name("mmproj-m-F16.gguf")
    before = projector.stat()
    assert any("already exists with the same content" in text for text in run(seeing, "F16"))
    assert (projector.stat().st_ino, projector.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert seeing.with_name("m-F16.gguf").exists()


def test_another_projector_in_the_way_is_not_replaced(seeing: Path) -> None:
    run(seeing, "Q8_0")
    projector = seeing.with_name("mmproj-m-F16.gguf")
    data = bytearray(projector.read_bytes())
    data[-40] ^= 1
    projector.write_bytes(data)
    with pytest.raises(StorageError, match=r"mmproj-m-F16\.gguf exists already"):
        run(seeing, "F16")
    assert not seeing.with_name("m-F16.gguf").exists()
    assert projector.read_bytes() == data
    run(seeing, "F16", overwrites=True)
    assert projector.read_bytes() != data


def test_the_planned_event_names_the_projector(seeing: Path) -> None:
    request = JobRequest(str(seeing), "Q8_0", str(seeing.with_name("m.gguf")), 1, is_overwriting=False)
    event = next(event for event in run_job(request) if isinstance(event, JobPlanned))
    assert (event.n_files, Path(event.projector).name) == (2, "mmproj-m-F16.gguf")


def test_a_projector_is_refused_where_there_is_none(tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "model")
    assert planned(folder).projector is None
    with pytest.raises(UsageError, match="has no projector that can be converted"):
        planned(folder, "F16")


def test_a_checkpoint_whose_tower_was_left_out_becomes_text(tmp_path: Path) -> None:
    found = planned(write_seeing(tmp_path / "seeing", "gemma3-seeing", has_tower=False))
    assert found.projector is None
    assert not any("text only" in text for text in found.warnings)


def test_without_its_preprocessor_the_text_model_alone_is_offered(seeing: Path) -> None:
    (seeing / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json is missing") as caught:
        planned(seeing)
    assert "--projector none" in caught.value.remedy
    assert planned(seeing, "none").projector is None


def test_the_newer_file_says_how_pictures_are_prepared(seeing: Path) -> None:
    processor = {"image_processor": {"image_mean": [0.25, 0.5, 0.75]}}
    (seeing / "processor_config.json").write_text(json.dumps(processor))
    run(seeing)
    header = read_header(seeing.with_name("mmproj-m-F16.gguf"))
    assert list(header.array("clip.vision.image_mean")) == [0.25, 0.5, 0.75]
    assert list(header.array("clip.vision.image_std")) == [0.5, 0.5, 0.5]


def test_a_model_whose_tower_is_unknown_reads_text_only(seeing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantizer.architectures.projectors.PROJECTORS", {})
    found = planned(seeing)
    assert found.projector is None
    assert [text for text in found.warnings if "cannot be converted yet: text only" in text]


def test_the_row_of_a_token_comes_from_the_language_model(tmp_path: Path) -> None:
    folder = write_seeing(tmp_path / "seeing", "mistral3-seeing")
    run(folder)
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    token = next(each["id"] for each in added if each["content"] == "[IMG_BREAK]")
    table = stored(folder, "language_model.model.embed_tokens.weight").reshape(-1, 64)
    assert np.array_equal(values(read_header(tmp_path / "mmproj-m-F16.gguf"), "v.token_embd.img_break"), table[token])


def test_a_token_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = write_seeing(tmp_path / "seeing", "mistral3-seeing")
    tokens = json.loads((folder / "tokenizer.json").read_text())
    tokens["added_tokens"].pop()
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(CheckpointError, match=r"no embedding for the token \[IMG_BREAK\]"):
        planned(folder)
