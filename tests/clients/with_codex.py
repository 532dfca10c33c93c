"""Codex in one-shot mode, over /v1/responses: it says what the fake model says."""

from __future__ import annotations

import os
import subprocess
import tempfile

from asking import FAKE, MODEL, SAID, say

provider = {
    "model_provider": '"here"',
    "model": f'"{MODEL}"',
    "model_providers.here.name": '"here"',
    "model_providers.here.base_url": f'"{FAKE}/v1"',
    "model_providers.here.wire_api": '"responses"',
}
flags = [flag for name, value in provider.items() for flag in ("-c", f"{name}={value}")]
with tempfile.TemporaryDirectory() as folder:
    command = [
        os.environ["CLIENT_COMMAND"],
        "exec",
        "--skip-git-repo-check",
        "--sandbox",
        "read-only",
        *flags,
        say(SAID),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith(SAID), done.stdout
