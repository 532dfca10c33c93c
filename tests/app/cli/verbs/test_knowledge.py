from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import gguf
import pytest

from app.client.launcher import stop_services
from app.service.server import listen
from app.settings.settings import load_settings
from tests.app.cli.in_process import TELLS_MODULES, json_of, run_localllm
from tests.quantizer.gguf_files import tiny_llama

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "papers"
    (top / "old").mkdir(parents=True)
    (top / "soup.md").write_text("# Soup\n\nBroth simmers for hours.")
    (top / "old" / "tour.txt").write_text("Cycling along the river.")
    (top / ".env").write_text("KEY=1")
    return top


@pytest.fixture
def run(tmp_path: Path, environment: Mapping[str, str]) -> Run:
    own = {"DATA_DIR": tmp_path / "data", "CACHE_DIR": tmp_path / "cache", "CONFIG": tmp_path / "config.toml"}
    changed = {f"LOCALLLM_{name}": str(value) for name, value in own.items()}
    return lambda *words: run_localllm({**environment, **changed}, "knowledge", *words)


def _out(done: CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_folder_is_added_listed_searched_and_forgotten(run: Run, folder: Path) -> None:
    added = run("add", folder)
    assert _out(added) == f"{folder}: 2 files read, 1 left out; 2 new passages.\n"
    assert "No embedding model is in the library" in added.stderr
    listed = _out(run("ls", "--left-out"))
    assert listed.startswith(f"{folder}  2 files, 1 left out, 2 passages (by words alone), ")
    assert listed.endswith("    .env: it may hold secrets, by its name\n")
    found = run("search", "broth", "please")
    assert _out(found).startswith(
        f"1. {folder / 'soup.md'} (Soup)  [0.0164: words 1]\n   # Soup Broth simmers for hours.\n"
    )
    assert "words alone" in found.stderr
    assert _out(run("rm", folder)) == f"Forgotten: {folder}. The documents are untouched.\n"
    assert (folder / "soup.md").exists()
    assert _out(run("ls")) == ""


def test_every_command_prints_json(run: Run, folder: Path) -> None:
    assert json_of(run("add", folder, "--json")) == [
        {
            "path": str(folder),
            "n_read": 2,
            "n_unchanged": 0,
            "n_left_out": 1,
            "n_gone": 0,
            "n_passages": 2,
            "problem": "",
        }
    ]
    (row,) = json_of(run("ls", "--left-out", "--json"))
    assert row["left_out"] == [{"path": ".env", "reason": "it may hold secrets, by its name"}]
    (hit,) = json_of(run("search", "river", "--json"))
    assert (hit["path"], hit["text"], hit["begin"]) == (str(folder / "old" / "tour.txt"), "Cycling along the river.", 0)
    assert json_of(run("update", "--json"))[0]["n_read"] <= 2
    assert json_of(run("rm", folder, "--json")) == [str(folder)]


def test_an_update_reads_what_changed_and_goes_on_after_a_folder_that_is_away(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "z"
    other.mkdir()
    (other / "bread.txt").write_text("Flour.")
    run("add", folder, other)
    folder.rename(tmp_path / "away")
    (other / "bread.txt").write_text("Flour and water.")
    done = run("update")
    assert done.returncode == 1
    assert f"{folder}: not read; what was read of it before stays." in done.stdout
    assert f"{other}: 1 file read; 1 new passage." in done.stdout
    assert "soup.md" in _out(run("search", "broth"))
    assert "water" in _out(run("search", "water"))


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("add", "missing"), "is not a folder"),
        (("update",), "No folder was added"),
        (("rm", "elsewhere"), "was not added"),
        (("search", "soup"), "No folder was added"),
    ],
)
def test_what_cannot_be_done_says_why(run: Run, words: tuple[str, ...], cause: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert cause in done.stderr


def test_the_folder_of_chats_and_keys_is_no_knowledge(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "jobs").mkdir(parents=True)
    (tmp_path / "data" / "keys.json").write_text("{}")
    for own in ("data", "data/jobs"):
        done = run("add", tmp_path / own)
        assert done.returncode == 2
        assert "localllm's own folder" in done.stderr
    _out(run("add", tmp_path))
    assert "data/: localllm's own folder" in _out(run("ls", "--left-out"))


def test_an_embedder_must_be_an_embedding_model_of_the_library(run: Run, folder: Path, tmp_path: Path) -> None:
    assert "There is no model 'unknown'" in run("add", folder, "--embedder", "unknown").stderr
    models = tmp_path / "data" / "models" / "me" / "chat"
    models.mkdir(parents=True)
    tiny_llama(models / "chat.gguf")
    assert "chat is not an embedding model" in run("add", folder, "--embedder", "chat").stderr
    assert "in the library" not in _out(run("add", folder, "--embedder", "none"))


def _with_pooling(writer: gguf.GGUFWriter) -> None:
    writer.add_uint32("llama.pooling_type", 1)


@pytest.fixture
def with_service(tmp_path: Path, environment: Mapping[str, str]) -> Iterator[Run]:
    """Commands of a user whose library has an embedding model, with a service over the fake engine that stays."""
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    own = {"DATA_DIR": tmp_path / "data", "CACHE_DIR": tmp_path / "cache", "CONFIG": tmp_path / "config.toml"}
    own |= {"PORT": port, "KEEP_SERVICE": "10m"}
    changed = {**environment, **{f"LOCALLLM_{name}": str(value) for name, value in own.items()}}
    models = tmp_path / "data" / "models" / "me"
    models.mkdir(parents=True)
    tiny_llama(models / "embedder-a.gguf", _with_pooling)
    yield lambda *words: run_localllm(changed, "knowledge", *words)
    settings = load_settings(environment=changed)
    asyncio.run(stop_services(replace(settings, port=port)))


@pytest.mark.slow
def test_passages_get_vectors_by_the_service_and_another_embedder_makes_them_anew(
    with_service: Run, folder: Path, tmp_path: Path
) -> None:
    (folder / "long.txt").write_text("word " * 190)  # more tokens than the model's 128
    _out(with_service("add", folder))
    assert "3 passages (3 of them by meaning)" in _out(with_service("ls"))
    found = with_service("search", "river", "--json")
    assert {"word_rank", "vector_rank"} <= set(json_of(found)[0])
    assert json_of(found)[0]["vector_rank"] is not None
    assert "words alone" not in found.stderr
    tiny_llama(tmp_path / "data" / "models" / "me" / "embedder-b.gguf", _with_pooling)
    again = with_service("update", "--embedder", "embedder-b")
    assert "3 vectors of another embedding model: made anew by embedder-b." in again.stderr
    assert "3 passages (3 of them by meaning)" in _out(with_service("ls"))


def test_ctrl_c_keeps_what_was_read_and_says_so(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("app.knowledge.reading._Reading.end", interrupted)
        done = run("add", folder)
    assert done.returncode == 130
    assert "What was read stays" in done.stderr
    assert "not wholly read yet" in _out(run("ls"))
    assert "soup.md" in _out(run("search", "broth"))


def test_forget_removes_what_was_read(run: Run, folder: Path, tmp_path: Path) -> None:
    run("add", folder)
    environment = {
        **os.environ,
        "LOCALLLM_DATA_DIR": str(tmp_path / "data"),
        "LOCALLLM_CACHE_DIR": str(tmp_path / "cache"),
    }
    listed = json.loads(run_localllm(environment, "forget", "--dry-run", "--json").stdout)
    assert [item["what"] for item in listed["found"]] == ["folders of knowledge"]
    run_localllm(environment, "forget", "--keep-chats", "--yes")
    assert "soup.md" in _out(run("search", "broth"))
    run_localllm(environment, "forget", "--yes")
    assert _out(run("ls")) == ""


@pytest.mark.slow
def test_an_update_of_a_text_waits_for_nothing_that_draws_bars_watches_children_or_looks_at_models(
    run: Run, folder: Path, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    run("add", folder, "--embedder", "none")
    (folder / "soup.md").write_text("# Soup\n\nBroth simmers for a day.")
    own = {"LOCALLLM_DATA_DIR": str(tmp_path / "data"), "LOCALLLM_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", TELLS_MODULES, "knowledge", "update", "--embedder", "none"]
    done = subprocess.run(command, env={**environment, **own}, capture_output=True, text=True, check=True)
    assert "1 file read" in done.stdout
    modules = done.stderr.split()
    assert not {"rich.progress", "psutil", "httpx", "numpy", "app.library.local.resolve"} & set(modules)
