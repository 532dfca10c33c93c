from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from app.library.local.model_files import ModelRef
from app.library.local.projectors import choose_projector, find_projector, general_choice, projector_stamp
from app.service.models.model_file import is_current, read_model_file
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from tests.app.external_folders import ollama_model_that_sees
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_projectors import tiny_projector

Q8_0, BF16, F16 = gguf.LlamaFileType.MOSTLY_Q8_0, gguf.LlamaFileType.MOSTLY_BF16, gguf.LlamaFileType.MOSTLY_F16


def found(model: Path, choice: str = "auto") -> str:
    """The name of the projector that is found, empty without one."""
    return Path(choose_projector(read_header(model), choice).path).name


def hears(writer: gguf.GGUFWriter) -> None:
    writer.kv_data[0].pop("clip.projector_type")
    writer.add_string("clip.vision.projector_type", "gemma3")
    writer.add_string("clip.audio.projector_type", "ultravox")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_uint32("clip.audio.projection_dim", 64)


def test_the_projector_beside_a_model_lets_it_see(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m-Q8_0.gguf")
    assert not read_model_file(model).sees
    path = tiny_projector(tmp_path / "mmproj-F16.gguf")
    file = read_model_file(model)
    assert (file.projector_path, file.sees, file.hears) == (str(path), True, False)


def test_an_encoder_of_sounds_lets_a_model_hear(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m.gguf")
    tiny_projector(tmp_path / "mmproj-m.gguf", edit=hears)
    assert read_model_file(model).hears


def test_of_several_types_f16_is_taken_then_bf16_then_q8_0_then_f32(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m.gguf")
    expected = []
    for name, kind in (("c", gguf.LlamaFileType.ALL_F32), ("d", Q8_0), ("a", BF16), ("b", F16)):
        tiny_projector(tmp_path / f"mmproj-m-{name}.gguf", file_type=kind)
        expected.append(f"mmproj-m-{name}.gguf")
        assert found(model) == expected[-1]
    assert found(model, "q8_0") == "mmproj-m-d.gguf"
    assert found(model, "F32") == "mmproj-m-c.gguf"


def test_none_leaves_a_model_without_its_projector(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m.gguf")
    tiny_projector(tmp_path / "mmproj-m.gguf")
    assert found(model, "none") == ""


def test_a_projector_of_another_width_is_passed_over_with_the_reason(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m.gguf")
    tiny_projector(tmp_path / "mmproj-m.gguf", n_embd=96)
    result = find_projector(read_header(model))
    assert result.projector is None
    [reason] = result.passed_over
    assert reason == "mmproj-m.gguf does not belong to m.gguf: its embeddings are 96 wide, but the model takes 64."


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + 40 * b"\xff", b"<html>"])
def test_a_damaged_projector_leaves_the_model_as_it_is(tmp_path: Path, content: bytes) -> None:
    model = tiny_llama(tmp_path / "m.gguf")
    (tmp_path / "mmproj-m.gguf").write_bytes(content)
    assert not read_model_file(model).sees
    assert find_projector(read_header(model)).passed_over


def test_a_chosen_projector_that_does_not_belong_is_an_error(tmp_path: Path) -> None:
    header = read_header(tiny_llama(tmp_path / "m.gguf"))
    wrong = tiny_projector(tmp_path / "other" / "wrong.gguf", n_embd=96)
    with pytest.raises(ModelFileError, match="its embeddings are 96 wide"):
        choose_projector(header, str(wrong))
    with pytest.raises(ModelFileError, match="is not a projector"):
        choose_projector(header, str(tmp_path / "m.gguf"))
    with pytest.raises(ModelFileError, match="There is no file"):
        choose_projector(header, str(tmp_path / "missing.gguf"))


def test_a_chosen_file_is_for_one_model_and_a_type_for_all(tmp_path: Path) -> None:
    assert [general_choice(choice) for choice in ("auto", "none", "F16")] == ["auto", "none", "F16"]
    assert general_choice(str(tmp_path / "mmproj.gguf")) == ""
    path = tiny_projector(tmp_path / "other" / "p.gguf")
    result = choose_projector(read_header(tiny_llama(tmp_path / "m.gguf")), str(path))
    assert (result.path, result.is_chosen) == (str(path), True)


def test_among_several_models_a_projector_belongs_to_the_one_that_it_names(tmp_path: Path) -> None:
    first, second = (tiny_llama(tmp_path / f"{name}-it-Q8_0.gguf") for name in ("gemma", "qwen"))
    tiny_projector(tmp_path / "mmproj-gemma-it-f16.gguf")
    assert (found(first), found(second)) == ("mmproj-gemma-it-f16.gguf", "")


def test_a_nameless_projector_among_several_models_is_nobodys_and_that_is_said(tmp_path: Path) -> None:
    models = [tiny_llama(tmp_path / f"{name}.gguf") for name in ("gemma", "qwen")]
    tiny_projector(tmp_path / "mmproj-model-f16.gguf")
    for model in models:
        result = find_projector(read_header(model))
        assert result.projector is None
        assert "names none" in result.passed_over[0]


def test_types_of_one_model_share_a_nameless_projector(tmp_path: Path) -> None:
    models = [tiny_llama(tmp_path / f"gemma-{name}.gguf") for name in ("Q4_K_M", "UD-Q8_0")]
    tiny_projector(tmp_path / "mmproj-BF16.gguf")
    assert {found(model) for model in models} == {"mmproj-BF16.gguf"}


def test_a_commit_in_the_hugging_face_cache_has_its_projector_above_the_model(tmp_path: Path) -> None:
    commit = tmp_path / "models--org--name" / "snapshots" / "c1"
    (commit / "Q8_0").mkdir(parents=True)
    model = tiny_llama(commit / "Q8_0" / "m-Q8_0.gguf")
    tiny_projector(commit / "mmproj-F16.gguf")
    assert found(model) == "mmproj-F16.gguf"


def test_above_the_folder_of_any_other_model_no_projector_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    tiny_projector(tmp_path / "mmproj-F16.gguf")
    assert found(tiny_llama(tmp_path / "below" / "m.gguf")) == ""


def test_a_model_of_ollama_has_the_projector_of_its_manifest(tmp_path: Path) -> None:
    blob, projector = ollama_model_that_sees(tmp_path, "registry.ollama.ai/library/llava/7b")
    assert read_model_file(blob).projector_path == str(projector)


def test_a_projector_that_comes_or_goes_makes_a_read_model_out_of_date(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m.gguf")
    before = read_model_file(model)
    assert is_current(ModelRef("m", model), before)
    path = tiny_projector(tmp_path / "mmproj-m.gguf")
    assert not is_current(ModelRef("m", model), before)
    after = read_model_file(model)
    assert is_current(ModelRef("m", model), after)
    path.unlink()
    assert not is_current(ModelRef("m", model), after)
    assert projector_stamp(model) == ""
