"""The process that loads a model without its weights: `python -m app.engine.load.dry_run_process`, a request on stdin.

Says one line, the bytes that each device computes in. Knows nothing of what they are asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from app.engine.llama.dry_run import dry_compute_bytes
from app.engine.llama.rpc import add_rpc_servers
from app.engine.load.dry_run import request_of
from app.engine.model_task import Line, serve


def _work(request: Line) -> Iterator[Line]:
    asked = request_of(request)
    add_rpc_servers(asked.rpc)
    yield {"compute_bytes": dry_compute_bytes(asked)}


if __name__ == "__main__":
    sys.exit(serve(_work))
