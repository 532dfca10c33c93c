"""Quantizing a real model to one type: the size of its file, and what it lost."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from quantizer.gguf.tensor_types import FILE_TYPES, file_type_named
from quantizer.gguf.validation import validate_gguf
from quantizer.system.process import python_command
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan

__all__ = ["Loss", "quantized_loss"]


@dataclass(frozen=True, slots=True)
class Loss:
    """How a quantized model predicts a text: its perplexity, and the divergence from its original in nats a token."""

    perplexity: float
    kld: float


def quantized_loss(source: Path, name: str, output: Path, imatrix: Path | None = None) -> Loss:
    """Write `source` as type `name`, assert that the file is as planned, and return what was lost."""
    planned = plan(source, file_type_named(name), output, PlanOptions(imatrix=str(imatrix or "")))
    execute(planned, 2, False, lambda _done: None)
    header = validate_gguf(output)
    assert output.stat().st_size == planned.n_bytes == header.file_bytes
    assert header.integer("general.file_type") == FILE_TYPES[name].ftype_id
    command = python_command("tests.real.score", str(output), str(source))
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    output.unlink()
    assert run.returncode == 0, run.stderr
    return Loss(**json.loads(run.stdout))
