"""Compare the compute buffers of projectors that `offload` plans with those that libmtmd logs, at published shapes.

Run: `uv run python -m tests.bench.plans.compare_projectors [--golden tests/offload/projector_buffers.json] [NAME ...]`.
Projectors are sparse files, so nothing is downloaded; each is loaded, which takes the memory of its weights (up to
1.8 GB). `--golden` writes what was logged for the tests to compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from app.engine.llama.native import mtmd
from offload.footprint.auxiliary_models import projector_compute_bytes
from quantizer.gguf.projector_header import read_projector
from tests.bench.plans.engine_log import EngineLog
from tests.offload.projector_outlines import OUTLINES, write_outline

_MIB = 1 << 20


def measure(path: Path, log: EngineLog) -> float:
    """Return the MiB of all compute buffers of the projector at `path`, as printed."""
    binding = mtmd()
    binding.mtmd_helper_log_set(log.callback, None)
    log.text = ""
    params = binding.mtmd_context_params_default()
    params.use_gpu = params.print_timings = False
    projector = binding.mtmd_init_from_file(os.fsencode(path), None, params)
    if not projector:
        sys.exit(log.text)
    binding.mtmd_free(projector)
    return log.buffers_of("compute")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--golden", type=Path)
    options = parser.parse_args()
    logged, log = {}, EngineLog()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or OUTLINES:
            path = Path(folder) / f"{name}.gguf"
            write_outline(name, path)
            logged[name] = measure(path, log)
            planned = projector_compute_bytes(read_projector(path)) / _MIB
            path.unlink()
            print(f"{name:20} {logged[name]:9.2f} MiB, planned {planned:9.2f} ({planned / logged[name] - 1:+.1%})")
    if options.golden:
        options.golden.write_text(json.dumps(logged, indent=1) + "\n")


if __name__ == "__main__":
    main()
