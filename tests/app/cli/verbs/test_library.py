from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import pytest

from app.cli import resources
from app.cli.verbs import library
from app.engine.tuning.tune_results import RuntimeSettings, SpeedMeasurement, TuneFile, tune_key
from app.library.local import index as listing
from app.protocol.codec import decode
from app.protocol.library import LocalModel
from quantizer.gguf.header import read_header
from tests.app.cli.in_process import TELLS_MODULES
from tests.app.external_folders import hugging_face_model, ollama_model
from tests.app.running import RunningService
from tests.app.small_models import small_model, small_shards
from tests.patience import PATIENCE_S

Run = Callable[..., Any]


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
    monkeypatch.setattr(library.click, "echo", printed.append)
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


@pytest.mark.slow
def test_a_list_loads_nothing_native_and_no_network(home: Path, models: Path) -> None:
    small_model(models / "me" / "x" / "m.gguf")
    command = [sys.executable, "-P", "-c", TELLS_MODULES, "ls"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=dict(os.environ), timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    heavy = {"llama_cpp", "numpy", "psutil", "gguf", "httpx", "starlette", "textual"}
    assert heavy & set(done.stderr.split()) == set()


@pytest.fixture
def model(models: Path) -> Path:
    return small_model(models / "me" / "x" / "m.gguf")


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[str]]:
    """Let a person at a terminal say yes or no; returns what was asked."""

    def give(is_yes: bool) -> list[str]:
        asked: list[str] = []
        monkeypatch.setattr(sys, "stdin", _Terminal())
        monkeypatch.setattr(click, "confirm", lambda question, **_: bool(asked.append(question)) or is_yes)
        return asked

    return give


class _Terminal:
    def isatty(self) -> bool:
        return True


def test_a_model_goes_after_a_yes_and_stays_after_a_no(
    localllm: Run, model: Path, answer: Callable[[bool], list[str]]
) -> None:
    asked = answer(False)
    assert localllm("rm", "m").status == 1
    assert model.exists()
    assert f"m (frees {model.stat().st_size} B)" in asked[0]
    answer(True)
    assert localllm("rm", "m").status == 0
    assert not model.exists()


def test_where_nobody_can_be_asked_nothing_goes(localllm: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources.sys, "stdin", None)
    ran = localllm("rm", "m")
    assert ran.status == 2
    assert "--yes" in ran.err
    assert model.exists()


def test_several_models_go_together_or_none(localllm: Run, models: Path, model: Path) -> None:
    small_model(models / "me" / "y" / "n.gguf")
    assert localllm("rm", "m", "guide", "--yes").status == 2
    assert model.exists()
    output = localllm("rm", "m", "n", "m", "--yes", "--json").json["removed"]
    assert [(item["id"], len(item["paths"])) for item in output] == [("m", 1), ("n", 1)]
    assert list(models.iterdir()) == []


def test_a_model_that_a_service_has_loaded_stays_unless_insisted(
    localllm: Run,
    models: Path,
    start_service: Callable[..., RunningService],
    service: RunningService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = start_service(data_dir=str(models.parent))
    path = small_model(models / "me" / "x" / "tiny.gguf")  # as the service calls its model
    monkeypatch.setenv("LOCALLLM_PORT", own.url.rpartition(":")[2])
    ran = localllm("rm", "tiny")
    assert ran.status == 1
    assert "has tiny loaded" in ran.err
    assert path.exists()
    assert localllm("rm", "tiny", "--yes").status == 0
    assert not path.exists()
    path = small_model(models / "me" / "x" / "tiny.gguf")
    monkeypatch.setenv("LOCALLLM_PORT", service.url.rpartition(":")[2])  # of another data folder, which has its own
    assert "has tiny loaded" not in localllm("rm", "tiny").err


def test_a_model_that_a_service_has_unloaded_can_be_removed(
    localllm: Run,
    models: Path,
    start_service: Callable[..., RunningService],
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[bool], list[str]],
) -> None:
    service = start_service(data_dir=str(models.parent))
    assert service.http.post("/api/localllm/unload", json={}).json()["state"] == "unloaded"
    path = small_model(models / "me" / "x" / "tiny.gguf")  # as the service calls its model
    monkeypatch.setenv("LOCALLLM_PORT", service.url.rpartition(":")[2])
    asked = answer(True)
    assert localllm("rm", "tiny").status == 0
    assert len(asked) == 1
    assert not path.exists()


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


def test_damage_is_reported_and_exits_with_1(localllm: Run, models: Path) -> None:
    path = small_model(models / "me" / "x" / "m.gguf")
    assert localllm("verify", "m").out == "m  recorded\n"
    assert localllm("verify", "m").out == "m  sound\n"
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data[:-1] + b"?")
    ran = localllm("verify", "--json")
    assert ran.status == 1
    guide, model = ran.json["models"]
    assert list(model) == ["id", "path", "state", "sha256", "reason"]
    assert (guide["state"], model["state"]) == ("recorded", "damaged")
    row = next(line for line in localllm("ls").out.splitlines() if line.startswith("m "))
    assert row.endswith("SHA-256 differs: `localllm show`")
    assert [each["mismatch"] for each in localllm("ls", "--json").json["models"]] == ["", model["reason"]]
    assert f"{model['reason']} Download or copy it again" in localllm("show", "m").out
    assert localllm("show", "m", "--json").json["mismatch"] == model["reason"]
    assert localllm("verify", "m", "--record").status == 0
    assert "differs" not in localllm("ls").out
    assert "mismatch" not in localllm("show", "m").out
    assert localllm("verify").status == 0


def test_show_prints_a_recorded_hash(localllm: Run, models: Path) -> None:
    small_model(models / "me" / "x" / "m.gguf")
    assert "unknown until `localllm verify`" in localllm("show", "m").out
    localllm("verify", "m")
    assert len(localllm("show", "m", "--json").json["sha256"][0]) == 64


URL = "https://huggingface.co/org/base"


def test_a_model_is_shown_as_one_object_with_documented_keys(localllm: Run) -> None:
    output = localllm("show", "guide", "--json").json
    assert output["architecture"] == "llama"
    assert output["kv_bytes_per_token"] > 0
    keys = ["path", "files", "sha256", "mismatch", "template_base", "tuned", "source", "sampling", "rows"]
    assert list(output)[-len(keys) :] == keys


def test_all_files_of_a_split_model_are_listed(localllm: Run, models: Path) -> None:
    paths = small_shards(models / "me" / "x" / "big.gguf", 2)
    output = localllm("show", "big-00001-of-00002", "--json").json
    assert output["files"] == [str(path) for path in paths]
    assert output["file_bytes"] == sum(path.stat().st_size for path in paths)
    assert output["sha256"] == [None, None]


@pytest.fixture
def base(home: Path) -> Path:
    """The tokenizer's settings of a repository in the Hugging Face cache."""
    path = home / ".cache/huggingface/hub/models--org--base/snapshots/c1/tokenizer_config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"chat_template": "one\ntwo"}))
    return path


def test_a_template_is_compared_with_that_of_a_base_that_is_here(localllm: Run, models: Path, base: Path) -> None:
    texts = {"general__base_model__0__repo_url": URL}
    small_model(models / "me" / "x" / "same.gguf", tokenizer__chat_template="one\ntwo", **texts)
    small_model(models / "me" / "x" / "other.gguf", tokenizer__chat_template="one\n2\n3", **texts)
    assert "the same as in org/base" in localllm("show", "same").out
    assert "differs from org/base (2 lines added, 1 removed" in localllm("show", "other").out
    assert "-two\n+2\n+3" in localllm("show", "other", "--template").out
    base.unlink()
    assert "base" not in localllm("show", "other").out
    assert localllm("show", "other", "--template").out == "one\n2\n3\n"


def test_show_prints_nothing_that_a_terminal_would_obey(localllm: Run, models: Path) -> None:
    evil = "\x1b]8;;http://x\x07y\u202e"
    small_model(models / "me" / "x" / "m.gguf", evil, general__license=evil, tokenizer__chat_template=evil)
    for arguments in ((), ("--template",)):
        assert not set("\x1b\x07\u202e") & set(localllm("show", "m", *arguments).out)


@pytest.mark.slow
def test_measured_tuning_is_shown(localllm: Run, home: Path) -> None:
    tuned = SpeedMeasurement(
        RuntimeSettings(4, flash_attention=True, extra_buffers=False), 120.0, ((0, 30.0), (1024, 20.5)), ()
    )
    guide = Path(str(files("assets") / "guide" / "guide-Q8_0.gguf"))
    TuneFile(home / "cache").store(tune_key(read_header(guide)), guide.name, [tuned])
    expected = "fused attention, 4 threads: 120.0 tok/s of prompt; tok/s of answer by tokens in the cache: "
    assert expected + "30.0 at 0, 20.5 at 1024" in localllm("show", "guide").out
