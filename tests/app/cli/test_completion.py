from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_models import small_model

Run = Callable[..., Any]
COMPLETES = """
import sys
from app.cli.main import main
try:
    main()
finally:
    print(" ".join(sys.modules), file=sys.stderr)
"""


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
        [sys.executable, "-P", "-c", COMPLETES],
        env={**os.environ, **typed, "_LOCALLLM_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.split(), set(done.stderr.split())


def test_models_are_offered_by_what_their_names_begin_with(models: Path) -> None:
    for name in ("qwen-q4", "qwen-q8", "Qwen-big", "other"):
        small_model(models / "me" / "x" / f"{name}.gguf")
    assert _offered("localllm rm qw")[0] == ["plain,Qwen-big", "plain,qwen-q4", "plain,qwen-q8"]
    assert _offered("localllm show gu")[0] == ["plain,guide"]


def test_files_are_offered_where_no_model_fits(home: Path) -> None:
    assert _offered("localllm import ./x")[0] == ["file,./x"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such names there")
def test_a_name_that_a_terminal_would_obey_is_not_offered(models: Path) -> None:
    small_model(models / "me" / "x" / "m\x1b[2J.gguf")
    small_model(models / "me" / "x" / "m\nplain,n.gguf")
    assert _offered("localllm show m")[0] == ["file,m"]


def test_verbs_are_offered_without_importing_any(home: Path) -> None:
    offered, modules = _offered("localllm pr")
    assert offered == ["plain,prune"]
    assert {"app.cli.prune", "rich", "numpy"} & modules == set()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_takes_its_script(localllm: Run, tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(localllm("completion", "bash").out)
    done = subprocess.run(["bash", "-c", f"source {script} && complete -p localllm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "_localllm_completion" in done.stdout
