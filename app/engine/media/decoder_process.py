"""The child process that decodes pictures and sounds; it is killed when one takes too long.

`app.engine.media.decode` is what it runs.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import numpy as np

from app.common.media_formats import MediaKind
from app.engine.media.chunks import Picture, Sound
from app.protocol.errors import RequestError
from quantizer.figures import format_figure
from quantizer.system.errors import EngineError
from quantizer.system.memory_limit import ProcessBytes, check_memory_limit
from quantizer.system.process import child_environment, python_command
from quantizer.system.process_tree import ChildWatch

PICTURE_TIMEOUT_S = 2.0
SOUND_TIMEOUT_S = 2.0  # and for each MiB
_S_PER_SOUND_MIB = 0.3  # an MP3 of 30 minutes decodes in 3 s
START_TIMEOUT_S = 30.0  # Python may start this slowly from a cold disk; a file gets its own time
_MAX_FILE_BYTES = 256 << 20
_MAX_HEADER_BYTES = 65_536
_NAME = "media decoder"


class DecoderProcess:
    """A `MediaDecoder` in a child that starts at its first use and again after it was killed."""

    def __init__(self, picture_timeout_s: float = PICTURE_TIMEOUT_S, sound_timeout_s: float = SOUND_TIMEOUT_S) -> None:
        self._picture_timeout_s, self._sound_timeout_s = picture_timeout_s, sound_timeout_s
        self._child: subprocess.Popen[bytes] | None = None

    def picture(self, data: bytes) -> Picture:
        reply, rgb = self._decode({"media": MediaKind.PICTURE}, data, self._picture_timeout_s)
        return Picture(reply["width"], reply["height"], rgb)

    def sound(self, data: bytes, sample_rate: int) -> Sound:
        timeout_s = self._sound_timeout_s + _S_PER_SOUND_MIB * len(data) / (1 << 20)
        _, samples = self._decode({"media": MediaKind.SOUND, "sample_rate": sample_rate}, data, timeout_s)
        return Sound(np.frombuffer(samples, np.float32))

    def close(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):  # what was not written to a dead child
                    pipe.close()

    def _decode(self, job: dict[str, Any], data: bytes, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """Return the child's reply and the bytes after it. Raises RequestError for what it refuses or dies of."""
        media = job["media"]
        if len(data) > _MAX_FILE_BYTES:
            cause = f"A {media} has {len(data) >> 20} MiB."
            raise RequestError(cause, f"Send at most {_MAX_FILE_BYTES >> 20} MiB.")
        child = self._child or self._start()
        with ChildWatch(child, timeout_s) as watch:
            try:
                reply, decoded = _exchange(child, job, data)
            except (OSError, ValueError):
                self.close()
                cause = f"A {media} ended the {_NAME}: the file is damaged, or it needs too much memory."
                if watch.excess:
                    cause = f"A {media} took more than {format_figure(timeout_s, 2)} s to decode."
                remedy = f"Send another {media}, or save it again with a program that can open it."
                raise RequestError(cause, remedy) from None
        if "cause" in reply:
            raise RequestError(reply["cause"], reply["remedy"])
        return reply, decoded

    def _start(self) -> subprocess.Popen[bytes]:
        check_memory_limit(_NAME, ProcessBytes.JOB)
        command = python_command("app.engine.media.decode")
        options: dict[str, Any] = {}
        if sys.platform == "win32":
            options["creationflags"] = subprocess.CREATE_NO_WINDOW
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(), **options
            )
        except OSError as error:
            cause = f"The {_NAME} cannot be started: {error.strerror}."
            raise EngineError(cause, "Free memory or processes.") from error
        self._child = child
        with ChildWatch(child, START_TIMEOUT_S):
            try:
                _exchange(child, {"media": MediaKind.PICTURE}, b"")
            except (OSError, ValueError):
                self.close()
                raise EngineError(f"The {_NAME} does not start.", "Install localllm again, or free memory.") from None
        return child


def _exchange(child: subprocess.Popen[bytes], job: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """Send a job and return the reply and the bytes after it. Raises OSError and ValueError if the child dies."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps({**job, "n_bytes": len(data)}).encode() + b"\n")
    child.stdin.write(data)
    child.stdin.flush()
    reply: dict[str, Any] = json.loads(child.stdout.readline(_MAX_HEADER_BYTES))
    decoded = child.stdout.read(reply["n_bytes"])
    if len(decoded) != reply["n_bytes"]:
        raise ValueError("the child died while it replied")
    return reply, decoded
