from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping

import click
import pytest

from app import __version__
from app.cli import main as command_line
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import UsageError
from quantizer.system.process import python_command
from tests.app.cli.in_process import TELLS_MODULES
from tests.app.running import RunningService
from tests.patience import PATIENCE_S

HEAVY = {"llama_cpp", "numpy", "httpx", "rich", "textual", "starlette", "uvicorn", "pydantic", "gguf", "asyncio"}


def _run(*arguments: str, code: str = "from app.cli.main import main; main()") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, timeout=PATIENCE_S
    )


def test_help_lists_the_verbs_and_imports_nothing_heavy() -> None:
    done = _run("--help", code=TELLS_MODULES)
    assert done.returncode == 0
    for verb in ("run", "serve", "quantize", "bench", "show"):
        assert f"\n  {verb} " in done.stdout
    assert HEAVY & set(done.stderr.split()) == set()


@pytest.mark.parametrize("verb", command_line._VERBS)
def test_help_of_every_verb_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        command_line.main([verb, "-h"])
    assert leaving.value.code == 0
    assert f"Example: localllm {verb}" in capsys.readouterr().out


def test_the_version_is_printed() -> None:
    assert _run("--version").stdout == f"localllm {__version__}\n"


@pytest.mark.parametrize("arguments", [("frobnicate",), ("run", "--frobnicate"), ("serve", "--port", "x")])
def test_wrong_use_is_status_2(arguments: tuple[str, ...]) -> None:
    done = _run(*arguments)
    assert done.returncode == 2
    assert "Error: " in done.stderr


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("list", "Did you mean `localllm ls`?"),
        ("serv", "Did you mean `localllm serve`?"),
        ("model.gguf", "localllm run model.gguf"),
        ("zebra\x1b", "There is no command 'zebra\\x1b'."),
    ],
)
def test_a_word_that_is_no_verb_is_answered_with_what_may_be_meant(
    word: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        command_line.main([word])
    assert leaving.value.code == 2
    assert told in capsys.readouterr().err


def test_what_other_programs_call_a_verb_is_one_of_ours() -> None:
    assert {*command_line._ELSEWHERE.values()} <= {*command_line._VERBS, "--help"}
    assert not {*command_line._ELSEWHERE} & {*command_line._VERBS}


def _status_when_a_verb_raises(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    @click.command()
    def verb() -> None:
        raise error

    monkeypatch.setattr(command_line._Verbs, "get_command", lambda *_: verb)
    with pytest.raises(SystemExit) as leaving:
        command_line.main(["verb"])
    return leaving.value.code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelFileError("It is broken.", "Get another."), 1),
        (UsageError("It makes no sense.", "Do otherwise."), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_a_failure_is_a_sentence_and_a_status(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _status_when_a_verb_raises(error, monkeypatch) == status
    assert capsys.readouterr().err.strip() == ("" if status == 130 else f"Error: {error}")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "Error: The output cannot be written: No space left on device.",
        ),
        (OSError(errno.EMFILE, "Too many open files", "/d/a"), "Error: The command failed: Too many open files. End"),
        (
            OSError(errno.EIO, "Input/output error", "/d/a"),
            "Error: /d/a cannot be read or written: Input/output error.",
        ),
        (RuntimeError("can't start new thread"), "Error: The system lets the command start no more threads."),
    ],
)
def test_what_the_system_refuses_is_one_sentence_and_no_traceback(
    error: BaseException, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "say_no_more", lambda: None)  # that is for a process that ends
    assert _status_when_a_verb_raises(error, monkeypatch) == 1
    told = capsys.readouterr().err
    assert told.startswith(sentence)
    assert told.count("\n") == 1


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        _status_when_a_verb_raises(ZeroDivisionError(), monkeypatch)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="pipes break otherwise there")
def test_a_reader_that_leaves_ends_it_without_a_word(environment: Mapping[str, str], service: RunningService) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as broken:
        done = subprocess.run(
            python_command("app.cli.main", "run", "-p", "hello"),
            env={**environment, "LOCALLLM_PORT": service.url.rpartition(":")[2]},
            stdin=subprocess.DEVNULL,
            stdout=broken,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
        )
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no other system enforces limits of memory")
@pytest.mark.parametrize(("n_mib", "process"), [(30, "command"), (100, "command"), (150, "service")])
def test_under_a_limit_of_memory_a_command_ends_with_both_numbers(
    n_mib: int, process: str, environment: Mapping[str, str]
) -> None:
    limit = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({n_mib} << 20, {n_mib} << 20))"
    command = [*python_command("tui"), "run", "guide", "hello"]
    done = subprocess.run(
        [sys.executable, "-c", f"{limit}; os.execv(sys.argv[1], sys.argv[1:])", *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**environment},
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: Not enough memory: the {process} needs ")
    assert f" and may use {n_mib} MiB (ulimit -v)." in done.stderr
    assert done.stderr.count("\n") == 1
