from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REAL_DEPTH = Path(__file__).with_name("real_depth.py")


def test_fused_attention_attends_to_overlaid_states_too(tiny_model: Path) -> None:
    run = subprocess.run([sys.executable, str(REAL_DEPTH), str(tiny_model)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    for same, overlaid, overlaid_again in json.loads(run.stdout).values():
        assert same < 1e-3
        assert overlaid > 1e-2
        assert overlaid_again < 1e-3
