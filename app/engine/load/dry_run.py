"""The dry run: a process of its own loads a model without its weights and returns its compute buffers.

llama.cpp may crash on a strange file; then only that process ends. `python -m app.engine.load.dry_run` is the child,
with a request on stdin. Knows nothing of plans.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.engine.model_task import Message, run_child, serve
from offload.footprint.profile import RunConfig
from offload.placement.load_parameters import ON_HOST, LoadMode, LoadParameters
from quantizer.process import python_command

__all__ = ["DryRunRequest", "compute_by_device", "dry_run_request", "request_from_json"]


@dataclass(frozen=True, slots=True)
class DryRunRequest:
    """A context as the engine would make it of the validated model at `path`, with its layers placed.

    All `n_sequences` that it answers at once, and the cached ones beside them, share its cells. `rpc` are the servers
    whose devices may be among those of `parameters`.
    """

    path: str
    n_cells: int
    n_sequences: int
    n_ubatch: int
    kv_type: str
    is_fused: bool
    parameters: LoadParameters = ON_HOST
    rpc: tuple[str, ...] = ()


def dry_run_request(path: Path, setting: RunConfig, parameters: LoadParameters = ON_HOST) -> DryRunRequest:
    """Return the request for a dry run of the model at `path` with `setting`."""
    return DryRunRequest(
        str(path),
        setting.n_cells,
        setting.n_sequences,
        setting.n_ubatch,
        str(setting.kv_types),
        setting.is_fused,
        parameters,
    )


def compute_by_device(request: DryRunRequest) -> dict[str, int]:
    """Return the bytes of compute buffers by device name. Raises the UserError of the child, or EngineError."""
    (line,) = run_child(python_command("app.engine.load.dry_run"), asdict(request))
    compute_bytes: dict[str, int] = line["compute_bytes"]
    return compute_bytes


def request_from_json(line: Mapping[str, Any]) -> DryRunRequest:
    """Return the request that `dataclasses.asdict` and JSON made `line` of."""
    fields = dict(line["parameters"])
    lists = {name: tuple(fields[name]) for name in ("devices", "tensor_split")}
    parameters = LoadParameters(**fields | lists | {"load_mode": LoadMode(fields["load_mode"])})
    return DryRunRequest(**{**line, "parameters": parameters, "rpc": tuple(line["rpc"])})


def _work(line: Message) -> Iterator[Message]:
    from app.engine.llama.dry_run import dry_compute_bytes
    from app.engine.llama.rpc import add_rpc_servers

    request = request_from_json(line)
    add_rpc_servers(request.rpc)
    yield {"compute_bytes": dry_compute_bytes(request)}


if __name__ == "__main__":
    sys.exit(serve(_work))
