"""The dry run: a process of its own loads a model without its weights and returns its compute buffers.

llama.cpp may crash on a strange file; then only that process ends. `python -m app.engine.load.dry_run` is the child,
with a request on stdin. Independent of plans.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.engine.model_task import TaskProgress, run_task, serve_task
from offload.footprint.profile import RunConfig
from offload.placement.load_parameters import ON_HOST, LoadParameters


@dataclass(frozen=True, slots=True)
class DryRunRequest:
    """A context of the validated model at `path`, with its layers placed by `parameters`.

    The answers and the cached sequences beside them share its cells. `rpc` are the servers whose devices may be among
    those of `parameters`.
    """

    path: Path
    config: RunConfig
    parameters: LoadParameters = ON_HOST
    rpc: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _ComputeBuffers:
    n_bytes: Mapping[str, int]


def compute_by_device(request: DryRunRequest) -> dict[str, int]:
    """Return the bytes of compute buffers by device name. Raises the UserError of the child, or EngineError."""
    (buffers,) = run_task("app.engine.load.dry_run", request, TaskProgress, _ComputeBuffers)
    return dict(buffers.n_bytes)


def _dry_run(request: DryRunRequest) -> Iterator[_ComputeBuffers]:
    from app.engine.llama.devices import add_rpc_servers
    from app.engine.llama.model import dry_compute_bytes

    add_rpc_servers(request.rpc)
    yield _ComputeBuffers(dry_compute_bytes(request.path, request.config, request.parameters))


if __name__ == "__main__":
    sys.exit(serve_task(DryRunRequest, _dry_run))
