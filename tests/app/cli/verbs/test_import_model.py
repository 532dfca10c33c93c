from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.app.external_folders import hugging_face_model, ollama_model
from tests.app.small_models import small_model

Run = Callable[..., Any]


def test_a_model_of_ollamas_is_imported_by_its_name_and_listed(localllm: Run, home: Path, models: Path) -> None:
    blob = ollama_model(home / "ollama", "registry.ollama.ai/library/llama3.2/3b")
    output = localllm("import", "llama3.2:3b", "--json").json
    assert list(output) == ["id", "path", "n_bytes", "way"]
    assert (output["id"], output["way"]) == ("llama3.2:3b", "hard link")
    assert Path(output["path"]).samefile(blob)
    assert "llama3.2:3b" in localllm("ls").out


def test_a_path_into_another_programs_folder_keeps_the_models_name(localllm: Run, home: Path, models: Path) -> None:
    path = hugging_face_model(home / ".cache" / "huggingface" / "hub", "org/name", "m.gguf")
    localllm("import", str(path))
    assert (models / "org" / "name" / "m.gguf").samefile(path)


def test_a_copy_shares_nothing_with_the_original(localllm: Run, home: Path, models: Path) -> None:
    source = small_model(home / "loose.gguf")
    ran = localllm("import", str(source), "--as", "me/mine", "--copy")
    assert ran.out == f"loose ({source.stat().st_size} B) is in the library: a copy.\n"
    copied = models / "me" / "mine" / "loose.gguf"
    assert copied.read_bytes() == source.read_bytes()
    assert not copied.samefile(source)


def test_a_second_name_runs_and_outlives_the_first(localllm: Run, models: Path) -> None:
    small_model(models / "me" / "x" / "m.gguf")
    assert localllm("cp", "m", "coder").status == 0
    assert localllm("rm", "m", "--yes").status == 0
    assert localllm("show", "coder").status == 0


def test_a_damaged_model_a_taken_name_and_a_bad_one_are_refused(localllm: Run, home: Path, models: Path) -> None:
    small_model(models / "local" / "m" / "m.gguf")
    (home / "bad.gguf").write_bytes(b"GGUF")
    assert localllm("import", str(home / "bad.gguf")).status == 1
    assert localllm("cp", "guide", "m").status == 1
    assert localllm("cp", "guide", "../m").status == 2
