from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.library.local.model_files import ModelRef
from app.library.local.resolve import (
    UnknownModelError,
    absolute,
    available,
    find_by_name,
    guide_folder,
    guide_source,
    portable,
    resolve,
)
from app.settings.settings import Settings
from quantizer.gguf.gguf_reader import ModelFileError


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for name in ("bartowski/Qwen-GGUF/qwen-q4.gguf", "bartowski/Qwen-GGUF/qwen-q8.gguf", "me/solo/solo.gguf"):
        path = tmp_path / "data" / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("name", ["solo", "SOLO", "solo.gguf", "me/solo"])
def test_a_library_model_is_found_by_stem_file_and_repo(settings: Settings, name: str) -> None:
    assert resolve(name, settings).id == "solo"


@pytest.mark.parametrize("name", ["dflash-solo-q8_0", "DFlash-solo-Q8_0.gguf", "dflash-solo:q8_0", "{folder}/{file}"])
def test_a_draft_head_beside_a_model_is_found_by_its_name_though_it_is_not_listed(
    settings: Settings, name: str
) -> None:
    folder, file = settings.models_dir / "me" / "solo", "dflash-solo-Q8_0.gguf"
    (folder / file).write_bytes(b"GGUF")
    assert resolve(name.format(folder=folder, file=file), settings).path == folder / file
    assert file not in [ref.path.name for ref in available(settings)]
    assert resolve("me/solo", settings).id == "solo"
    with pytest.raises(UnknownModelError):
        resolve("me/solo:q8_0", settings)


def test_a_repo_with_several_files_is_ambiguous_and_they_are_listed(settings: Settings) -> None:
    with pytest.raises(UnknownModelError, match="qwen:q4, qwen:q8"):
        resolve("bartowski/Qwen-GGUF", settings)


@pytest.mark.parametrize("name", ["hf.co/bartowski/Qwen-GGUF:Q8", "bartowski/qwen-gguf:q8", "Qwen:q8:latest"])
def test_a_model_is_found_by_the_words_that_fetched_it_and_as_clients_put_tags(settings: Settings, name: str) -> None:
    assert resolve(name, settings).id == "qwen:q8"


def test_a_dynamic_quant_is_found_as_the_plain_one_that_it_stands_for_until_that_is_there(settings: Settings) -> None:
    folder = settings.models_dir / "org" / "m-GGUF"
    dynamic = _write(folder / "m-UD-Q4_K_M.gguf")
    assert resolve("org/m-GGUF:Q4_K_M", settings).path == dynamic
    plain = _write(folder / "m-Q4_K_M.gguf")
    assert resolve("org/m-GGUF:Q4_K_M", settings).path == plain
    assert resolve("org/m-GGUF:UD-Q4_K_M", settings).path == dynamic


def test_a_model_of_the_catalogue_is_found_by_the_name_that_fetched_it(settings: Settings) -> None:
    fetched = settings.models_dir / "ggml-org" / "gpt-oss-20b-GGUF" / "mxfp4.gguf"
    fetched.parent.mkdir(parents=True)
    fetched.write_bytes(b"GGUF")
    assert resolve("gpt-oss-20b", settings).path == fetched
    assert resolve("gpt-oss-20b:latest", settings).path == fetched


@pytest.mark.parametrize("name", ["bartowski/Qwen-GGUF:8", "bartowski/Qwen-GGUF:Q2_K", "gpt-oss-120b"])
def test_what_was_not_fetched_is_not_found_by_what_would_fetch_it(settings: Settings, name: str) -> None:
    with pytest.raises(UnknownModelError):
        resolve(name, settings)


def test_two_files_of_one_name_differ_by_their_repo(settings: Settings) -> None:
    other = settings.models_dir / "you" / "solo" / "solo.gguf"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"GGUF")
    ids = {ref.id for ref in available(settings)}
    assert {"solo", "you/solo"} <= ids, "the one that was there first keeps its id"
    assert resolve("you/solo/solo", settings).path == resolve("you/solo", settings).path == other


def test_later_parts_of_a_split_model_are_no_models(settings: Settings) -> None:
    for part in (1, 2):
        (settings.models_dir / "me" / "solo" / f"big-{part:05d}-of-00002.gguf").write_bytes(b"GGUF")
    assert [ref.id for ref in available(settings) if "big" in ref.id] == ["big"]
    assert resolve("big", settings) == resolve("big-00001-of-00002", settings)


def test_a_loose_file_is_found_by_its_name(settings: Settings) -> None:
    for name in ("loose-1B-Q4_K_M.gguf", "phi/model-Q8_0.gguf", "me/solo/Q4_K_M/deep.gguf"):
        _write(settings.models_dir / name)
    by_name = {"loose-1B-Q4_K_M": "loose:1b-q4_K_M", "loose:1b-q4_K_M": "loose:1b-q4_K_M", "phi": "phi:q8_0"}
    assert {name: resolve(name, settings).id for name in by_name} == by_name
    assert resolve("deep", settings).repo == "me/solo"


def test_a_loose_file_never_takes_the_name_of_another_model(settings: Settings) -> None:
    solo, guide = (_write(settings.models_dir / name) for name in ("solo.gguf", "guide.gguf"))
    assert resolve("guide", settings).place == "built in"
    assert [resolve(name, settings).path for name in ("local/solo", "local/guide")] == [solo, guide]
    assert resolve("solo", settings).repo == "me/solo", "it was there first"
    ids = [ref.id for ref in available(settings)]
    assert len({name.lower() for name in ids}) == len(ids)


def _write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    return path


def test_an_unknown_name_lists_what_is_here(settings: Settings) -> None:
    with pytest.raises(UnknownModelError, match=r"no model 'nope'.*solo"):
        resolve("nope", settings)


def test_a_path_is_taken_as_it_is(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.gguf"
    path.write_bytes(b"GGUF")
    assert resolve(str(path), settings) == ModelRef("elsewhere", path)


def test_a_relative_path_is_found_in_the_working_folder(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    assert resolve("here.gguf", settings).path == tmp_path / "here.gguf"
    assert portable("here.gguf") == str(tmp_path / "here.gguf")


def test_a_missing_file_is_named(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match=r"There is no file .*gone\.gguf"):
        resolve(str(tmp_path / "gone.gguf"), settings)


def test_a_checkpoint_folder_gets_the_command_that_converts_it(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match="localllm quantize"):
        resolve(str(tmp_path), settings)


@pytest.mark.parametrize(("suffix", "word"), [(".bin", "pickle"), (".pt", "pickle"), (".safetensors", "quantize")])
def test_other_formats_get_their_own_way_out(settings: Settings, tmp_path: Path, suffix: str, word: str) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"x")
    with pytest.raises(ModelFileError, match=word):
        resolve(str(path), settings)


def test_a_name_never_reaches_a_path_outside_the_library(settings: Settings, tmp_path: Path) -> None:
    outside = tmp_path / "secret.gguf"
    outside.write_bytes(b"GGUF")
    with pytest.raises(UnknownModelError):
        find_by_name(str(outside), available(settings))


def test_the_home_of_an_unknown_user_is_an_ordinary_name() -> None:
    assert absolute("~nobody-of-this-name/m.gguf") == Path("~nobody-of-this-name/m.gguf").absolute()


@given(st.text(max_size=400))
@example("~\\")
def test_any_name_is_resolved_or_refused_with_a_typed_error(name: str) -> None:
    nowhere = Settings(data_dir=Path("/nonexistent"), cache_dir=Path("/nonexistent"))
    with contextlib.suppress(ModelFileError):
        assert resolve(name, nowhere).path.exists()


def test_a_file_is_found_without_waiting_for_numpy_where_nothing_was_downloaded(tmp_path: Path) -> None:
    (tmp_path / "own.gguf").write_bytes(b"GGUF")
    script = """
import sys
from pathlib import Path
from app.library.local.resolve import resolve
from app.settings.settings import Settings
print(resolve(sys.argv[1], Settings(data_dir=Path(sys.argv[2]))).path.name, "numpy" in sys.modules)
"""
    command = [sys.executable, "-P", "-c", script, "own.gguf", str(tmp_path / "data")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "own.gguf False\n"


def test_the_guide_is_quantized_from_its_checkpoint_where_that_is_there_else_from_its_file(
    tmp_path: Path,
) -> None:
    assert guide_source(guide_folder()).is_dir()
    assert guide_source(tmp_path) == tmp_path / "guide-Q8_0.gguf"
