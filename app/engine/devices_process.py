"""The process that lists GPUs: `python -m app.engine.devices_process`. A driver that dies takes only this with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict

from app.engine.child import Line, serve

__all__: list[str] = []


def _work(_request: Line) -> Iterator[Line]:
    from app.engine.llama.devices import ggml_gpus

    for device in ggml_gpus():
        yield asdict(device)


if __name__ == "__main__":
    sys.exit(serve(_work))
