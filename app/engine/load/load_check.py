"""The command that says whether llama.cpp loads a model file, and which of its tensors it does not read.

A file of the right size without weights is enough. The other end is `quantizer.write.load_check`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from quantizer.gguf.header import read_header
from quantizer.gguf.validation import tensors_of
from quantizer.system.child_request import Message, serve_request
from quantizer.system.process import python_command

LOAD_CHECK = tuple(python_command("app.engine.load.load_check"))


def unread_of(path: Path) -> list[str]:
    """Return the names of the tensors that llama.cpp does not read of the model at `path`. Raises EngineError with its
    message where it cannot load the file."""
    from app.engine.llama.model import unread_tensors  # native code, which user interfaces start without
    from app.engine.load.head_file import is_head

    header = read_header(path)
    # a draft head has a graph only beside its model
    return unread_tensors(path, [tensor.name for tensor in tensors_of(header)], has_graph=not is_head(header))


def _check(request: Message, send: Callable[[Message], None]) -> None:
    send({"unread": unread_of(Path(request["path"]))})


if __name__ == "__main__":
    sys.exit(serve_request(_check))
