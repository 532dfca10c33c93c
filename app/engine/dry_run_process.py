"""The process that loads a model without its weights: `python -m app.engine.dry_run_process`, a request on stdin.

Says one line, the bytes of each compute buffer. Knows nothing of what they are asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from app.engine.child import Line, serve
from app.engine.dry_run import DryRunRequest
from app.engine.llama.dry_run import compute_buffers


def _work(request: Line) -> Iterator[Line]:
    yield {"buffers": compute_buffers(DryRunRequest(**request))}


if __name__ == "__main__":
    sys.exit(serve(_work))
