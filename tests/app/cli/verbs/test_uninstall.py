from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quantizer.system.installation import Installation, Installer, Shell, removal_command
from tests.app.conftest import Ran
from tests.app.external_folders import ollama_model
from tests.app.small_models import small_model


@pytest.fixture(autouse=True)
def _no_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))


@pytest.fixture
def kept(home: Path) -> Path:
    """A home with something of each kind, and a model of Ollama that the library links to."""
    blob = ollama_model(home / "ollama", "registry.ollama.ai/library/small/latest")
    models = home / "data" / "models"
    small_model(models / "org" / "repo" / "mine.gguf")
    (models / "hard.gguf").hardlink_to(blob)
    (models / "link.gguf").symlink_to(blob)
    (models / "folder").symlink_to(home / "ollama")
    (home / "data" / "chats.db").write_bytes(bytes(1000))
    (home / "cache" / "prefix").mkdir(parents=True)
    (home / "cache" / "prefix" / "state").write_bytes(bytes(500))
    (home / "config.toml").write_text('theme = "nord"\n')
    (home / "other.txt").write_text("of the user")
    return blob


def test_all_of_localllm_is_listed_with_sizes_and_removed_and_nothing_else(
    home: Path, kept: Path, localllm: Callable[..., Ran]
) -> None:
    listed = localllm("uninstall", "--dry-run", "--json").json
    n_own_bytes = (home / "data/models/org/repo/mine.gguf").stat().st_size
    assert {item["what"]: item["bytes"] for item in listed["found"]} == {
        "models": n_own_bytes,  # what Ollama has too frees nothing
        "chats, keys and jobs": 1000,
        "caches and logs": 500,
        "settings": 15,
    }
    assert (home / "data" / "chats.db").exists()
    done = localllm("uninstall", "--yes")
    assert done.status == 0, done.err
    assert "models" in done.out
    assert str(home / "cache") in done.out
    assert "To remove the program itself: " in done.out
    assert kept.read_bytes()
    assert (home / "ollama" / "manifests").is_dir()
    assert sorted(path.name for path in home.iterdir()) == ["ollama", "other.txt"]
    assert "Nothing of localllm is left" in localllm("uninstall", "--yes").out


def test_models_can_stay(home: Path, kept: Path, localllm: Callable[..., Ran]) -> None:
    assert localllm("uninstall", "--keep-models", "--yes").status == 0
    assert (home / "data/models/org/repo/mine.gguf").exists()
    assert [path.name for path in (home / "data").iterdir()] == ["models"]


def test_it_asks_first(home: Path, kept: Path, localllm: Callable[..., Ran]) -> None:
    done = localllm("uninstall")
    assert done.status == 2
    assert "--yes" in done.err
    assert (home / "data" / "chats.db").exists()


def test_a_folder_with_files_of_others_is_left_alone_and_said(
    home: Path, kept: Path, localllm: Callable[..., Ran]
) -> None:
    (home / "data" / "thesis.odt").write_text("mine")
    done = localllm("uninstall", "--yes")
    assert done.status == 0
    assert f"{home / 'data'} holds other files too, such as thesis.odt" in done.err
    assert (home / "data" / "models" / "org").is_dir()
    assert not (home / "cache").exists()


def test_nothing_is_removed_while_the_app_runs(home: Path, kept: Path, localllm: Callable[..., Ran]) -> None:
    (home / "cache" / f"in-use-{os.getpid()}").touch()
    done = localllm("uninstall", "--yes")
    assert done.status == 2
    assert f"process {os.getpid()}" in done.err
    assert (home / "data" / "chats.db").exists()


@pytest.mark.parametrize(
    ("installer", "command"),
    [
        (Installer.PIPX, "pipx uninstall localllm"),
        (Installer.UV_TOOL, "uv tool uninstall localllm"),
        (Installer.UV, "uv pip uninstall --python /p localllm"),
        (Installer.PIP, "/p -m pip uninstall localllm"),
        (Installer.SYSTEM, "/p -m pip uninstall --break-system-packages localllm"),
        (Installer.UV_PROJECT, "delete the folder /clone"),
    ],
)
def test_the_program_is_removed_as_it_was_installed(installer: Installer, command: str) -> None:
    shell = next(iter(Shell))
    found = Installation(installer=installer, shell=shell, python="/p", clone="/clone")
    assert removal_command(found) == command
