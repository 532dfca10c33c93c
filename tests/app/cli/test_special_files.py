"""Commands that meet a pipe, a device, a socket or a folder where a file should be: each ends, with its answer or with
one error that has a remedy. Processes of their own, which a hang does not take along."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, chdir
from pathlib import Path

import pytest

from quantizer.system.process import python_command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")

_HANGS_AFTER_S = 120.0
KINDS = ("fifo", "zero", "socket", "folder")
MODEL, MODELS = "data/models/org/repo/x.gguf", tuple(f"data/models/org/repo/{kind}.gguf" for kind in KINDS)
Make = Callable[[str, str], Path]

# What is odd, and the command that meets it; {place} is the path of the first.
NAMED = (
    ("show", "{place}"),
    ("show", "x"),
    ("plan", "x"),
    ("run", "-m", "{place}", "hello"),
    ("run", "-m", "x", "hello"),
    ("serve", "-m", "{place}"),
    ("import", "{place}", "--as", "org/copy/copy"),
    ("quantize", "{place}", "Q4_0", "-o", "out.gguf"),
    ("verify", "x"),
    ("rm", "x", "--yes"),
)
LISTED = (("ls",), ("doctor",), ("prune", "--yes"), ("verify",), ("run", "hello"))
BY_PLACE = (
    ("config.toml", ("ls",)),
    ("config.toml", ("doctor",)),
    ("config.toml", ("run", "hello")),
    ("config.toml", ("serve",)),
    ("data/chats.db", ("chats", "list")),
    ("data/chats.db", ("chats", "export", "--all", "-o", "out.json")),
    ("data/chats.db", ("doctor",)),
    ("data/chats.db", ("forget", "--yes")),
    ("cache/index.db", ("ls",)),
    ("cache/index.db", ("doctor",)),
    ("data/keys.json", ("key", "list")),
    ("data/service.key", ("run", "hello")),
    ("data/mcp.json", ("mcp", "list")),
    ("cache/tune.json", ("doctor",)),
    ("cache/runs.jsonl", ("run", "hello")),
    ("cache/service.log", ("run", "hello")),
    ("questions.jsonl", ("batch", "{place}", "-o", "out.jsonl")),
    ("chats.json", ("chats", "import", "{place}")),
    ("note.txt", ("run", "guide", "hello", "{place}")),
    ("m-1-py3-none-any.whl", ("import", "{place}")),
    ("a.gguf", ("run", "hello", "--lora", "{place}")),
    ("a.gguf", ("run", "hello", "--projector", "{place}")),
    ("checkpoint/config.json", ("quantize", "checkpoint", "Q4_0", "-o", "out.gguf")),
)
EVERYWHERE = [(MODEL, words) for words in NAMED] + list(BY_PLACE)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("data", "cache"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    """Put something that is no file at a place below `home`."""
    with ExitStack() as stack:

        def made(kind: str, place: str) -> Path:
            path = home / place
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "fifo":
                os.mkfifo(path)
            elif kind == "zero":
                path.symlink_to("/dev/zero")
            elif kind == "folder":
                path.mkdir()
            else:
                listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                with chdir(path.parent):  # the kernel takes a hundred bytes
                    listener.bind(path.name)
            return path

        yield made


def _ended(environment: Mapping[str, str], home: Path, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    own = {
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "OLLAMA_MODELS": str(home / "ollama"),
        "LOCALLLM_DATA_DIR": str(home / "data"),
        "LOCALLLM_CACHE_DIR": str(home / "cache"),
        "LOCALLLM_CONFIG": str(home / "config.toml"),
    }
    done = subprocess.run(
        python_command("tests.app.service_process", *words),
        env={**environment, **own, "PYTHONPATH": str(Path.cwd())},
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_HANGS_AFTER_S,
    )
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed
    assert "a bug" not in printed
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    is_answer = not done.returncode or (words[0] == "verify" and "damaged: " in done.stdout)
    assert len(errors) == (0 if is_answer else 1), printed
    assert all(re.search(r"[.!?`)] +[A-Z`]", error) for error in errors), errors  # with a remedy
    return done


@pytest.mark.slow
@pytest.mark.parametrize("words", LISTED, ids=" ".join)
def test_a_folder_of_models_that_are_no_files_is_listed_and_harms_no_command(
    environment: Mapping[str, str], home: Path, make: Make, words: tuple[str, ...]
) -> None:
    for kind, place in zip(KINDS, MODELS, strict=True):
        make(kind, place)
    done = _ended(environment, home, words)
    if words == ("ls",):
        assert done.returncode == 0
        assert done.stdout.count("not a regular file") >= 3, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("place", "words"), EVERYWHERE, ids=lambda each: " ".join(each) if isinstance(each, tuple) else each
)
def test_a_command_that_meets_no_regular_file_ends_with_an_answer_or_one_error(
    environment: Mapping[str, str], home: Path, make: Make, kind: str, place: str, words: tuple[str, ...]
) -> None:
    path = make(kind, place)
    _ended(environment, home, tuple(word.format(place=path) for word in words))
