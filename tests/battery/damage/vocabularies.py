"""The child process that loads vocabularies with llama.cpp, started again where it dies."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from quantizer.system.process import python_command

__all__ = ["VocabularyChild"]


class VocabularyChild:
    """One `tests.battery.damage.vocabulary_loader` for many files. A context manager."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> VocabularyChild:
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()

    def answer(self, path: Path) -> str:
        """Return `loaded`, `refused`, or how llama.cpp died of the vocabulary in the GGUF at `path`."""
        child = self._child = self._child or subprocess.Popen(
            python_command("tests.battery.damage.vocabulary_loader"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},  # it would print where it dies, with a debugger
        )
        assert child.stdin
        assert child.stdout
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(f"{path}\n")
            child.stdin.flush()
            if answer := child.stdout.readline().strip():
                return answer
        return f"died with {self._end()}"

    def _end(self) -> int:
        """End the child and return how it ended."""
        child, self._child = self._child, None
        if child is None:
            return 0
        with contextlib.suppress(BrokenPipeError):
            child.communicate()  # closes what it reads
        return child.returncode
