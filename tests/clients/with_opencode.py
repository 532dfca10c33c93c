"""opencode in one-shot mode: it reads a picture that the model cannot see, and a file, as the fake model says."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from asking import FAKE, MODEL, PICTURE, SAID, call, say

model = {"name": MODEL, "attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
options = {
    "provider": {
        "localllm": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{FAKE}/v1", "apiKey": "none"},
            "models": {MODEL: model},
        }
    },
    "autoupdate": False,
    "share": "disabled",
}
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "opencode.json").write_text(json.dumps(options), encoding="utf-8")
    picture, note = (Path(folder).resolve() / name for name in ("picture.png", "note.txt"))
    picture.write_bytes(PICTURE)
    note.write_text(f"{say(SAID)}\n", encoding="utf-8")
    calls = "".join(call("read", filePath=str(file)) for file in (picture, note))
    command = [os.environ["CLIENT_COMMAND"], "run", "-m", f"localllm/{MODEL}"]
    place = os.environ | {"PWD": folder}  # where it looks for its settings
    done = subprocess.run(command, cwd=folder, env=place, input=say(calls), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAID in done.stdout, done.stdout + done.stderr
