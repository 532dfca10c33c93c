from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.library.local.resolve import UnknownModelError
from app.protocol.errors import RequestError
from app.protocol.job import JobKind
from app.service.jobs.arguments import JobCommand, command_of, options_of, title_of
from app.settings.settings import Settings


@pytest.fixture
def command(tmp_path: Path, tiny_model: Path) -> Callable[..., JobCommand]:
    """Return the command for a kind and its arguments, in a library with one model, org/repo/m-F16."""
    settings = Settings(data_dir=tmp_path)
    installed = settings.models_dir / "org" / "repo" / "m-F16.gguf"
    installed.parent.mkdir(parents=True)
    installed.symlink_to(tiny_model)
    return lambda kind, **arguments: command_of(options_of(kind, arguments), settings)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({}, "org/repo/m-F16-Q4_K_M.gguf"),
        ({"file_type": "q8_0"}, "org/repo/m-F16-Q8_0.gguf"),
        ({"n_bytes": 4_200_000_000}, "org/repo/m-F16-4.2GB.gguf"),
        ({"kld": 0.02}, "org/repo/m-F16-kld0.02.gguf"),
        ({"output": "mine"}, "local/mine/mine.gguf"),
        ({"output": "me/mine/small"}, "me/mine/small.gguf"),
    ],
)
def test_output_goes_to_the_library_unless_it_is_a_path(
    command: Callable[..., JobCommand], tmp_path: Path, arguments: dict[str, Any], place: str
) -> None:
    made = command("quantize", source="m-F16", **arguments)
    assert f"--output={tmp_path / 'models' / place}" in made.argv
    assert made.folder == (tmp_path / "models" / place).parent
    assert str(tmp_path / "models" / "org" / "repo" / "m-F16.gguf") in made.argv
    elsewhere = command("quantize", source="m-F16", output=str(tmp_path / "x.gguf"))
    assert elsewhere.folder == tmp_path


def test_a_downloaded_checkpoint_becomes_a_model_of_its_repository(
    command: Callable[..., JobCommand], tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints" / "org" / "check"
    folder.mkdir(parents=True)
    made = command("quantize", source=str(folder), file_type="F16")
    assert made.folder == tmp_path / "models" / "org" / "check"


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("quantize", {"source": "./m.gguf"}),
        ("quantize", {"source": "m-F16", "output": "../../x"}),
        ("quantize", {"source": "m-F16", "output": "a/b/c/d"}),
        ("quantize", {"source": "m-F16", "output": "/home/me/.profile", "overwrite": True}),
        ("quantize", {"source": "m-F16", "file_type": "Q99"}),
        ("eval", {"model": "m-F16", "text": "text.txt"}),
        ("tune", {"model": "~/m.gguf"}),
        ("bench", {"model": "./m.gguf"}),
    ],
)
def test_relative_paths_are_refused_before_the_start(
    command: Callable[..., JobCommand], kind: JobKind, arguments: dict[str, Any]
) -> None:
    with pytest.raises(RequestError):
        command(kind, **arguments)


def test_an_unknown_source_lists_the_models(command: Callable[..., JobCommand]) -> None:
    with pytest.raises(UnknownModelError, match="m:f16"):
        command("quantize", source="nothing")


def test_too_long_a_path_is_left_to_the_verb(command: Callable[..., JobCommand]) -> None:
    source = "/" + "a" * 300
    assert command("quantize", source=source, output="new").argv[-1] == source


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("pull", {}),
        ("pull", {"reference": "a/b", "conections": 4}),
        ("pull", {"reference": "a\0b"}),
        ("pull", {"reference": "a/b", "connections": 17}),
        ("quantize", {"source": "guide", "kld": float("nan")}),
        ("tune", {"model": ""}),
        ("eval", {"model": "guide", "ctx": -1}),
    ],
)
def test_unknown_arguments_are_refused(kind: JobKind, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        options_of(kind, arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "title"),
    [
        ("quantize", {"source": "/data/models/o/r/l1b-f16.gguf", "file_type": "q3_k_s"}, "Quantize l1b:f16 to Q3_K_S"),
        ("quantize", {"source": "/m/a.gguf", "as_draft": True}, "Copy a in Q2_K as its draft"),
        ("eval", {"model": "/m/a.gguf", "against": "/m/b.gguf"}, "Evaluate a against b"),
        ("tune", {"model": "org/repo/name"}, "Tune org/repo/name"),
        ("bench", {"model": "/m/a.gguf"}, "Measure how fast a answers"),
    ],
)
def test_a_title_names_models_without_their_folders(kind: JobKind, arguments: dict[str, Any], title: str) -> None:
    assert title_of(options_of(kind, arguments)) == title
