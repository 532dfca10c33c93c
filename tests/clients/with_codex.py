"""Codex in one-shot mode, over /v1/responses: it says what the fake model says, also after a picture in its session.

It looks at a picture, which the model cannot see, and reads a file, as the model calls.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from asking import FAKE, MODEL, PICTURE, SAID, call, say

provider = {
    "model_provider": '"here"',
    "model": f'"{MODEL}"',
    "model_providers.here.name": '"here"',
    "model_providers.here.base_url": f'"{FAKE}/v1"',
    "model_providers.here.wire_api": '"responses"',
}
flags = [flag for name, value in provider.items() for flag in ("-c", f"{name}={value}")]


def run(folder: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it with `arguments`, and return what it said."""
    command = [os.environ["CLIENT_COMMAND"], "exec", "--skip-git-repo-check", *flags]
    return subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )


with tempfile.TemporaryDirectory() as folder:
    done = run(folder, say(SAID))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith(SAID), done.stdout

    Path(folder, "picture.png").write_bytes(PICTURE)
    Path(folder, "note.txt").write_text(say(SAID), encoding="utf-8")
    calls = call("view_image", path=f"{folder}/picture.png") + call("exec_command", cmd="cat note.txt")
    # its own sandbox needs rights that a container lacks
    done = run(folder, "--sandbox", "danger-full-access", say(calls))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith(SAID), done.stdout

    refused = run(folder, "-i", "picture.png", "--", "What is this?")
    assert "this model reads only text" in refused.stdout + refused.stderr, refused
    later = run(folder, "resume", "--last", say(SAID))
    assert later.stdout.strip().endswith(SAID), later.stdout + later.stderr
