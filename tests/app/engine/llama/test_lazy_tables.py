"""Per-layer embeddings that stay in the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quantizer.write.job import JobRequest, run_job
from tests.patience import PATIENCE_S
from tests.quantizer.seeing_checkpoints import write_seeing

REAL = Path(__file__).with_name("real_lazy_tables.py")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")
def test_a_model_computes_the_same_with_its_tables_in_the_file(tmp_path: Path) -> None:
    checkpoint, model = write_seeing(tmp_path / "checkpoint", "gemma4-seeing"), tmp_path / "m.gguf"
    list(run_job(JobRequest(str(checkpoint), "F32", str(model), 1, False)))
    done = subprocess.run(
        [sys.executable, str(REAL), str(model), "48"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    kept, lazy = map(json.loads, done.stdout.splitlines())
    assert lazy[-1] == kept[-1]
    assert lazy[1] < kept[1], "pages of the file in memory after the load"
