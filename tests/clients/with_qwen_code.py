"""Qwen Code in one-shot mode, under the name of a hosted model: it reads a picture and a file, as the model says."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from asking import FAKE, PICTURE, SAID, call, say

HOSTED = "qwen3-vl-plus"  # by whose name it knows that pictures may be sent
settings = {"OPENAI_BASE_URL": f"{FAKE}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": HOSTED}
with tempfile.TemporaryDirectory() as folder:
    picture, note = (Path(folder).resolve() / name for name in ("picture.png", "note.txt"))
    picture.write_bytes(PICTURE)
    note.write_text(f"{say(SAID)}\n", encoding="utf-8")
    calls = "".join(call("read_file", file_path=str(file)) for file in (picture, note))
    command = [os.environ["CLIENT_COMMAND"], "--auth-type", "openai", "-y", "-p", say(calls)]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith(SAID), done.stdout
