"""The process that lists GPUs: `python -m app.engine.devices_process`, {"rpc": [servers to ask too]} on stdin.

A driver that dies takes only this with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict

from app.engine.child import Line, serve

__all__: list[str] = []


def _work(request: Line) -> Iterator[Line]:
    from app.engine.llama.devices import ggml_gpus
    from app.engine.llama.rpc import add_rpc_servers

    add_rpc_servers(request["rpc"])
    for device in ggml_gpus(with_links=True):
        yield asdict(device)


if __name__ == "__main__":
    sys.exit(serve(_work))
