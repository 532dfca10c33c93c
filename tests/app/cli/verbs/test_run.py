from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.cli.main import main
from quantizer.system.process import python_command
from tests.app.chat.attachments.files import picture_of
from tests.app.running import RunningService
from tests.patience import PATIENCE_S


@dataclass(frozen=True)
class Done:
    """How a command ended and what it printed."""

    status: int | str | None
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(
    environment: Mapping[str, str],
    service: RunningService,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """`localllm run` in this process, where a service runs already."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCALLLM_PORT", service.url.rpartition(":")[2])

    def run(*arguments: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as leaving:
            main(["run", *arguments])
        return Done(leaving.value.code, *capsys.readouterr())

    return run


def test_an_answer_goes_to_stdout_and_the_stats_to_stderr(run: Run) -> None:
    done = run("-p", "hello", "--max-tokens", "8", "--temp", "0", "--stats")
    assert done.status == 0
    assert 1 <= len(done.stdout) <= 9
    assert done.stdout.endswith("\n")
    assert "tok/s" in done.stderr


def test_the_json_is_one_object(run: Run) -> None:
    answer = json.loads(run("-p", "hello", "--max-tokens", "8", "--seed", "1", "--json").stdout)
    assert set(answer) == {"text", "reasoning", "finish_reason", "usage", "timings", "model"}
    assert answer["model"] == "tiny"
    assert answer["usage"]["completion_tokens"] <= 8


def _n_prompt_tokens(done: Done) -> int:
    n_tokens: int = json.loads(done.stdout)["usage"]["prompt_tokens"]
    return n_tokens


def test_piped_text_is_one_prompt_and_follows_an_argument(run: Run, tiny_model: Path) -> None:
    overhead = len("<user>\n<assistant>")
    options = ("--max-tokens", "1", "--json")
    assert _n_prompt_tokens(run(*options, stdin=b"two\nlines\n")) == overhead + len("two\nlines")
    both = run(str(tiny_model), "Sum up:", *options, stdin=b"text\n")
    assert _n_prompt_tokens(both) == overhead + len("Sum up:\n\ntext")
    system = run("-p", "hi", "--system", "Be brief.", *options)
    assert _n_prompt_tokens(system) == overhead + len("<system>Be brief.\n") + len("hi")


@pytest.mark.parametrize(
    ("arguments", "stdin", "status", "words"),
    [
        ((), b"", 2, "no prompt"),
        (("--json",), b"", 2, "no prompt"),
        (("What is it?",), b"", 2, "is not a model"),
        (("-p", "a", "-m", "tiny", "tiny"), b"", 2, "twice"),
        (("-p", "a", "--temp", "nan"), b"", 2, "--temp"),
        (("-p", "a", "--max-tokens", "0"), b"", 2, "max-tokens"),
        ((), b"\xff\xfe\xff", 2, "UTF-8"),
        (("-p", "a", "--temp", "-1"), b"", 2, "temperature"),
        (("-p", "a", "--think", "hard"), b"", 2, "think is hard"),
        (("nope", "-p", "a"), b"", 1, "no model 'nope'"),
        (("gone/nope.gguf", "-p", "a"), b"", 1, "nope.gguf"),
        (("-p", "refuse me"), b"", 1, "template"),
        (("-p", "x" * 5000), b"", 1, "context holds 4096"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_on_stderr(
    run: Run, arguments: tuple[str, ...], stdin: bytes, status: int, words: str
) -> None:
    done = run(*arguments, stdin=stdin)
    assert (done.status, done.stdout) == (status, "")
    assert words in done.stderr


def test_a_picture_for_a_model_that_does_not_see_is_refused_with_what_to_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(picture_of())
    done = run("tiny", "What is this?", str(tmp_path / "photo.png"))
    assert (done.status, done.stdout) == (1, "")
    assert "reads only text" in done.stderr
    assert "localllm pull" in done.stderr


def test_an_engine_elsewhere_answers_too(run: Run, service: RunningService) -> None:
    answer = json.loads(run("-p", "hello", "--max-tokens", "3", "--connect", service.url, "--json").stdout)
    assert (answer["model"], answer["usage"]["completion_tokens"]) == ("tiny", 3)
    gone = run("-p", "hello", "--connect", "http://127.0.0.1:9")
    assert (gone.status, gone.stdout) == (1, "")
    assert "No engine answers" in gone.stderr


@pytest.mark.slow
def test_with_no_service_it_starts_one_and_runs_no_folder_named_app_that_lies_here(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    for package in ("app", "app/engine", "app/cli"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('somebody else')")
    done = subprocess.run(
        python_command("app.cli.main", "run", "-p", "hello", "--max-tokens", "3"),
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="closes a pipe as POSIX does")
def test_stdin_that_is_closed_is_no_prompt(environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" <&-', "sh", *python_command("app.cli.main", "run")],
        env=environment,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert b"no prompt" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("verb", [("run",), ("chat", "--inline", "-m")])
def test_a_missing_file_is_an_error_before_a_service_is_started(
    environment: Mapping[str, str], tmp_path: Path, verb: tuple[str, ...]
) -> None:
    cache = tmp_path / "cache"
    command = python_command("tui", *verb, str(tmp_path / "gone.gguf"))
    done = subprocess.run(
        command,
        input="hello",
        capture_output=True,
        text=True,
        env={**environment, "LOCALLLM_CACHE_DIR": str(cache), "LOCALLLM_PORT": "0"},
        check=False,
    )
    assert done.returncode == 1
    assert "gone.gguf. Check the path." in done.stderr
    assert not (cache / "service.log").exists()
