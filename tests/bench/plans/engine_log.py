"""What llama.cpp logs, kept as text, and the sizes of buffers in it."""

from __future__ import annotations

import ctypes
from collections import defaultdict

from app.engine.llama.native import lib, parse_buffer

__all__ = ["EngineLog"]

_MIB = 1 << 20


class EngineLog:
    """Everything that was said since `text` was emptied; the process's only receiver while it lives."""

    def __init__(self) -> None:
        self.text = ""
        self.callback = lib.llama_log_callback(self._receive)
        lib.llama_log_set(self.callback, ctypes.c_void_p())

    def _receive(self, _level: int, text: bytes, _data: object) -> None:
        self.text += text.decode("utf-8", "replace")

    def buffers(self) -> dict[tuple[str, str], float]:
        """MiB, as printed, by device and kind: model, KV, RS or compute."""
        found: dict[tuple[str, str], float] = defaultdict(float)
        for buffer in filter(None, map(parse_buffer, self.text.splitlines())):
            found[buffer.name, buffer.kind] += round(buffer.n_bytes / _MIB, 2)
        return found

    def buffers_of(self, kind: str) -> float:
        """MiB of one kind on all devices."""
        return sum(mib for (_, found), mib in self.buffers().items() if found == kind)
