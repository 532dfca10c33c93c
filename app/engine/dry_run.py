"""What is asked of the process that makes a dry run, and its answer.

llama.cpp may end that process over a strange file: then that is told, and nothing else is lost. Knows nothing of plans.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from app.engine.child import lines_of
from app.processes import python_module
from offload.profile import Setting

__all__ = ["DryRunRequest", "dry_compute_bytes"]


@dataclass(frozen=True, slots=True)
class DryRunRequest:
    """A context as the engine would make it of the model at `path`, which the gate has let through.

    All sequences share its cells.
    """

    path: str
    n_cells: int
    n_sequences: int
    n_ubatch: int
    kv_type: str
    is_fused: bool


def dry_compute_bytes(path: Path, setting: Setting) -> int:
    """Return the bytes that the model at `path` computes in under `setting`. Raises EngineError, or what it died of."""
    request = DryRunRequest(
        str(path), setting.n_cells, setting.n_sequences, setting.n_ubatch, str(setting.kv_types), setting.is_fused
    )
    (said,) = lines_of(python_module("app.engine.dry_run_process"), asdict(request))
    return sum(said["buffers"].values())
