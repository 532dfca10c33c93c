from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.library.local.model_files import (
    ModelRef,
    folder_stamp,
    head_paths,
    id_of,
    identity_of,
    ids_of,
    model_output_path,
    model_paths,
    parts_of,
    repo_of,
    stat_model,
)
from quantizer.system.errors import StorageError, UsageError
from tests.app.small_models import small_model, small_shards


def test_models_are_files_at_most_three_folders_down_in_order_of_name(tmp_path: Path) -> None:
    names = ("loose.gguf", "a/one.gguf", "a/x/2.gguf", "a/x/10.gguf", "b/y/1.gguf", "a/x/Q4/deep.gguf", "d.gguf/m.gguf")
    wanted = [small_model(tmp_path / name) for name in names]
    for other in (
        "a/x/Q4/too/deep.gguf",
        "a/x/notes.txt",
        "a/x/.hidden.gguf",
        ".hidden/m.gguf",
        "a/x/.fetching/m.gguf",
    ):
        small_model(tmp_path / other)
    assert model_paths(tmp_path) == sorted(wanted)


def test_a_draft_head_beside_a_model_is_no_model_and_one_alone_is(tmp_path: Path) -> None:
    model, head, mtp = (small_model(tmp_path / "a" / name) for name in ("m-MTP.gguf", "dflash-m.gguf", "mtp-m.gguf"))
    alone = small_model(tmp_path / "b" / "m-eagle3-Q8_0.gguf")
    assert model_paths(tmp_path) == [model, alone]
    assert head_paths(tmp_path) == [head, mtp]
    model.unlink()
    assert model_paths(tmp_path) == [head, mtp, alone]


def test_a_projector_beside_its_model_is_no_model(tmp_path: Path) -> None:
    model, projector = (small_model(tmp_path / "a" / name) for name in ("m-Q4_K_M.gguf", "mmproj-m-F16.gguf"))
    assert model_paths(tmp_path) == [model]
    assert head_paths(tmp_path) == [projector]


@pytest.mark.skipif(os.name == "nt", reason="Windows lets few users make links")
def test_a_link_to_a_folder_above_itself_repeats_no_model(tmp_path: Path) -> None:
    path = small_model(tmp_path / "a" / "m.gguf")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    assert model_paths(tmp_path) == [path]


def test_the_stamp_of_the_folders_changes_with_every_file_that_comes_or_goes(tmp_path: Path) -> None:
    stamps = [folder_stamp(tmp_path / "models")]
    for name in ("loose.gguf", "a/x/m.gguf", "a/x/Q4/m.gguf"):
        path = small_model(tmp_path / "models" / name)
        _set_folder_time(path.parent, 10**18 + len(stamps))
        stamps.append(folder_stamp(tmp_path / "models"))
    path.unlink()
    _set_folder_time(path.parent, 10**18 + len(stamps))
    stamps.append(folder_stamp(tmp_path / "models"))
    assert len(set(stamps)) == len(stamps)
    assert folder_stamp(tmp_path / "models") == stamps[-1]


def _set_folder_time(folder: Path, time_ns: int) -> None:
    """Set the time that some file systems count in whole seconds only."""
    os.utime(folder, ns=(time_ns, time_ns))


def test_the_repo_of_a_file_is_its_first_two_folders(tmp_path: Path) -> None:
    names = {"m.gguf": "", "a/m.gguf": "a", "a/x/m.gguf": "a/x", "a/x/Q4/m.gguf": "a/x"}
    assert {name: repo_of(tmp_path / name, tmp_path) for name in names} == names


def test_a_file_is_changing_until_ten_seconds_after_its_last_change(tmp_path: Path) -> None:
    stat = stat_model(small_model(tmp_path / "m.gguf"))
    assert stat.is_changing(stat.changed_s + 9)
    assert not stat.is_changing(stat.changed_s + 11)
    assert not stat.is_changing(stat.changed_s - 1), "the clock was set back"


def test_a_folder_that_is_not_there_has_no_models(tmp_path: Path) -> None:
    assert model_paths(tmp_path / "nowhere") == []


@pytest.mark.parametrize(("code", "is_listed"), [(errno.EIO, False), (errno.EMFILE, False), (errno.EINTR, True)])
def test_a_folder_that_the_system_fails_to_list_is_an_error_and_not_a_folder_without_models(
    tmp_path: Path, code: int, is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "a.gguf").touch()
    scandir, faults = os.scandir, [OSError(code, os.strerror(code))]

    def failing_once(folder: Path) -> object:
        if folder.name == "org" and faults:
            raise faults.pop()
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", failing_once)
    if is_listed:
        assert model_paths(tmp_path) == [tmp_path / "org" / "a.gguf"]
    else:
        with pytest.raises(StorageError, match="org cannot be listed"):
            model_paths(tmp_path)


def test_a_split_model_is_its_first_file_and_has_all_as_parts(tmp_path: Path) -> None:
    paths = small_shards(tmp_path / "a" / "x" / "big.gguf", 3)
    assert model_paths(tmp_path) == paths[:1]
    assert parts_of(paths[0]) == tuple(paths)
    assert stat_model(paths[0]).n_bytes == sum(path.stat().st_size for path in paths)


def test_a_model_is_the_same_by_every_link_to_all_of_its_files_and_no_copy_of_it_is(tmp_path: Path) -> None:
    paths = small_shards(tmp_path / "big.gguf", 3)
    for path in paths:
        for folder, make in (("hard", os.link), ("soft", os.symlink), ("copied", shutil.copy)):
            (tmp_path / folder).mkdir(exist_ok=True)
            make(path, tmp_path / folder / path.name)
    own, hard, soft, copied = (
        identity_of(folder / paths[0].name)
        for folder in (tmp_path, tmp_path / "hard", tmp_path / "soft", tmp_path / "copied")
    )
    assert own == hard == soft != copied
    (tmp_path / "hard" / paths[2].name).unlink()
    assert identity_of(tmp_path / "hard" / paths[0].name) != own, "one of its files is missing"


@pytest.mark.parametrize("name", ["m-00002-of-00003.gguf", "m-00001-of-99999.gguf", "m.gguf"])
def test_another_part_than_the_first_is_a_file_of_its_own(tmp_path: Path, name: str) -> None:
    assert parts_of(tmp_path / name) == (tmp_path / name,)


def _touched_back(path: Path) -> None:
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.skipif(os.name == "nt", reason="Windows tells no time of change")
def test_a_change_shows_even_where_its_time_was_set_back(tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.gguf")
    before = stat_model(path)
    _touched_back(path)
    after = stat_model(path)
    assert (after.n_bytes, after.modified_s) == (before.n_bytes, before.modified_s)
    assert after.stamp != before.stamp


def test_a_missing_part_shows(tmp_path: Path) -> None:
    paths = small_shards(tmp_path / "big.gguf", 2)
    before = stat_model(paths[0])
    paths[1].unlink()
    assert stat_model(paths[0]).stamp != before.stamp


Models = list[tuple[Path, str]]
PUBLISHERS = st.sampled_from(["bartowski", "unsloth", "Qwen", "local"])
STEMS = st.sampled_from(["Qwen2.5-Coder-7B-Q4_K_M", "qwen2.5-coder-7b-q4_k_m", "model", "x", "Ünï cödé", "--", "a-b"])


@pytest.mark.parametrize(
    ("file", "repo", "wanted"),
    [
        ("Qwen2.5-Coder-7B-Q4_K_M.gguf", "", "qwen2.5-coder:7b-q4_K_M"),
        ("Qwen2.5-Coder-7B-Instruct-Q4_K_M.gguf", "", "qwen2.5-coder:7b-instruct-q4_K_M"),
        ("qwen3-0.6b-q8_0.gguf", "", "qwen3:0.6b-q8_0"),
        ("Qwen3-30B-A3B-Instruct-2507-UD-Q4_K_XL.gguf", "", "qwen3:30b-a3b-instruct-2507-ud-q4_K_XL"),
        ("Mixtral-8x7B-Instruct-v0.1.Q5_K_S.gguf", "", "mixtral:8x7b-instruct-v0.1-q5_K_S"),
        ("gemma-3n-E4B-it-IQ4_XS.gguf", "", "gemma-3n:e4b-it-iq4_XS"),
        ("SmolLM2-135M-Instruct-f16.gguf", "", "smollm2:135m-instruct-f16"),
        ("gpt-oss-20b-mxfp4.gguf", "", "gpt-oss:20b-mxfp4"),
        ("Meta-Llama-3.1-70B-Instruct-Q4_K_M-00001-of-00002.gguf", "", "meta-llama-3.1:70b-instruct-q4_K_M"),
        ("Phi-3.5-mini-instruct-Q4_K_M.gguf", "", "phi-3.5-mini-instruct:q4_K_M"),
        ("DeepSeek-Coder-1.3B.gguf", "", "deepseek-coder:1.3b"),
        ("ggml-model-Q4_K_M.gguf", "me/StarCoder2-3B-GGUF", "starcoder2:3b-q4_K_M"),
        ("model.gguf", "me/StarCoder2-3B", "starcoder2:3b"),
        ("model.gguf", "", "model"),
        ("coder.gguf", "local/coder", "coder"),
        ("My Coder.gguf", "local/x", "My-Coder"),
        ("7B-Q4_0.gguf", "", "7b:q4_0"),
    ],
)
def test_files_of_hubs_get_the_ids_that_ollama_would_give_them(file: str, repo: str, wanted: str) -> None:
    assert id_of(file, repo) == wanted


@given(st.text(max_size=60), st.text(max_size=30))
def test_any_name_makes_an_id_that_every_client_can_send(file: str, repo: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]+(:[A-Za-z0-9._-]+)?", id_of(file, repo))


@st.composite
def _libraries(draw: st.DrawFn) -> Models:
    """Models in the order in which they came."""
    names = st.tuples(PUBLISHERS, st.sampled_from(["coder", "Coder-7B-GGUF"]), STEMS)
    found = draw(st.lists(names, unique=True, max_size=12))
    return [(Path("models", publisher, repo, f"{stem}.gguf"), f"{publisher}/{repo}") for publisher, repo, stem in found]


def _ids(models: Models) -> dict[Path, str]:
    came_ns = {path: number for number, (path, _) in enumerate(models)}
    return ids_of(reversed(models), came_ns.__getitem__)


@given(_libraries())
def test_no_two_models_have_the_same_id_in_any_case(models: Models) -> None:
    ids = _ids(models)
    assert len(ids) == len(models)
    assert len({name.lower() for name in ids.values()}) == len(models)


@given(_libraries(), st.integers(0, 12))
def test_what_comes_later_changes_no_id(models: Models, n_first: int) -> None:
    before, after = _ids(models[:n_first]), _ids(models)
    assert before.items() <= after.items()


@given(st.lists(st.sampled_from([
    "m.gguf", "M.gguf", "local/m.gguf", "m-00001-of-00002.gguf", "m-00001-of-00003.gguf", "p/m.gguf", "p/r/m.gguf",
    "p/r/Q4/m.gguf", "p/r/Q8/m.gguf", "p/r/m-00001-of-00002.gguf", "guide.gguf", "local/guide.gguf",
]), unique=True))  # fmt: skip
def test_no_two_models_of_a_folder_have_the_same_id(names: list[str]) -> None:
    paths = [Path("models", name) for name in names]
    ids = ids_of([(path, repo_of(path, Path("models"))) for path in paths], paths.index, {"guide"})
    assert set(ids) == set(paths)
    assert len({name.lower() for name in ids.values()}) == len(paths)
    assert "guide" not in ids.values()


def test_the_age_of_models_that_nothing_is_mistaken_for_is_not_looked_up() -> None:
    models = [(Path("a", "x.gguf"), "a/a"), (Path("b", "y.gguf"), "b/b")]
    assert set(ids_of(models, {}.__getitem__).values()) == {"x", "y"}


def test_later_models_of_a_name_get_their_publisher_and_then_digits() -> None:
    repos = ("one/Q", "two/Q", "two/Q-GGUF")
    models = [(Path(repo, "Q-7B-Q8_0.gguf"), repo) for repo in repos]
    ids = _ids(models)
    first, second, third = (ids[path] for path, _ in models)
    assert (first, second) == ("q:7b-q8_0", "two/q:7b-q8_0")
    assert third.startswith("two/q:7b-q8_0--")


MODELS = Path("/models")
OLLAMA = ModelRef("llama3.2:3b", Path("/o/blobs/sha256-ab"), "ollama/llama3.2", "Ollama")
CACHED = ModelRef("org/name/m-Q4", Path("/h/snapshots/c/m-Q4.gguf"), "org/name", "Hugging Face")
LOOSE = ModelRef("m", Path("/x/m.gguf"))
SPLIT = ModelRef("big-00001-of-00002", Path("/x/big-00001-of-00002.gguf"))


@pytest.mark.parametrize(
    ("source", "wanted", "place"),
    [
        (OLLAMA, "", "ollama/llama3.2/llama3.2-3b.gguf"),
        (CACHED, "", "org/name/m-Q4.gguf"),
        (LOOSE, "", "local/m/m.gguf"),
        (SPLIT, "", "local/big/big.gguf"),
        (CACHED, "mine", "local/mine/mine.gguf"),
        (CACHED, "mine.gguf", "local/mine/mine.gguf"),
        (CACHED, "me/mine", "me/mine/m-Q4.gguf"),
        (CACHED, "me/mine/fast", "me/mine/fast.gguf"),
        (CACHED, "qwen2.5:7b-instruct", "local/qwen2.5-7b-instruct/qwen2.5-7b-instruct.gguf"),
        (CACHED, "mine:latest", "local/mine/mine.gguf"),
        (CACHED, "me/mine/fast:q8", "me/mine/fast-q8.gguf"),
    ],
)
def test_a_model_is_in_the_folder_of_its_name(source: ModelRef, wanted: str, place: str) -> None:
    assert model_output_path(source, wanted, MODELS) == MODELS / place


@pytest.mark.parametrize(
    "wanted",
    [
        "..",
        "../..",
        "a/../b",
        "/abs",
        "a//b",
        "a/b/c/d",
        ".hidden",
        "a\\b",
        "c:",
        "c:x",
        "mine:",
        ":x",
        "nul",
        "com1/x",
        "a\x1bb",
        "a.",
    ],
)
def test_what_is_no_safe_name_is_refused(wanted: str) -> None:
    with pytest.raises(UsageError, match="not a valid name for a model"):
        model_output_path(LOOSE, wanted, MODELS)


@given(st.text(), st.text(), st.text(), st.text())
def test_no_name_of_anybody_leaves_the_folder(wanted: str, model_id: str, repo: str, file: str) -> None:
    source = ModelRef(model_id, Path("/x") / file.replace("\0", ""), repo)
    try:
        place = model_output_path(source, wanted, MODELS)
    except UsageError:
        assert wanted
    else:
        assert place.parents[2] == MODELS
        assert len(place.parts) == 5
        assert not any(part.startswith(".") for part in place.parts)
        assert place.suffix == ".gguf"
