"""Makes the test hub, and model files for it, importable by the tests of verbs that ask one."""

from __future__ import annotations

from pathlib import Path

_TESTS = Path(__file__).parents[2]
