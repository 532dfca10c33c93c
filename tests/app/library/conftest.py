"""Makes the test hub, and descriptions of machines and models, importable by every test of the library."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "offload")]
