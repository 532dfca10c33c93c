"""Runs commands of localllm in forks of one process that has imported it: most of a short command's time is imports.

Owns that process, in which calls may be made to fail, and its protocol: a line of JSON asks for a command, one answers
with its status. The forks end as a process of its own does. POSIX only.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantizer.system.process import python_command
from tests.battery.faults.injector import arm

__all__ = ["Forks"]

# What the commands import when they are called.
_IMPORTS = (
    *("tui.__main__", "app.cli.main", "app.cli.prompts", "app.cli.answering", "app.client.launcher"),
    *("app.cli.verbs.run", "app.cli.verbs.chats", "app.cli.verbs.hub", "app.cli.verbs.quantize", "app.cli.verbs.batch"),
    *("app.cli.verbs.library", "app.cli.verbs.plan", "app.chat.store.chat_store", "app.chat.files", "app.batch.run"),
    *("app.library.pulling.puller", "app.library.local.removal", "quantizer.gguf.validation", "filelock", "httpx"),
)


class Forks:
    """The process, with more variables of `environment`; what its forks print goes to files of `folder`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            python_command("tests.battery.faults.forks"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
        )

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], place: Path, piped: str, bound_s: float, armed: str
    ) -> tuple[int | None, str, str]:
        """Run a command in the folder `place`; return its status, None if it did not end in `bound_s`, and what it
        printed. Calls count from its begin on in the file `armed`, "" for none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        output, errors = self._folder / "output", self._folder / "errors"
        (self._folder / "input").write_text(piped, encoding="utf-8")
        request = {
            "words": list(words),
            "environment": dict(environment),
            "place": str(place),
            "files": [str(self._folder / name) for name in ("input", "output", "errors")],
            "armed": armed,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        process_id = int(self._process.stdout.readline())
        timer = threading.Timer(bound_s, os.kill, (process_id, 9))
        timer.start()
        status = int(self._process.stdout.readline())
        is_late = not timer.is_alive()
        timer.cancel()
        return None if is_late else status, *(path.read_text("utf-8", "replace") for path in (output, errors))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _be(request: Mapping[str, Any]) -> None:
    """Be the command, and end this process."""
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    os.chdir(request["place"])
    for descriptor, name in enumerate(request["files"]):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(name, flags, 0o600), descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(descriptor, mode, encoding="utf-8", closefd=False) for descriptor, mode in enumerate("rww")
    )
    sys.argv = ["localllm", *request["words"]]
    if request["armed"]:
        arm(request["armed"])
    status: object = 0
    try:
        from tui.__main__ import main as localllm

        localllm()
    except SystemExit as left:
        status = left.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        print(status, file=sys.stderr)
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # as at the end of a process: it waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        status = 120
    os._exit(status if isinstance(status, int) else int(status is not None))


def main() -> None:
    for name in _IMPORTS:
        importlib.import_module(name)
    gc.freeze()
    with contextlib.suppress(BrokenPipeError):  # whoever asks has been ended
        for line in sys.stdin:
            process_id = os.fork()
            if not process_id:
                _be(json.loads(line))
            print(process_id, flush=True)
            print(os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
