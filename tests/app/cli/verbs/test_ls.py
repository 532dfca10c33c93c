from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli.verbs import ls
from app.library.local import index as listing
from app.protocol.codec import decode
from app.protocol.library import LocalModel
from tests.app.external_folders import hugging_face_model, ollama_model
from tests.app.small_models import small_model

Run = Callable[..., Any]
LISTS = """
import sys
from app.cli.main import main
try:
    main(["ls"])
finally:
    print(" ".join(sys.modules), file=sys.stderr)
"""


def test_the_guide_comes_first_and_then_what_was_dropped_in(localllm: Run, models: Path) -> None:
    small_model(models / "me" / "x" / "m.gguf", general__license="mit")
    ran = localllm("ls", "--json")
    assert [decode(LocalModel, entry).id for entry in ran.json["models"]] == ["guide", "m"]
    guide, model = ran.json["models"]
    assert (guide["id"], guide["where"], guide["has_fim"]) == ("guide", "built in", True)
    assert (model["id"], model["where"], model["licence"], model["damaged"]) == ("m", "library", "mit", "")


def test_a_damaged_file_is_listed_with_its_reason_and_nothing_else(localllm: Run, models: Path) -> None:
    path = small_model(models / "me" / "x" / "m.gguf")
    path.write_bytes(b"<html>")
    assert "damaged: m.gguf is not a GGUF file. It looks like a web page" in localllm("ls").out
    entry = localllm("ls", "--json").json["models"][1]
    assert "web page" in entry["damaged"]
    assert (entry["architecture"], entry["n_parameters"]) == ("", 0)


def test_external_are_the_models_of_other_programs(localllm: Run, home: Path) -> None:
    ollama_model(home / "ollama", "registry.ollama.ai/library/llama3.2/3b")
    hugging_face_model(home / ".cache" / "huggingface" / "hub", "org/name", "m.gguf")
    small_model(home / ".lmstudio" / "models" / "org" / "other" / "n.gguf")
    assert [line.split()[0] for line in localllm("ls").out.splitlines()] == ["name", "guide"]
    told = {entry["id"]: entry["where"] for entry in localllm("ls", "--external", "--json").json["models"]}
    assert told == {
        "guide": "built in",
        "org/other/n": "LM Studio",
        "org/name/m": "Hugging Face",
        "llama3.2:3b": "Ollama",
    }
    assert localllm("ls", "--external").out.splitlines()[-1].endswith("Ollama")


@pytest.mark.skipif(sys.platform == "win32", reason="no such names there")
def test_what_a_terminal_would_obey_is_not_printed(localllm: Run, models: Path) -> None:
    small_model(models / "me" / "x" / "\x1b]52;c;aGk=\x07evil\u202e\n.gguf", "\x1b[31m").write_bytes(b"\x1b[2J")
    ran = localllm("ls")
    assert not set("\x1b\x07\u202e") & set(ran.out)
    assert len(ran.out.splitlines()) == 3


def test_a_list_shows_before_all_is_read(
    localllm: Run, models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        small_model(models / "me" / "x" / f"{number}.gguf")
    shown_when_read: list[int] = []
    read = listing.read_entry

    def watched(*arguments: Any) -> Any:
        shown_when_read.append(len(printed))
        return read(*arguments)

    printed: list[str] = []
    monkeypatch.setattr(listing, "read_entry", watched)
    monkeypatch.setattr(ls.click, "echo", printed.append)
    localllm("ls")
    assert shown_when_read == [1, 2, 3, 4]  # the head of the table, then a line more each time


def test_a_damaged_index_is_reported_and_rebuilt(localllm: Run, home: Path, models: Path) -> None:
    small_model(models / "me" / "x" / "m.gguf")
    before = localllm("ls").out
    for suffix in ("-wal", "-shm"):
        (home / "cache" / f"index.db{suffix}").unlink(missing_ok=True)
    (home / "cache" / "index.db").write_bytes(b"damage" * 1000)
    ran = localllm("ls")
    assert ran.out == before
    assert "was rebuilt" in ran.err


def test_a_list_loads_nothing_native_and_no_network(home: Path, models: Path) -> None:
    small_model(models / "me" / "x" / "m.gguf")
    command = [sys.executable, "-P", "-c", LISTS]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    heavy = {"llama_cpp", "numpy", "psutil", "gguf", "httpx", "fastapi", "textual"}
    assert heavy & set(done.stderr.split()) == set()
