from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from app.library.external import (
    external_models,
    find_external_models,
    hugging_face_snapshots,
    ollama_projectors,
)
from app.library.local.resolve import UnknownModelError, resolve
from app.settings.settings import Settings
from tests.app.conftest import Ran
from tests.app.external_folders import hugging_face_model, ollama_model, take_rights
from tests.app.small_models import small_model


@pytest.mark.parametrize("folder", [".lmstudio/models", ".cache/lm-studio/models"])
def test_models_of_lm_studio_are_found(home: Path, folder: str) -> None:
    path = small_model(home / folder / "bartowski" / "Qwen-GGUF" / "qwen-q4.gguf")
    [ref] = external_models()
    assert (ref.id, ref.path, ref.place) == ("bartowski/Qwen-GGUF/qwen-q4", path, "LM Studio")


@pytest.mark.parametrize("lm_studio", [".lmstudio", ".cache/lm-studio", "elsewhere/lmstudio"])
@pytest.mark.parametrize("chosen", ["downloads", ".lmstudio/models"])
def test_the_folder_that_lm_studios_settings_choose_is_read(home: Path, lm_studio: str, chosen: str) -> None:
    (home / lm_studio).mkdir(parents=True)
    if lm_studio.startswith("elsewhere"):
        (home / ".lmstudio-home-pointer").write_text(f"{home / lm_studio}\n")
    settings = {"language": "en", "downloadsFolder": str(home / chosen), "developer": {}}
    (home / lm_studio / "settings.json").write_text(json.dumps(settings, indent=2))
    path = small_model(home / chosen / "bartowski" / "Qwen-GGUF" / "qwen-q4.gguf")
    usual = small_model(home / lm_studio / "models" / "org" / "name" / "other.gguf")
    assert {ref.path for ref in external_models()} == {path, usual}
    assert len(external_models()) == 2


@pytest.mark.parametrize(
    "settings",
    [
        *("not json", "[]", "{}", '{"downloadsFolder": 3}', '{"downloadsFolder": null}'),
        *('{"downloadsFolder": "models"}', '{"downloadsFolder": "/\\u0000"}', "[" * 100_000),
    ],
)
def test_settings_of_lm_studio_that_choose_no_folder_leave_the_usual_one(home: Path, settings: str) -> None:
    path = small_model(home / ".lmstudio" / "models" / "org" / "name" / "m.gguf")
    (home / ".lmstudio" / "settings.json").write_text(settings)
    (home / ".lmstudio-home-pointer").write_bytes(b"\xff\x00")
    assert [ref.path for ref in external_models()] == [path]


@pytest.mark.parametrize(
    ("manifest", "name"),
    [
        ("registry.ollama.ai/library/llama3.2/3b", "llama3.2:3b"),
        ("registry.ollama.ai/me/mine/latest", "me/mine:latest"),
        ("hf.co/bartowski/Qwen-GGUF/Q4_K_M", "hf.co/bartowski/Qwen-GGUF:Q4_K_M"),
    ],
)
def test_models_of_ollama_have_the_names_that_it_shows(home: Path, manifest: str, name: str) -> None:
    blob = ollama_model(home / "ollama", manifest)
    [ref] = external_models()
    assert (ref.id, ref.path, ref.place) == (name, blob, "Ollama")


def test_a_name_without_a_tag_is_ollamas_latest(home: Path) -> None:
    for tag in ("latest", "3b"):
        ollama_model(home / "ollama", f"registry.ollama.ai/library/llama3.2/{tag}", tag)
    settings = Settings(data_dir=home / "data")
    for name in ("llama3.2", "llama3.2:latest"):
        assert resolve(name, settings).id == "llama3.2:latest"
    assert resolve("llama3.2:3b", settings).id == "llama3.2:3b"


@pytest.mark.parametrize(
    "manifest",
    [
        b"not json",
        b"[]",
        b'{"layers": 3}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../secret"}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}',
        b"[" * 100_000,
        json.dumps(
            {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{64 * 'a'}"}]}
        ).encode(),
    ],
)
def test_a_manifest_that_names_no_blob_of_its_own_is_no_model(home: Path, manifest: bytes) -> None:
    small_model(home / "secret")
    path = home / "ollama" / "manifests" / "host" / "library" / "m" / "latest"
    path.parent.mkdir(parents=True)
    path.write_bytes(manifest)
    assert external_models() == ()


def test_the_hugging_face_cache_is_found_by_links_to_blobs_and_by_copies(home: Path) -> None:
    cache = home / ".cache" / "huggingface" / "hub"
    linked = hugging_face_model(cache, "org/linked", "m-Q4.gguf")
    copied = small_model(cache / "models--org--copied" / "snapshots" / "c1" / "sub" / "m-Q8.gguf")
    refs = {ref.id: ref.path for ref in external_models()}
    assert refs == {"org/copied/m-Q8": copied, "org/linked/m-Q4": linked}


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_the_environment_sets_the_cache_of_hugging_face(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    below = {"HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}.get(variable, "")
    monkeypatch.setenv(variable, str(home / "chosen"))
    path = hugging_face_model(home / "chosen" / below, "org/name", "m.gguf")
    assert [ref.path for ref in external_models()] == [path]


def test_of_several_commits_the_one_that_main_was_counts(home: Path) -> None:
    cache = home / ".cache" / "huggingface" / "hub"
    for commit in ("a", "b", "c"):
        hugging_face_model(cache, "org/name", "m.gguf", commit)
    (cache / "models--org--name" / "refs").mkdir()
    (cache / "models--org--name" / "refs" / "main").write_text("b")
    assert [ref.path.parent.name for ref in external_models()] == ["b"]


def test_a_draft_head_beside_a_model_of_another_program_is_no_model(home: Path) -> None:
    cache = home / ".cache" / "huggingface" / "hub"
    for name in ("m-Q4.gguf", "dflash-m-Q4.gguf"):
        hugging_face_model(cache, "org/both", name)
    hugging_face_model(cache, "org/head", "dflash-m-Q4.gguf")
    assert [ref.id for ref in external_models()] == ["org/both/m-Q4", "org/head/dflash-m-Q4"]


def test_a_model_here_wins_over_one_of_another_program(home: Path) -> None:
    settings = Settings(data_dir=home / "data")
    own = small_model(settings.models_dir / "me" / "x" / "m.gguf")
    hugging_face_model(home / ".cache" / "huggingface" / "hub", "org/name", "m.gguf")
    assert resolve("m", settings).path == own
    assert resolve("org/name", settings).place == "Hugging Face"


def test_the_same_model_in_two_places_is_one_name(home: Path) -> None:
    first = small_model(home / ".lmstudio" / "models" / "org" / "name" / "m.gguf")
    hugging_face_model(home / ".cache" / "huggingface" / "hub", "org/name", "m.gguf")
    assert resolve("org/name/m", Settings(data_dir=home / "data")).path == first


def test_an_unknown_name_lists_what_is_here_only(home: Path) -> None:
    hugging_face_model(home / ".cache" / "huggingface" / "hub", "org/name", "m.gguf")
    with pytest.raises(UnknownModelError, match="Models: guide"):
        resolve("nope", Settings(data_dir=home / "data"))


@pytest.mark.parametrize(
    ("program", "folder"),
    [
        ("Ollama", "ollama"),
        ("Ollama", "ollama/manifests"),
        ("Ollama", "ollama/blobs"),
        ("Hugging Face", ".cache/huggingface"),
        ("Hugging Face", ".cache/huggingface/hub"),
        ("Hugging Face", ".cache/huggingface/hub/models--org--repo"),
        ("Hugging Face", ".cache/huggingface/hub/models--org--repo/snapshots"),
        ("LM Studio", ".lmstudio"),
        ("LM Studio", ".lmstudio/models"),
    ],
)
def test_a_program_whose_files_may_not_be_read_is_named_and_the_others_stay(
    home: Path, monkeypatch: pytest.MonkeyPatch, program: str, folder: str
) -> None:
    blob = ollama_model(home / "ollama", "registry.ollama.ai/library/small/latest")
    hugging_face_model(home / ".cache/huggingface/hub", "org/repo", "m-Q4_0.gguf")
    small_model(home / ".lmstudio" / "models" / "org" / "repo" / "lm-Q4_0.gguf")
    places = {"Ollama", "Hugging Face", "LM Studio"}
    assert {ref.place for ref in find_external_models()[0]} == places
    take_rights(monkeypatch, home / folder)
    models, (skipped,) = find_external_models()
    assert {ref.place for ref in models} == places - {program}
    assert skipped.program == program
    assert skipped.path.is_relative_to(home / folder)
    assert "Permission denied" in skipped.what
    assert str(skipped.path) in skipped.what
    assert skipped.remedy
    ollama_projectors(blob)
    hugging_face_snapshots("org/repo")


def test_a_name_that_is_not_found_says_which_program_was_left_out(
    home: Path, localllm: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    ollama_model(home / "ollama", "registry.ollama.ai/library/small/latest")
    take_rights(monkeypatch, home / "ollama")
    for verb in ("show", "import", "plan"):
        done = localllm(verb, "small")
        assert done.status == 1
        assert "There is no model 'small'" in done.err
        assert f"{home / 'ollama'} cannot be read (Permission denied)" in done.err
    listed = localllm("ls", "--external")
    assert listed.status == 0
    assert listed.err.count("Models of Ollama are left out") == 1
    assert "guide" in listed.out
