"""What is asked of the process that makes a dry run, and its answer.

llama.cpp may end that process over a strange file: then that is told, and nothing else is lost. Knows nothing of plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.engine.model_task import run_child
from offload.footprint.profile import RunConfig
from offload.placement.load_parameters import ON_HOST, LoadMode, LoadParameters
from quantizer.process import python_command

__all__ = ["DryRunRequest", "compute_by_device", "dry_run_request", "request_of"]


@dataclass(frozen=True, slots=True)
class DryRunRequest:
    """A context as the engine would make it of the model at `path`, which the gate has let through, placed somewhere.

    All `n_sequences` that it answers at once, and those kept beside them, share its cells. `rpc` are the servers whose
    devices may be among those of `parameters`.
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
    """Return what asks for a dry run of the model at `path` under `setting`."""
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
    """Return the bytes that each device computes in, by its name. Raises EngineError, or what the process died of."""
    (said,) = run_child(python_command("app.engine.load.dry_run_process"), asdict(request))
    found: dict[str, int] = said["compute_bytes"]
    return found


def request_of(said: Mapping[str, Any]) -> DryRunRequest:
    """Return the request that `dataclasses.asdict` made `said` of, after it went through JSON."""
    fields = dict(said["parameters"])
    lists = {name: tuple(fields[name]) for name in ("devices", "tensor_split")}
    parameters = LoadParameters(**fields | lists | {"load_mode": LoadMode(fields["load_mode"])})
    return DryRunRequest(**{**said, "parameters": parameters, "rpc": tuple(said["rpc"])})
