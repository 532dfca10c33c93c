from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from app.engine.load.projector_file import validate_projector
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import Header, read_header
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_projectors import tiny_projector


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Header:
    return read_header(tiny_llama(tmp_path_factory.mktemp("model") / "m.gguf"))


@pytest.mark.parametrize("kind", ["gemma3", "idefics3", "qwen2vl_merger"])
def test_a_projector_of_the_model_is_valid(tmp_path: Path, model: Header, kind: str) -> None:
    assert validate_projector(tiny_projector(tmp_path / "mmproj.gguf", 64, kind), model).sees


def test_a_projector_of_another_width_is_refused(tmp_path: Path, model: Header) -> None:
    with pytest.raises(ModelFileError, match="its embeddings are 32 wide, but the model takes 64"):
        validate_projector(tiny_projector(tmp_path / "mmproj.gguf", 32), model)


def test_an_unknown_kind_is_refused(tmp_path: Path, model: Header) -> None:
    with pytest.raises(ModelFileError, match="unknown kind, 'telepathy'"):
        validate_projector(tiny_projector(tmp_path / "mmproj.gguf", 64, "telepathy"), model)


@pytest.mark.parametrize("kind", ["hunyuanvl", "deepseek4v"])
def test_a_kind_that_depends_on_what_stands_before_is_refused(tmp_path: Path, model: Header, kind: str) -> None:
    with pytest.raises(ModelFileError, match="depend"):
        validate_projector(tiny_projector(tmp_path / "mmproj.gguf", 64, kind), model)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("image_size", 100_000, "image_size"),
        ("patch_size", 0, "patch_size"),
        ("block_count", 4_000_000_000, "block_count"),
        ("attention.head_count", 0, "attention.head_count"),
        ("projector.scale_factor", 64, "pixels a side"),
    ],
)
def test_sizes_that_would_take_memory_without_end_are_refused(
    tmp_path: Path, model: Header, name: str, value: int, words: str
) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0][f"clip.vision.{name}"] = gguf.GGUFValue(value, gguf.GGUFValueType.UINT32)

    with pytest.raises(ModelFileError, match=words):
        validate_projector(tiny_projector(tmp_path / "mmproj.gguf", 64, edit=edit), model)


@pytest.mark.parametrize("numbers", [[0.5, 0.0, 0.5], [0.5, float("nan"), 0.5]])
def test_colors_that_no_picture_has_are_refused(tmp_path: Path, model: Header, numbers: list[float]) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["clip.vision.image_std"]
        writer.add_array("clip.vision.image_std", numbers)

    with pytest.raises(ModelFileError, match="image_std is not a color"):
        validate_projector(tiny_projector(tmp_path / "mmproj.gguf", 64, edit=edit), model)


def test_a_file_cut_off_is_refused(tmp_path: Path, model: Header) -> None:
    path = tiny_projector(tmp_path / "mmproj.gguf", 64)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFileError):
        validate_projector(path, model)
