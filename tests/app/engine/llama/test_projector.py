from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quantizer.write.job import JobRequest, run_job
from tests.app.engine.media.files import as_media, flac_file, mp3_file, picture_file, sound_file
from tests.patience import PATIENCE_S
from tests.quantizer.gguf_files import N_EMBD, tiny_llama
from tests.quantizer.gguf_projectors import tiny_projector
from tests.quantizer.seeing_checkpoints import write_seeing

REAL_PROJECTOR = Path(__file__).with_name("real_projector.py")
GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
GUIDE_EMBD = 256


def run(model: Path, projector: Path, files: Mapping[str, bytes]) -> dict[str, Any]:
    """What becomes of `files`, in a child process that must end well."""
    jobs = json.dumps({name: as_media(data).base64 for name, data in files.items()})
    command = [sys.executable, str(REAL_PROJECTOR), str(model), str(projector)]
    done = subprocess.run(command, input=jobs, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def converted(folder: Path, name: str) -> tuple[Path, Path]:
    """The tiny model of an outline and its projector, converted here."""
    checkpoint, model = write_seeing(folder / "checkpoint", name), folder / "m-F32.gguf"
    list(run_job(JobRequest(str(checkpoint), "F32", str(model), 1, False, projector="F32")))
    return model, folder / "mmproj-m-F32.gguf"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    projector = tiny_projector(tmp_path_factory.mktemp("projector") / "mmproj.gguf", GUIDE_EMBD)
    one, other = picture_file(seed=1), picture_file(seed=2)
    others = {"sound": sound_file(), "text": b"hello", "cut off": one[: len(one) // 2]}
    return run(GUIDE, projector, {"one": one, "again": one, "other": other, "small": picture_file(1, 1), **others})


@pytest.mark.slow
def test_a_picture_becomes_a_chunk_between_marks(seen: dict[str, Any]) -> None:
    begin, chunk, end = seen["one"]["parts"]
    assert len(begin) > 1
    assert len(end) > 1
    assert chunk["n_tokens"] == chunk["n_positions"] == 4
    assert not chunk["is_causal"]
    assert chunk["positions"] is None
    assert seen["one"]["shapes"] == [[4, GUIDE_EMBD]]


def test_the_same_picture_has_the_same_layout_and_embeddings(seen: dict[str, Any]) -> None:
    assert seen["again"] == seen["one"]


def test_another_picture_has_another_content_and_other_embeddings(seen: dict[str, Any]) -> None:
    assert seen["other"]["parts"][1]["content_id"] != seen["one"]["parts"][1]["content_id"]
    assert seen["other"]["embeddings"] != seen["one"]["embeddings"]


def test_an_interrupted_encoding_fails_and_the_next_one_is_whole(seen: dict[str, Any]) -> None:
    assert "was interrupted" in seen["interrupted"]["message"]
    assert seen["interrupted"]["embeddings"] == seen["one"]["embeddings"]


def test_a_picture_of_one_pixel_is_encoded(seen: dict[str, Any]) -> None:
    assert seen["small"]["shapes"] == [[4, GUIDE_EMBD]]


def test_a_sound_for_a_model_that_sees_is_refused(seen: dict[str, Any]) -> None:
    assert seen["sound"]["error"] == "RequestError"
    assert "takes no sounds" in seen["sound"]["message"]
    assert "Send pictures" in seen["sound"]["message"]


@pytest.mark.parametrize("name", ["text", "cut off"])
def test_what_is_no_whole_picture_is_refused(seen: dict[str, Any], name: str) -> None:
    assert seen[name]["error"] == "RequestError"


@pytest.mark.slow
def test_a_projector_of_another_width_is_refused(tmp_path: Path) -> None:
    found = run(GUIDE, tiny_projector(tmp_path / "mmproj.gguf", GUIDE_EMBD // 2), {})
    assert found["error"] == "EngineError"
    assert "mismatch between text model" in found["message"]


@pytest.mark.slow
def test_a_projector_whose_marks_the_vocabulary_lacks_is_refused(tmp_path: Path) -> None:
    projector = tiny_projector(tmp_path / "mmproj.gguf", GUIDE_EMBD, "idefics3")
    found = run(GUIDE, projector, {"one": picture_file()})["one"]
    assert found["error"] == "ModelFileError"
    assert "vocabulary lacks" in found["message"]


def test_pictures_are_decoded_as_llama_cpp_decodes_them(seen: dict[str, Any]) -> None:
    assert [seen[name]["difference"] for name in ("one", "other", "small")] == [0.0] * 3


@pytest.mark.slow
def test_a_picture_with_more_positions_than_the_projector_has_is_refused(tmp_path: Path) -> None:
    """A tiny Gemma 4, whose table has 48 positions: ggml would end the process."""
    found = run(*converted(tmp_path, "gemma4-seeing"), {"small": picture_file(), "large": picture_file(4000, 100)})
    assert found["small"]["shapes"]
    assert found["large"]["error"] == "RequestError"
    assert "too large for this projector" in found["large"]["message"]


@pytest.mark.slow
def test_a_model_that_sees_and_hears_decodes_as_llama_cpp_does(tmp_path: Path) -> None:
    """A tiny Qwen 3 Omni, converted here. Sounds differ by roundings of the resampler, JPEG by those of its cosines."""
    model, projector = converted(tmp_path, "qwen3omni")
    sounds = {"sound": sound_file(1.3), "resampled": sound_file(1.3, 44_100, 2), "flac": flac_file(), "mp3": mp3_file()}
    pictures = {kind: picture_file(90, 70, kind=kind) for kind in ("PNG", "BMP", "GIF", "JPEG")}
    found = run(model, projector, sounds | pictures)
    differences = {name: answer["difference"] for name, answer in found.items()}
    assert max(differences[name] for name in ("sound", "flac", "PNG", "BMP", "GIF")) == 0.0
    assert max(differences[name] for name in ("resampled", "mp3")) < 1e-4
    assert differences["JPEG"] <= 4
    (chunk,) = [part for part in found["sound"]["parts"] if isinstance(part, dict)]
    assert chunk["n_tokens"] == chunk["n_positions"] > 1
    assert chunk["positions"] is None
    assert found["PNG"]["parts"][1]["positions"][-1] == [0, 2, 2]


@pytest.mark.slow
def test_a_picture_under_m_rope_has_positions_of_rows_and_columns(tmp_path: Path) -> None:
    model = tiny_llama(
        tmp_path / "m.gguf", lambda writer: writer.add_rope_dimension_sections([2, 3, 3, 0]), architecture="qwen2vl"
    )
    projector = tiny_projector(tmp_path / "mmproj.gguf", N_EMBD, "qwen2vl_merger")
    found = run(model, projector, {"wide": picture_file(140, 84)})["wide"]
    (chunk,) = [part for part in found["parts"] if isinstance(part, dict)]
    rows, columns = 3, 5
    assert chunk["n_tokens"] == rows * columns
    assert chunk["n_positions"] == columns
    assert chunk["positions"] == [[0, row, column] for row in range(rows) for column in range(columns)]
    assert chunk["is_causal"]
