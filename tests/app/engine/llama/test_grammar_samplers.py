"""Calls of a real model with random weights and the bytes as its tokens, sampled, read and checked in a child."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.battery.tally import Tally, read_tally

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("formats", ["hermes,qwen3-coder,gemma-4", "lfm2,llama-3,kimi-k2,gpt-oss"])
def test_every_call_parses_and_fits_its_schema(tiny_model: Path, formats: str) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.battery.clients.tool_calls",
        str(tiny_model),
        "--answers",
        "12",
        "--formats",
        formats,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert read_tally(done.stdout) == Tally(12, 0, 1), done.stdout + done.stderr
