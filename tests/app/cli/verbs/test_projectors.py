"""A model and its projector are one for whoever lists, shows, imports, copies, verifies and removes models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from tests.app.external_folders import ollama_model_that_sees
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_projectors import tiny_projector

Run = Callable[..., Any]


@pytest.fixture
def seeing(models: Path) -> Path:
    folder = models / "me" / "x"
    folder.mkdir(parents=True)
    tiny_projector(folder / "mmproj-F16.gguf", file_type=gguf.LlamaFileType.MOSTLY_F16)
    return tiny_llama(folder / "m-Q8_0.gguf")


def listed(localllm: Run, name: str) -> dict[str, Any]:
    return next(model for model in localllm("ls", "--json").json["models"] if model["id"] == name)


def test_a_list_marks_what_sees_and_notices_a_projector_that_comes_later(localllm: Run, models: Path) -> None:
    (models / "me" / "x").mkdir(parents=True)
    tiny_llama(models / "me" / "x" / "m.gguf")
    assert (listed(localllm, "m")["sees"], listed(localllm, "m")["hears"]) == (False, False)
    projector = tiny_projector(models / "me" / "x" / "mmproj-m.gguf")
    assert (listed(localllm, "m")["sees"], listed(localllm, "m")["hears"]) == (True, False)
    [line] = [line for line in localllm("ls").out.splitlines() if line.startswith("m ")]
    assert " sees " in line
    projector.unlink()
    assert not listed(localllm, "m")["sees"]


def test_a_model_is_shown_with_what_it_sees_and_the_tokens_of_a_picture(localllm: Run, seeing: Path) -> None:
    shown = localllm("show", "m", "--json").json
    assert (shown["sees"], shown["hears"], shown["projector_type"]) == (True, False, "F16")
    assert shown["projector"] == str(seeing.with_name("mmproj-F16.gguf"))
    assert (shown["picture_tokens"], shown["max_picture_tokens"], shown["sound_tokens"]) == (4, 4, 0)
    text = localllm("show", "m").out
    assert "pictures of 4 tokens" in text
    assert "mmproj-F16.gguf (F16, " in text


def test_why_a_projector_was_passed_over_is_shown(localllm: Run, models: Path) -> None:
    (models / "me" / "x").mkdir(parents=True)
    tiny_llama(models / "me" / "x" / "m.gguf")
    tiny_projector(models / "me" / "x" / "mmproj-m.gguf", n_embd=96)
    assert "its embeddings are 96 wide" in localllm("show", "m").out


@pytest.mark.parametrize("options", [(), ("--copy",)])
def test_a_model_of_ollama_is_imported_with_its_projector(
    localllm: Run, home: Path, models: Path, options: tuple[str, ...]
) -> None:
    _, projector = ollama_model_that_sees(home / "ollama", "registry.ollama.ai/library/llava/7b")
    output = localllm("import", "llava:7b", *options, "--json").json
    placed = Path(output["path"])
    beside = placed.with_name("mmproj-llava-7b-F32.gguf")
    assert beside.read_bytes() == projector.read_bytes()
    assert beside.samefile(projector) is not bool(options)
    assert output["n_bytes"] == sum(path.stat().st_size for path in (placed, beside))
    assert listed(localllm, "llava:7b")["sees"]


def test_an_external_model_that_sees_is_marked_in_place(localllm: Run, home: Path) -> None:
    ollama_model_that_sees(home / "ollama", "registry.ollama.ai/library/llava/7b")
    [model] = [entry for entry in localllm("ls", "--external", "--json").json["models"] if entry["id"] == "llava:7b"]
    assert model["sees"]


def test_a_second_name_sees_too_and_the_first_one_still_does(localllm: Run, seeing: Path, models: Path) -> None:
    assert localllm("cp", "m", "me/x/coder").status == 0
    assert listed(localllm, "coder")["sees"]
    assert listed(localllm, "m:q8_0")["sees"]
    assert localllm("rm", "coder", "--yes").status == 0
    assert sorted(path.name for path in seeing.parent.iterdir()) == ["m-Q8_0.gguf", "mmproj-F16.gguf"]


def test_a_damaged_projector_is_found_by_verifying_its_model(localllm: Run, seeing: Path) -> None:
    assert localllm("verify", "m").status == 0
    projector = seeing.with_name("mmproj-F16.gguf")
    data = bytearray(projector.read_bytes())
    data[-1] ^= 1
    projector.write_bytes(data)
    ran = localllm("verify", "m")
    assert ran.status == 1
    assert "mmproj-F16.gguf has the SHA-256" in ran.out


def test_a_model_takes_its_projector_along(localllm: Run, seeing: Path, models: Path) -> None:
    assert localllm("rm", "m", "--yes").status == 0
    assert list(models.iterdir()) == []
