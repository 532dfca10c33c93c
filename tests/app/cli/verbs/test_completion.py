from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.cli.in_process import TELLS_MODULES
from tests.app.small_models import small_model
from tests.patience import PATIENCE_S

Run = Callable[..., Any]


@pytest.mark.parametrize(("shell", "mark"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete --")])
def test_each_shell_gets_its_script(localllm: Run, shell: str, mark: str) -> None:
    ran = localllm("completion", shell)
    assert ran.status == 0
    assert mark in ran.out
    assert "_LOCALLLM_COMPLETE" in ran.out


def _offered(words: str) -> tuple[list[str], set[str]]:
    """What is offered for the last of `words`, and the modules that took."""
    typed = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", TELLS_MODULES],
        env={**os.environ, **typed, "_LOCALLLM_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return done.stdout.split(), set(done.stderr.split())


@pytest.mark.slow
def test_models_are_offered_by_what_their_names_begin_with(models: Path) -> None:
    for name in ("qwen-q4", "qwen-q8", "Qwen-big", "other"):
        small_model(models / "me" / "x" / f"{name}.gguf")
    assert _offered("localllm rm qw")[0] == ["plain,Qwen-big", "plain,qwen:q4", "plain,qwen:q8"]
    assert _offered("localllm rm qwen:")[0] == ["plain,qwen:q4", "plain,qwen:q8"]
    assert _offered("localllm show gu")[0] == ["plain,guide"]


def test_files_are_offered_where_no_model_fits(home: Path) -> None:
    assert _offered("localllm import ./x")[0] == ["file,./x"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such names there")
def test_a_name_that_a_terminal_would_obey_is_offered_without_that(models: Path) -> None:
    small_model(models / "me" / "x" / "m\x1b[2J.gguf")
    small_model(models / "me" / "x" / "m\nplain,n.gguf")
    assert _offered("localllm show m")[0] == ["plain,m-plain-n", "plain,m-2J"]


def test_verbs_are_offered_without_importing_any(home: Path) -> None:
    offered, modules = _offered("localllm pr")
    assert offered == ["plain,prune"]
    assert {"app.cli.verbs.library", "rich", "numpy"} & modules == set()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_takes_its_script(localllm: Run, tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(localllm("completion", "bash").out)
    done = subprocess.run(["bash", "-c", f"source {script} && complete -p localllm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "_localllm_completion" in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("typed", "replies"),
    [
        ("localllm pru", ["prune"]),
        ("localllm rm qw", ["qwen:q4"]),
        ("localllm rm qwen:", ["q4"]),
        ("localllm rm qwen:q", ["q4"]),
        ("localllm rm other qwen:q", ["q4"]),
        ("localllm rm qwen:q4 oth", ["other"]),
        ("localllm show ", ["guide", "other", "qwen:q4"]),
    ],
)
def test_bash_completes_names_with_a_colon(command: Path, typed: str, replies: list[str]) -> None:
    """Bash (5.2) gives the function the words between blanks and colons, the colons too."""
    parts = [part for part in re.split(r" |(:)", typed) if part is not None]
    words = [part for index, part in enumerate(parts) if part or index == len(parts) - 1]
    done = subprocess.run(
        [
            "bash",
            "--norc",
            "-c",
            f"source {command / 'localllm.bash'}; COMP_LINE={shlex.quote(typed)}; COMP_POINT=${{#COMP_LINE}}; "
            f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
            '_localllm_completion localllm; printf "%s\\n" "${COMPREPLY[@]}"',
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.stderr, sorted(done.stdout.split())) == ("", replies)


@pytest.fixture
def command(home: Path, models: Path, localllm: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `localllm` as a command on the PATH, zsh's and fish's scripts; the library holds two models."""
    for name in ("qwen-q4", "other"):
        small_model(models / "me" / "x" / f"{name}.gguf")
    folder = home / "bin"
    folder.mkdir()
    (folder / "localllm").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m tui "$@"\n')
    (folder / "localllm").chmod(0o755)
    (folder / "localllm.bash").write_text(localllm("completion", "bash").out)
    (folder / "_localllm").write_text(localllm("completion", "zsh").out)
    (folder / "localllm.fish").write_text(localllm("completion", "fish").out)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    monkeypatch.setenv("HOME", str(home))
    return folder


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_offers_verbs_options_and_models(command: Path) -> None:
    asked = "; ".join(f"complete -C {shlex.quote(f'localllm {words}')}" for words in ("pru", "pull --quan", "rm qw"))
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {command / 'localllm.fish'}; {asked}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.stderr == ""
    assert [line.split("\t")[0] for line in done.stdout.splitlines() if line] == ["prune", "--quantize", "qwen:q4"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
@pytest.mark.parametrize(
    ("typed", "completed"), [("localllm pru", "localllm prune"), ("localllm show oth", "localllm show other")]
)
def test_zsh_completes_verbs_and_models_at_tab(command: Path, typed: str, completed: str) -> None:
    import pty  # not on Windows

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as shell:
        os.close(theirs)
        try:
            script = f"PS1=; fpath=({command} $fpath); autoload -U compinit; compinit -u -D; echo rea''dy\n"
            os.write(ours, script.encode())
            _wait_for(ours, "ready\r\n")
            os.write(ours, f"{typed}\t".encode())
            _wait_for(ours, completed)
        finally:
            shell.kill()
            os.close(ours)


def _wait_for(terminal: int, text: str) -> None:
    """Read what a terminal shows until `text` is there."""
    seen, give_up_s = b"", time.monotonic() + 30
    while text.encode() not in seen:
        assert time.monotonic() < give_up_s, seen
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096)
