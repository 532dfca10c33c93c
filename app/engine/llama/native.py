"""The native library itself: `lib`, what it logs, and what llama_cpp does not bind.

The only module that imports llama_cpp. Knows nothing of models.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import llama_cpp.llama_cpp as lib
from llama_cpp._ctypes_extensions import load_shared_library

from app.engine.backend import MemoryShortError
from app.engine.llama.buffers import Buffer, parse_buffer
from quantizer.errors import EngineError
from quantizer.folders import without_folders

__all__ = [
    "NativeLog",
    "NativeSampler",
    "Watch",
    "ggml_function",
    "hidden_states",
    "lib",
    "native_log",
    "refusal",
]

NativeSampler = Any  # a ctypes pointer to llama_sampler
EvalCallback = Any  # a ctypes function pointer, ggml_backend_sched_eval_callback
_N_KEPT_LOG_LINES = 50
_OF_MEMORY = re.compile(r"(failed|unable) to allocate|out of memory|OutOf(Device|Host)Memory")
_WARN, _ERROR, _CONTINUED = 3, 4, 5  # ggml_log_level@0.3.36; llama_cpp._logger has another, wrong order


class Watch(Protocol):
    """Something that llama.cpp asks about the nodes of its graphs; it lives as long as the contexts it is given to."""

    callback: EvalCallback


class NativeLog:
    """What llama.cpp says: the last warnings and errors are kept for error messages and passed to stderr.

    So are the sizes of the buffers that it makes.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_N_KEPT_LOG_LINES)
        self._level = 0
        self._buffers: list[Buffer] = []
        self._callback = lib.llama_log_callback(self._receive)  # must live as long as llama.cpp may call it
        lib.llama_log_set(self._callback, ctypes.c_void_p())

    def last_words(self, n_lines: int = 3) -> str:
        """Return the last lines on one line of text, without control characters and folders."""
        words = " ".join(without_folders(line) for line in list(self._lines)[-n_lines:])
        return "".join(character for character in words if character.isprintable())

    def taken_buffers(self) -> tuple[Buffer, ...]:
        """Return the buffers that were made since the last call."""
        buffers, self._buffers = tuple(self._buffers), []
        return buffers

    def _receive(self, level: int, text: bytes, data: object) -> None:  # noqa: ARG002 - llama.cpp passes it
        if level != _CONTINUED:
            self._level = level
        line = text.decode("utf-8", "replace").strip()
        if buffer := parse_buffer(line):
            self._buffers.append(buffer)
        if self._level in (_WARN, _ERROR) and line:
            self._lines.append(line)
            print(line, file=sys.stderr, flush=True)


@cache
def native_log() -> NativeLog:
    """Return the process's one log; llama.cpp knows only one receiver."""
    return NativeLog()


def refusal(what: str, words: str, remedy: str) -> EngineError:
    """Return the error for `what` failed, with llama.cpp's last `words`; its kind tells whether they are of memory."""
    kind = MemoryShortError if _OF_MEMORY.search(words) else EngineError
    return kind(f"{what}: {words}", remedy)


@cache
def hidden_states() -> Any:
    """Return llama.cpp's functions of hidden states, which it exports without calling them stable."""
    from llama_cpp import llama_cpp_ext

    return llama_cpp_ext


def ggml_function(name: str) -> Any:
    """Return a function of ggml, which llama_cpp does not bind; not every system finds it through libllama."""
    folder = Path(lib.__file__).parent / "lib"
    for library in (lib._lib, *(load_shared_library(part, folder) for part in ("ggml", "ggml-base"))):  # noqa: SLF001
        if hasattr(library, name):
            return getattr(library, name)
    raise EngineError(f"This build of llama.cpp has no {name}.", "Install llama-cpp-python again.")
