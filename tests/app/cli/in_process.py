"""The command line run in the test's own process: its imports are paid once, its children are real."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest import mock
from warnings import catch_warnings

from app.cli.main import main

__all__ = ["TELLS_MODULES", "json_of", "run_localllm"]

# `python -c`: the command line in a process of its own, and then, on stderr, what it has imported.
TELLS_MODULES = """
import sys
from app.cli.main import main
try:
    main()
finally:
    print(" ".join(sys.modules), file=sys.stderr)
"""


def run_localllm(environment: Mapping[str, str], *arguments: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """Return the exit status and the output of `localllm ARGUMENTS` with an empty stdin."""
    words = list(map(str, arguments))
    stdin, out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(3))
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch("sys.stdin", stdin),
        redirect_stdout(out),
        redirect_stderr(err),
        chdir(cwd or Path.cwd()),
        mock.patch("sys.unraisablehook", sys.unraisablehook),  # a process that ends may change these
        catch_warnings(),
    ):
        try:
            main(words)
        except SystemExit as ended:
            status = ended.code
    assert isinstance(status, int)
    return CompletedProcess(words, status, _text(out), _text(err))


def json_of(done: CompletedProcess[str]) -> Any:
    """Return what a command printed as JSON, once it has succeeded."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _text(stream: io.TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8")
